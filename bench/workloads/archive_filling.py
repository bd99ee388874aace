"""Archives a topic for a benchmark, in one process with librdkafka: files and commits are those of any archiver."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from bench.harness.failures import ClientFailedError
from tailrace.archive.location import open_location
from tailrace.archive.manifest import load_snapshot, write_manifest
from tailrace.archive.parquet import FILE_BYTES, RECORD_SCHEMA, FileWriter
from tailrace.client.archive import commit, describe
from tailrace.client.request import ask
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

READ_SECONDS = 60
_ROWS = 10_000
_EARLIEST_LOCAL = -4


def fill_archive(bootstrap: str, topic: str, end: int) -> None:
    """Archive partition 0 of a topic from its first record up to an offset, in files of the usual size."""
    status = describe(bootstrap, topic)
    location = open_location(status.uri)
    location.create()
    files = []
    writer: FileWriter | None = None
    for messages in _read(bootstrap, topic, end):
        if writer is None:
            writer = FileWriter(topic, status.lineage, 0, messages[0].offset() or 0)
        writer.write(_table(messages))
        if writer.bytes >= FILE_BYTES or writer.next_offset >= end:
            files.append(writer.store(location))
            writer = None
    manifest = load_snapshot(location, status.archive).commit(files)
    commit(bootstrap, status, write_manifest(location, manifest), manifest.partitions)


def _read(bootstrap: str, topic: str, end: int) -> Iterator[list[Message]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "archiver", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read = 0
        while read < end:
            messages = consumer.consume(min(_ROWS, end - read), READ_SECONDS)
            if not messages:
                raise ClientFailedError(f"{topic} returned no more messages after {read}")
            read += len(messages)
            yield messages
    finally:
        consumer.close()


def _table(messages: list[Message]) -> pa.Table:
    rows = len(messages)
    columns = [
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([message.timestamp()[1] for message in messages], pa.int64()).cast(pa.timestamp("ms", "UTC")),
        pa.repeat(pa.scalar(0, pa.int32()), rows),
        pa.array([message.leader_epoch() for message in messages], pa.int32()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array([[] for _ in messages], RECORD_SCHEMA.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def local_start(bootstrap: str, topic: str) -> int:
    """Return where the broker's own log of a topic begins."""
    wanted = ListOffsetsPartition(partition_index=0, timestamp=_EARLIEST_LOCAL, current_leader_epoch=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    answer = ask(bootstrap, request, Versions(9, 9), ListOffsetsResponse, doing="listing offsets")
    return answer.topics[0].partitions[0].offset
