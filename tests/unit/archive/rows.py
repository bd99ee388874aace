"""Records as an archive has them, as Arrow tables and as two client libraries read them; and strategies for them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import strategies as st

from tailrace.archive.layout import TopicArchive
from tailrace.archive.location import Location
from tailrace.archive.manifest import ArchivedFile, Snapshot, write_manifest
from tailrace.archive.parquet import CREATE_TIME, LOG_APPEND_TIME, RECORD_SCHEMA, FileWriter
from tailrace.records.batch import has_valid_crc, iterate_batches

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

READERS = {"aiokafka": AiokafkaBatch, "kafka-python": KafkaPythonBatch}
TOPIC = "orders"
TOPIC_ID = UUID("2f0c2c5e-7f0e-4a6f-9d3f-1b1b5a3c7e11")


class Row(NamedTuple):
    """One record with all that an archive keeps of it."""

    offset: int
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def row(offset: int, size: int = 20, **changes: object) -> Row:
    """A record that is told apart from its neighbours."""
    plain = Row(offset, 1_700_000_000_000 + offset, CREATE_TIME, 3, b"key %d" % offset, b"v%d " % offset * (size // 4))
    return plain._replace(**changes)


def to_table(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(RECORD_SCHEMA)
    headers = [[{"key": name, "value": content} for name, content in each] for each in columns[-1]]
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns[:-1], RECORD_SCHEMA, strict=False)]
    return pa.Table.from_arrays([*arrays, pa.array(headers, RECORD_SCHEMA.field("headers").type)], schema=RECORD_SCHEMA)


def read_rows(data: bytes, client: str) -> list[Row]:
    """The records of batches as a client library reads them; control batches are skipped, as consumers do."""
    return list(_iterate_rows(data, client))


def _iterate_rows(data: bytes, client: str) -> Iterator[Row]:
    end = 0
    for position, header in iterate_batches(data):
        assert position == end
        end = position + header.size
        assert has_valid_crc(data, header, position)
        batch = READERS[client](data[position:end])
        assert batch.validate_crc()
        assert (batch.base_offset, batch.next_offset) == (header.base_offset, header.next_offset)
        if batch.is_control_batch:
            continue
        last = None
        for each in batch:
            last = each.offset
            headers = tuple(each.headers)
            # Neither library gives the leader epoch with a record: it is a field of the batch.
            yield Row(
                each.offset, each.timestamp, each.timestamp_type, header.leader_epoch, each.key, each.value, headers
            )
        assert last == header.last_offset
    assert end == len(data)


def store(
    location: Location, rows: Sequence[Row], span: tuple[int, int], partition: int = 0, **options: int
) -> ArchivedFile:
    """Write rows as one file that covers a span of offsets."""
    writer = FileWriter(TOPIC, TOPIC_ID, partition, span[0], **options)
    if rows:
        writer.write(to_table(rows))
    return writer.store(location, span[1])


def commit(location: Location, files: Sequence[ArchivedFile], starts: dict[int, int] | None = None) -> TopicArchive:
    """Make files the first version of an archive."""
    manifest = Snapshot(TOPIC, TOPIC_ID).commit(files, starts=starts)
    return TopicArchive(location.uri, TOPIC, TOPIC_ID, write_manifest(location, manifest))


contents = st.none() | st.binary(max_size=40)
# Also none, as -1, and what a client may have made of its clock.
timestamps = st.integers(-1, 2**45) | st.integers(-(2**62), 2**62)
header_lists = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), contents), max_size=3).map(tuple)
gaps = st.integers(1, 3) | st.integers(1, 2**33)


@st.composite
def row_lists(draw: st.DrawFn, max_size: int = 15, step: st.SearchStrategy[int] = gaps) -> list[Row]:
    """Records in order of offsets, with gaps between them, of several epochs and types of time."""
    offset = draw(st.integers(0, 2**40))
    epoch = draw(st.integers(-1, 5))
    rows = []
    for _ in range(draw(st.integers(1, max_size))):
        kind = draw(st.sampled_from((CREATE_TIME, LOG_APPEND_TIME)))
        time = draw(timestamps)
        rows.append(Row(offset, time, kind, epoch, draw(contents), draw(contents), draw(header_lists)))
        offset += draw(step)
        epoch += draw(st.sampled_from((0, 0, 0, 1)))
    return rows
