"""A sample of a topic before a query: how many offsets there are, and what its values look like.

The driver reads a sample itself, a few megabytes from the beginning, the middle and the end of some partitions: a Spark
job takes longer than most queries. A sample is enough to tell JSON from text, but not for fields and types, because any
value may have others. So unless the sample is complete, Spark reads every value once for these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError
from tailrace.model import TopicPartition
from tailrace.pipeline.arrow.formats import Format, json_text
from tailrace.pipeline.source.options import parse_read_options
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.reader import RangePartition, TopicReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SAMPLE_SIZE = 2000
SAMPLE_BYTES = 4 << 20
_SAMPLED_PARTITIONS = 16
#: More fields than this at top level are not a table: the objects have names of things as keys.
MOST_FIELDS = 2000
_UNPARSED = "__tailrace_unparsed"


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of offsets of a query, the ends of partitions, and some non-null values."""

    offsets: int
    values: tuple[bytes, ...]
    #: Whether these are all values.
    is_complete: bool = True
    #: The offset after the last of each partition, so that the query reads what was sampled.
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of JSON objects, and the number of values that are none; None if some are, not counted."""

    schema: StructType
    misfits: int | None


def take_sample(options: Mapping[str, str], size: int = SAMPLE_SIZE, most_bytes: int = SAMPLE_BYTES) -> Sample:
    """Read some values of what a batch query with these options would read."""
    reader = TopicReader(parse_read_options(options, streaming=False), ("value",))
    ranges, ends = reader.ranges_and_ends()
    pieces = list(sampled_ranges(ranges, size))
    values: list[bytes] = []
    is_complete = sum(piece.size for piece in pieces) == sum(one.size for one in ranges)
    share = most_bytes // max(1, len(pieces))
    left = 0
    for piece in pieces:
        left += share
        for value in _values(reader, piece):
            # Take at least one value: even one as large as the whole sample is still a value to guess from.
            if len(value) > left and values:
                is_complete = False
                break
            left -= len(value)
            values.append(value)
    return Sample(sum(one.size for one in ranges), tuple(values), is_complete, ends)


def _values(reader: TopicReader, piece: OffsetRange) -> Iterator[bytes]:
    for batch in reader.read(RangePartition(piece)):
        for value in batch.column(0):
            if value.is_valid:
                yield value.as_py()


def sampled_ranges(ranges: list[OffsetRange], size: int) -> Iterator[OffsetRange]:
    """Yield the first, the middle and the last offsets of ranges, about `size` of them in all."""
    step = -(-len(ranges) // _SAMPLED_PARTITIONS) or 1
    chosen = ranges[::step]
    for one in chosen:
        share = max(1, size // len(chosen) // 3)
        if one.size <= 3 * share:
            yield one
        else:
            middle = one.start + (one.size - share) // 2
            yield replace(one, end=one.start + share)
            yield replace(one, start=middle, end=middle + share)
            yield replace(one, start=one.end - share)


def guess_format(sample: Sample) -> Format:
    """Return JSON if most values are JSON objects, text if at least half are text, otherwise raw bytes."""
    values = sample.values
    if sum(1 for _ in _objects(values)) * 2 > len(values):
        return "json"
    return "text" if sum(map(_is_text, values)) * 2 >= len(values) else "raw"


def infer_json(spark: SparkSession, sample: Sample) -> Fields:
    """Return the fields of the sampled JSON objects, with types that hold all seen values."""
    from pyspark.sql.types import ArrayType, DataType, StructType

    objects = list(_objects(sample.values))
    misfits = len(sample.values) - len(objects)
    if not objects:
        return Fields(StructType([]), misfits)
    # One array of all of them: Spark merges the types of its elements as it does for lines.
    text = "[" + ",".join(objects) + "]"
    row = spark.sql("SELECT schema_of_json(:values)", args={"values": text}).first()
    assert row is not None
    found = DataType.fromDDL(row[0])
    if isinstance(found, ArrayType) and isinstance(found.elementType, StructType):
        return Fields(found.elementType, misfits)
    return Fields(StructType([]), misfits)


def infer_all_json(spark: SparkSession, values: DataFrame, topic: str) -> Fields:
    """Return the fields of all JSON objects in a column `value`, read once from first to last."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    text = values.where(F.col("value").isNotNull()).select(json_text(F.col("value")).alias("value"))
    # Spark adds this column to the fields if a value is not a JSON object.
    found = spark.read.option("columnNameOfCorruptRecord", _UNPARSED).json(text).schema
    fields = [one for one in found.fields if one.name != _UNPARSED]
    if len(fields) > MOST_FIELDS:
        raise ConfigError(
            f"values of topic '{topic}' have {len(fields)} different fields, more than {MOST_FIELDS}; name the "
            "needed ones with --schema"
        )
    return Fields(StructType(fields), 0 if len(fields) == len(found.fields) else None)


def _objects(values: Iterable[bytes]) -> Iterator[str]:
    for value in values:
        try:
            text = value.decode()
            if isinstance(json.loads(text), dict):
                yield text
        except (ValueError, RecursionError):
            continue


def is_utf8(value: bytes) -> bool:
    """True if a value is valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable() or b"\0" not in value
    except UnicodeDecodeError:
        return False
