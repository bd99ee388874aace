"""A look into a topic before a query: how much there is, and what its values are like.

Read by the driver itself, from the beginning and the end of some partitions; a job of Spark's for that would take
longer than most queries. What it finds is a guess: fields that no sampled value has are not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.pipeline.formats import Format
from tailrace.pipeline.options import parse_read_options
from tailrace.pipeline.ranges import OffsetRange
from tailrace.pipeline.reader import RangePartition, TopicReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SAMPLE_SIZE = 2000
_SAMPLED_PARTITIONS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """How many offsets the query spans, and some values; those that are null are left out."""

    offsets: int
    values: tuple[bytes, ...]


def take_sample(options: Mapping[str, str], size: int = SAMPLE_SIZE) -> Sample:
    """Read some values of what a batch query with these options would read."""
    reader = TopicReader(parse_read_options(options, streaming=False), ("value",))
    ranges = reader.ranges()
    values: list[bytes] = []
    for piece in sampled_ranges(ranges, size):
        for batch in reader.read(RangePartition(piece)):
            values.extend(value for value in batch.column(0).to_pylist() if value is not None)
    return Sample(sum(one.size for one in ranges), tuple(values))


def sampled_ranges(ranges: list[OffsetRange], size: int) -> Iterator[OffsetRange]:
    """The first and the last offsets of ranges, about `size` of them in all."""
    step = -(-len(ranges) // _SAMPLED_PARTITIONS) or 1
    chosen = ranges[::step]
    for one in chosen:
        share = max(1, size // len(chosen) // 2)
        if one.size <= 2 * share:
            yield one
        else:
            yield replace(one, end=one.start + share)
            yield replace(one, start=one.end - share)


def guess_format(sample: Sample) -> Format:
    """JSON where most values are JSON objects, text where they are at least text, else bytes as they are."""
    values = sample.values
    if sum(1 for _ in _objects(values)) * 2 > len(values):
        return "json"
    return "text" if sum(map(_is_text, values)) * 2 >= len(values) else "raw"


def infer_json(spark: SparkSession, sample: Sample) -> StructType:
    """The fields of the sampled JSON objects, of types that hold all that was seen."""
    from pyspark.sql.types import ArrayType, DataType, StructType

    objects = list(_objects(sample.values))
    if not objects:
        return StructType([])
    # An array of them all: Spark merges the types of its elements as it does those of lines.
    text = "[" + ",".join(objects) + "]"
    row = spark.sql("SELECT schema_of_json(:values)", args={"values": text}).first()
    assert row is not None
    found = DataType.fromDDL(row[0])
    if isinstance(found, ArrayType) and isinstance(found.elementType, StructType):
        return found.elementType
    return StructType([])


def _objects(values: Iterable[bytes]) -> Iterator[str]:
    for value in values:
        try:
            text = value.decode()
            if isinstance(json.loads(text), dict):
                yield text
        except (ValueError, RecursionError):
            continue


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable() or b"\0" not in value
    except UnicodeDecodeError:
        return False
