"""A small archiver for tests: what the pipeline's job does, without Spark, one commit at a time.

It reads with librdkafka, writes with the archive's own writer and commits through the broker, so that everything after
that is the real thing.
"""

from __future__ import annotations

import pyarrow as pa
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Message, TopicPartition

from tailrace.archive.location import open_location
from tailrace.archive.manifest import ArchivedFile, load_snapshot, write_manifest
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.client.archive import ArchiveStatus, commit, describe
from tests.support.archives.data_file import write_file
from tests.support.clients.confluent_client import ConfluentClient, headers_of, place_of

READ_SECONDS = 120


def archive_up_to(bootstrap: str, topic: str, ends: dict[int, int], *, rows_per_file: int = 500) -> int:
    """Archive partitions from where their archive ends up to offsets; the version that the archive has then."""
    archive = describe(bootstrap, topic)
    return commit_files(bootstrap, archive, write_files(bootstrap, archive, ends, rows_per_file=rows_per_file))


def write_files(
    bootstrap: str, archive: ArchiveStatus, ends: dict[int, int], *, rows_per_file: int = 500
) -> list[ArchivedFile]:
    """Write what is missing, and commit nothing."""
    location = open_location(archive.uri)
    location.create()
    files = []
    for number, end in ends.items():
        first = archive.partitions.get(number, (0, earliest(bootstrap, archive.topic, number)))[1]
        if end <= first:
            continue
        messages = read(bootstrap, archive.topic, number, first, end)
        for begin in range(0, len(messages), rows_per_file):
            chunk = messages[begin : begin + rows_per_file]
            is_last = begin + rows_per_file >= len(messages)
            span = first, end if is_last else place_of(messages[begin + rows_per_file])[2]
            first = span[1]
            files.append(write_file(location, archive.topic, archive.lineage, number, span, [_rows(chunk)]))
    return files


def commit_files(bootstrap: str, archive: ArchiveStatus, files: list[ArchivedFile]) -> int:
    """Commit files that were written on top of what was described."""
    location = open_location(archive.uri)
    manifest = load_snapshot(location, archive.archive).commit(files)
    return commit(bootstrap, archive, write_manifest(location, manifest), manifest.partitions)


def earliest(bootstrap: str, topic: str, partition: int) -> int:
    """Where a partition starts."""
    return ConfluentClient(bootstrap).offsets(topic, [partition])[partition][0]


def read(bootstrap: str, topic: str, partition: int, start: int, end: int) -> list[Message]:
    """All messages from an offset up to another."""
    consumer: Consumer = ConfluentClient(bootstrap).consumer()
    messages: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while not messages or place_of(messages[-1])[2] < end - 1:
            found = consumer.consume(min(500, end - start - len(messages)), timeout=READ_SECONDS)
            assert found, f"nothing more of {topic}-{partition} after {len(messages)} messages"
            for message in found:
                assert message.error() is None, message.error()
            messages += found
    finally:
        consumer.close()
    return [message for message in messages if place_of(message)[2] < end]


def _rows(messages: list[Message]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "offset": message.offset(),
                "timestamp": message.timestamp()[1],
                "timestamp_type": 1 if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME else 0,
                "leader_epoch": message.leader_epoch(),
                "key": message.key(),
                "value": message.value(),
                "headers": [{"key": key, "value": value} for key, value in headers_of(message)],
            }
            for message in messages
        ],
        schema=RECORD_SCHEMA,
    )
