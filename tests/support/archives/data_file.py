"""One data file of an archive, written in one go."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tailrace.archive.location import Location
from tailrace.archive.manifest import ArchivedFile
from tailrace.archive.parquet import FileWriter
from tailrace.model import Lineage


def write_file(
    location: Location,
    topic: str,
    lineage: Lineage,
    partition: int,
    span: tuple[int, int],
    records: Iterable[pa.RecordBatch | pa.Table],
) -> ArchivedFile:
    """Store the records of a span of offsets, from its first up to, but without, its second, as one file."""
    writer = FileWriter(topic, lineage, partition, span[0])
    for batch in records:
        writer.write(batch)
    return writer.store(location, span[1])
