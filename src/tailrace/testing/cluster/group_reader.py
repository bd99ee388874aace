"""Reading by members of a simulated group: records arrive in order and without gaps, before the member commits them.

Owns what the whole group has read of each partition. A commit claims that everything below it was read, so a committed
record that no member has read was skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.batch import iterate_batches
from tailrace.runtime.disk import FileRange
from tailrace.testing.cluster.client import ClusterClient, code_of
from tailrace.testing.cluster.history import ORDER, SKIPPED, Violation
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

_FETCH_VERSION = 12
_ANSWER_SECONDS = 1.0
#: Shorter than the interval between a member's heartbeats.
_WAIT_MS = 50
_MOST_BYTES = 4096


@dataclass(slots=True)
class GroupReading:
    """What a group has read of its topic."""

    #: By partition: the offset up to which all was read, and what was read beyond.
    whole_to: dict[int, int] = field(default_factory=dict)
    beyond: dict[int, dict[int, None]] = field(default_factory=dict)

    def read(self, partition: int, offset: int, end: int) -> None:
        """Note that a member received the records from one offset to another."""
        beyond = self.beyond.setdefault(partition, {})
        beyond.update(dict.fromkeys(range(max(offset, self.whole_to.get(partition, 0)), end)))
        whole_to = self.whole_to.get(partition, 0)
        while whole_to in beyond:
            del beyond[whole_to]
            whole_to += 1
        self.whole_to[partition] = whole_to

    def committing(self, offsets: Mapping[int, int]) -> None:
        """Check that everything below the committed offsets was read."""
        for partition, offset in offsets.items():
            if offset > self.whole_to.get(partition, 0):
                skipped = self.whole_to.get(partition, 0)
                raise Violation(
                    SKIPPED, f"partition {partition}: {offset} is committed, but no member has read {skipped}"
                )


@dataclass(slots=True)
class GroupReader:
    """Reads for one member."""

    topic: str
    client: ClusterClient
    reading: GroupReading

    async def read(self, number: int, offset: int) -> int:
        """Read on in a partition; return the next offset."""
        partition = TopicPartition(self.topic, number)
        try:
            return await self._read(partition, offset)
        except ConnectionError:
            self.client.doubt(partition)
            return offset

    async def _read(self, partition: TopicPartition, offset: int) -> int:
        connection, _, epoch = await self.client.leader_of(partition)
        wanted = FetchPartition(
            partition=partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            partition_max_bytes=_MOST_BYTES,
        )
        topic = FetchTopic(topic=partition.topic, partitions=[wanted])
        request = FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, session_epoch=-1, topics=[topic])
        response = await connection.call(request, _FETCH_VERSION, FetchResponse, _ANSWER_SECONDS)
        data = response.responses[0].partitions[0]
        if (code := code_of(data.error_code)) is not ErrorCode.NONE:
            raise ConnectionError(code.name)
        records = data.records
        assert records is not None
        assert not isinstance(records, FileRange)
        end = offset
        for _, header in iterate_batches(records):
            if header.base_offset > end:
                raise Violation(ORDER, f"{partition}: a group reads {header.base_offset}, expected {end}")
            end = max(end, header.next_offset)
        self.reading.read(partition.partition, offset, end)
        return end
