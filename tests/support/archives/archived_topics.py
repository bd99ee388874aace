"""Archived topics whose brokers delete records as soon as they may, and what was sent to them."""

from __future__ import annotations

from pathlib import Path

from tailrace.client.request import ask
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.support.records import Received, Record

FIRST_TIME = 1_700_000_000_000
#: For brokers of such topics.
RETENTION_CHECK_MS = "200"
_EARLIEST_LOCAL = -4


def archived_configs(place: Path) -> dict[str, str]:
    """A topic that is archived, in small segments that go as soon as they may."""
    return {
        "tailrace_archive_enable": "true",
        "tailrace_archive_uri": str(place),
        "local_retention_ms": "1000",
        "segment_bytes": str(1 << 20),
        "file_delete_delay_ms": "0",
    }


def some_records(count: int) -> list[Record]:
    """Records with all that a record may have, a second apart, a few without key, value or headers."""
    return [
        Record(
            None if number % 97 == 0 else f"value {number} ".encode() * 100,
            None if number % 89 == 0 else f"key {number % 10}".encode(),
            (("source", b"test"), ("source", b""), ("number", str(number).encode())) if number % 3 else (),
            FIRST_TIME + 1000 * number,
        )
        for number in range(count)
    ]


def local_start(bootstrap: str, topic: str) -> int:
    """Where the log of partition 0 begins on its leader, which is to be asked; -1 where that is not the leader."""
    return listed_offset(bootstrap, topic, _EARLIEST_LOCAL)


def listed_offset(bootstrap: str, topic: str, timestamp: int) -> int:
    """What the leader of partition 0 answers for a time, or for one of the numbers that stand for an offset."""
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    response = ask(bootstrap, request, Versions(9, 9), ListOffsetsResponse, doing="listing offsets")
    answer = response.topics[0].partitions[0]
    return -1 if answer.error_code else answer.offset


def assert_is_what_was_sent(received: list[Received], sent: list[Record], first: int = 0) -> None:
    """Every record from an offset on was received once, in order, as it was sent."""
    assert [each.offset for each in received] == list(range(first, len(sent)))
    for each in received:
        record = sent[each.offset]
        assert each.content() == (record.key, record.value, record.headers)
        assert (each.timestamp_ms, each.log_append_time) == (record.timestamp_ms, False)
