"""One file of an archive, written by a Spark task: fetched, decoded, converted to Parquet, stored.

Runs in a Python worker; the records never pass through Spark's JVM. A stored file becomes part of the archive only when
the driver commits it, so a task may run twice or be killed at any moment, and leaves at worst files that no reader
uses. Batches that cannot be decoded go unchanged to a side file. Failures that are not bugs are returned as values, for
the driver to handle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailrace.archive.errors import ArchiveError, LocationMissingError
from tailrace.archive.location import open_location
from tailrace.archive.manifest import ArchivedFile
from tailrace.archive.parquet import RECORD_SCHEMA, FileWriter
from tailrace.archive.quarantine import SideFile, SideFileWriter
from tailrace.model import Lineage
from tailrace.pipeline.archiving.plan import Piece
from tailrace.pipeline.arrow.decoding import LEADER_EPOCH, TIMESTAMP_MS, RecordDecoder
from tailrace.pipeline.failures import CorruptRecordsError, SourceError
from tailrace.pipeline.source.client_settings import ClientSettings
from tailrace.pipeline.source.fetching import FetchPlan, read_range
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.pipeline.source.schema import HEADERS
from tailrace.records.batch import BatchHeader

#: In the order of the archive's schema.
COLUMNS = ("offset", TIMESTAMP_MS, "timestampType", LEADER_EPOCH, "key", "value", HEADERS)
#: How long a task waits for a moving leader or a restarting broker.
_PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class FileTask:
    """A piece of a topic, and everything needed to archive it."""

    client: ClientSettings
    uri: str
    lineage: Lineage
    piece: Piece


@dataclass(frozen=True, slots=True)
class Written:
    """A stored file, the bytes of keys and values in it, and the batches of its range that have no rows."""

    topic: str
    file: ArchivedFile
    record_bytes: int
    side_file: SideFile | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a file was not written, and whether that may pass by itself."""

    topic: str
    reason: str
    is_passing: bool
    #: Whether the archive's location failed, not the read.
    is_of_archive: bool


def may_pass(error: ArchiveError) -> bool:
    """True if it is worth waiting for an archive; a directory that existed may be mounted again."""
    return error.is_retriable or isinstance(error, LocationMissingError)


def write_file(task: FileTask) -> Written | Failed:
    """Archive one piece."""
    topic = task.piece.topic
    try:
        return _write(task)
    except ArchiveError as error:
        return Failed(topic, str(error), may_pass(error), is_of_archive=True)
    except CorruptRecordsError as error:
        return Failed(topic, str(error), is_passing=False, is_of_archive=False)
    except SourceError as error:
        # Leaders move, brokers restart, and records are deleted between the plan and the read.
        return Failed(topic, str(error), is_passing=True, is_of_archive=False)


class _SideFileFullError(Exception):
    """The next undecodable batch must go to another side file, and so to another file."""


def _write(task: FileTask) -> Written:
    piece = task.piece
    wanted = OffsetRange(piece.topic, piece.partition, piece.start, piece.end)
    writer = FileWriter(piece.topic, task.lineage, piece.partition, piece.first_offset)
    aside = SideFileWriter(piece.topic, task.lineage, piece.partition, piece.first_offset)

    def put_aside(header: BatchHeader, data: memoryview, reason: str) -> None:
        if not aside.has_room_for(len(data)):
            raise _SideFileFullError
        aside.add(header, data, reason)

    plan = FetchPlan(task.client, (), RecordFilter(), fail_on_data_loss=True, poll_timeout_ms=_PATIENCE_MS)
    decoder = RecordDecoder(wanted, COLUMNS, RecordFilter(), RECORD_SCHEMA, put_aside)
    record_bytes = 0
    end = piece.end
    try:
        for records in read_range(plan, wanted, decoder):
            writer.write(records)
            record_bytes += _content_bytes(records.column("key")) + _content_bytes(records.column("value"))
            reached = max(writer.next_offset, aside.next_offset)
            if writer.bytes >= piece.max_bytes and reached < piece.end:
                end = reached
                break
    except _SideFileFullError:
        # Batches arrive in order, so everything before this one is in one of the two files.
        end = min(piece.end, max(writer.next_offset, aside.next_offset))
    location = open_location(task.uri)
    try:
        side_file = aside.store(location, end)
        return Written(piece.topic, writer.store(location, end), record_bytes, side_file)
    finally:
        location.close()


def _content_bytes(column: pa.Array) -> int:
    """Return the bytes of a column's values, without Arrow's overhead."""
    bounds = column.buffers()[1]
    if bounds is None or not len(column):
        return 0
    ends = np.frombuffer(bounds, np.int32, len(column) + 1, column.offset * 4)
    return int(ends[-1]) - int(ends[0])
