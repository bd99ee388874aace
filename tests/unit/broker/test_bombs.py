"""Small batches that decompress to very much: nobody else waits, and their memory is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.errors import ErrorCode
from tailrace.records.time_search import TimeSearch
from tailrace.replication import preparation
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.batches.bombs import KEYED_RECORD, bomb
from tests.unit.broker.brokers import TestedBroker, with_broker

RECORDS = 200_000


def ask_for_time(topic: str, partitions: int, timestamp: int) -> ListOffsetsRequest:
    wanted = [ListOffsetsPartition(partition_index=number, timestamp=timestamp) for number in range(partitions)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=wanted)])


class Looks:
    """What steps of the event loop looked at: the most records in one, and in how many others had their turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = 0
        self._in_turn = self.most_in_turn = self.total = 0
        advance = TimeSearch.advance

        def counted(search: TimeSearch, records: int) -> bool:
            self.total += records
            self._in_turn += records
            self.most_in_turn = max(self.most_in_turn, self._in_turn)
            return advance(search, records)

        monkeypatch.setattr(TimeSearch, "advance", counted)

    async def serve_others(self) -> None:
        while True:
            self.turns += 1
            self._in_turn = 0
            await asyncio.sleep(0)


def test_a_search_by_time_looks_at_few_records_before_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("bombs", 3, message_timestamp_after_max_ms=str(1 << 62))
        for partition in range(3):
            assert (await tested.produce("bombs", partition=partition, data=bomb(count=RECORDS))).error_code == 0
        looks = Looks(monkeypatch)
        others = asyncio.ensure_future(looks.serve_others())
        answers = await asyncio.gather(
            *(tested.ask(ask_for_time("bombs", 3, 1 << 39), 7, ListOffsetsResponse) for _ in range(2))
        )
        others.cancel()
        for answer in answers:
            assert [each.error_code for each in answer.topics[0].partitions] == [0, 0, 0]
            assert [each.offset for each in answer.topics[0].partitions] == [-1, -1, -1]
        assert looks.total >= 6 * RECORDS
        # However many searches there are at once.
        assert looks.most_in_turn <= 1_000
        assert looks.turns >= looks.total // 1_000

    with_broker(tmp_path, test)


def test_batches_that_only_say_that_they_have_a_time_are_walked_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(tested: TestedBroker) -> None:
        await tested.create("liars", 1, message_timestamp_after_max_ms=str(1 << 62))
        assert (await tested.produce("liars", data=bomb(count=1))).error_code == 0
        for _ in range(20):
            assert (await tested.produce("liars", data=bomb(count=2_000))).error_code == 0
        looks = Looks(monkeypatch)
        others = asyncio.ensure_future(looks.serve_others())
        answer = await tested.ask(ask_for_time("liars", 1, 1 << 39), 7, ListOffsetsResponse)
        others.cancel()
        assert answer.topics[0].partitions[0].offset == -1
        assert looks.most_in_turn <= 1_001

    with_broker(tmp_path, test)


def test_what_batches_of_all_partitions_unpack_to_is_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked_bytes = len(KEYED_RECORD) * RECORDS
    bound = 3 * unpacked_bytes

    async def test(tested: TestedBroker) -> None:
        await tested.create("bombs", 16, cleanup_policy="compact", message_timestamp_after_max_ms=str(1 << 62))
        work, memory = tested.broker.partitions.long_work, tested.broker.services.request_memory
        most = 0
        # As if nothing could be known of a batch before it is unpacked but that it has no more than it has.
        monkeypatch.setattr(preparation, "most_unpacked", lambda codec, size, limit: unpacked_bytes)
        unpack = preparation.unpack

        def counted(*args: object) -> object:
            nonlocal most
            most = max(most, memory.held_bytes)
            assert work.held_bytes >= unpacked_bytes
            return unpack(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(preparation, "unpack", counted)
        data = bomb(KEYED_RECORD, count=RECORDS)
        batches = [PartitionProduceData(index=number, records=data) for number in range(16)]
        request = ProduceRequest(
            acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name="bombs", partition_data=batches)]
        )
        answer = await tested.ask(request, 9, ProduceResponse)
        # All of them lie about their offsets, which is found when their records are looked at.
        codes = [each.error_code for each in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.INVALID_RECORD] * 16
        assert unpacked_bytes <= most <= bound
        assert (memory.held_bytes, work.held_bytes) == (0, 0)

    with_broker(tmp_path, test, queued_max_request_bytes=str(bound))
