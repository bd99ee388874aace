"""An archiver of a topic of a simulated cluster: reads committed records, writes files, commits through any broker.

It does what the pipeline's job does, in small: describe, read from the archive's end, write, commit on top of the
described version. Several may run at once. The checks get its results; after any failure it starts over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from crc32c import crc32c

from tailrace.archive.errors import ArchiveError
from tailrace.archive.layout import TopicArchive, manifest_path, topic_directory
from tailrace.archive.location import Location
from tailrace.archive.manifest import ArchivedFile, Manifest, load_snapshot
from tailrace.archive.parquet import FileWriter, records_of
from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.batch import has_valid_crc, iterate_batches
from tailrace.records.record import iterate_records
from tailrace.runtime.disk import FileRange
from tailrace.testing.cluster.client import ClusterClient, code_of
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest, ArchiveCommitResponse
from tailrace.wire.messages.archive_describe import (
    ArchiveDescribeRequest,
    ArchiveDescribeResponse,
    ArchivedPartition,
    DescribedArchive,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

_ANSWER_SECONDS = 8.0
_FETCH_VERSION = 12
_MOST_BYTES = 1 << 16
#: The expected outcomes of a commit: made; refused because another archiver was faster, or because the store did not
#: answer in time or called it too large; refused by a broker that does not know the topic yet.
_EXPECTED = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


@dataclass(slots=True)
class ClusterArchiver:
    """An archiver of one partition, which runs again and again."""

    name: str
    partition: TopicPartition
    client: ClusterClient
    random: Random
    location: Location
    #: Called with the version and manifest of every commit that a broker acknowledged.
    on_commit: Callable[[int, str], None]
    #: Called with every manifest that was refused because another archiver was faster.
    on_refusal: Callable[[str], None]
    commits: int = 0
    refused: int = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(1.0, 8.0))
            try:
                await self._archive()
            except (ConnectionError, ArchiveError):
                self.client.doubt(self.partition)

    async def _archive(self) -> None:
        status = await self._describe()
        number = self.partition.partition
        first = max(0, status.partitions[number].end_offset)
        rows = await self._read(first)
        if not rows:
            return
        archive = TopicArchive(status.uri, status.name, status.lineage, status.manifest or None)
        snapshot = load_snapshot(self.location, archive)
        # Writing may take a while; others continue meanwhile.
        await asyncio.sleep(self.random.uniform(0.0, 2.0))
        manifest = snapshot.commit([self._write(archive, first, rows)])
        await self._commit(status, manifest, self._write_manifest(manifest))

    async def _describe(self) -> DescribedArchive:
        connection = await self.client.any_broker()
        request = ArchiveDescribeRequest(topics=[self.partition.topic])
        response = await connection.call(request, 0, ArchiveDescribeResponse, _ANSWER_SECONDS)
        status = response.archives[0]
        if status.error_code:
            raise ConnectionError("the topic is not known there yet")
        return status

    async def _read(self, offset: int) -> list[dict[str, Any]]:
        """Return the committed records from an offset on, as far as one response has them."""
        connection, _, epoch = await self.client.leader_of(self.partition)
        topic, number = self.partition
        wanted = FetchPartition(
            partition=number, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=_MOST_BYTES
        )
        request = FetchRequest(
            max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        response = await connection.call(request, _FETCH_VERSION, FetchResponse, _ANSWER_SECONDS)
        data = response.responses[0].partitions[0]
        if data.error_code:
            # Also if another archiver has archived it since, and this replica has deleted it.
            raise ConnectionError(code_of(data.error_code).name)
        records = data.records
        assert records is not None
        assert not isinstance(records, FileRange)
        rows: list[dict[str, Any]] = []
        for position, header in iterate_batches(records):
            assert has_valid_crc(records, header, position), f"{self.partition}: corrupt at {header.base_offset}"
            rows += [
                {
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "timestamp_type": 0,
                    "leader_epoch": header.leader_epoch,
                    "key": record.key,
                    "value": record.value,
                    "headers": [],
                }
                for record in iterate_records(records, header, position)
                if record.offset >= offset
            ]
        return rows

    def _write(self, archive: TopicArchive, first: int, rows: list[dict[str, Any]]) -> ArchivedFile:
        writer = FileWriter(archive.topic, archive.lineage, self.partition.partition, first)
        writer.write(records_of(rows))
        file, content = writer.finish()
        # A name as a writer makes it, but from this run's own random numbers.
        file = replace(file, name=f"{file.name.rpartition('-')[0]}-{self._unique()}.parquet")
        self.location.write_new(f"{archive.directory}/{file.name}", memoryview(content))
        return file

    def _write_manifest(self, manifest: Manifest) -> str:
        content = manifest.encode()
        name = f"{manifest.version:020d}-{self._unique()}-{crc32c(content):08x}.json"
        directory = topic_directory(manifest.topic, manifest.lineage)
        self.location.write_new(manifest_path(directory, name), content)
        return name

    def _unique(self) -> str:
        return f"{self.random.getrandbits(64):016x}"

    async def _commit(self, status: DescribedArchive, manifest: Manifest, name: str) -> None:
        request = ArchiveCommitRequest(
            lineage=status.lineage,
            expected_version=status.version,
            uri=status.uri,
            manifest=name,
            partitions=[
                ArchivedPartition(partition_index=number, start_offset=start, end_offset=end)
                for number, (start, end) in manifest.partitions.items()
            ],
        )
        connection = await self.client.any_broker()
        response = await connection.call(request, 0, ArchiveCommitResponse, _ANSWER_SECONDS)
        code = code_of(response.error_code)
        if code is ErrorCode.NONE:
            self.commits += 1
            self.on_commit(response.version, name)
            return
        assert code in _EXPECTED, f"{self.name}: a commit was refused: {code.name} {response.error_message}"
        if code is ErrorCode.INVALID_UPDATE_VERSION:
            self.refused += 1
            self.on_refusal(name)
