"""Reading a partition: how far each kind of reader sees, and where it gets what is not in the log here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tailrace.cluster.archives import ArchivedRange
from tailrace.errors import ErrorCode
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience, Isolation
from tailrace.runtime.disk import FileRange
from tailrace.storage.aborted_transactions import AbortedTransaction
from tests.unit.replication.reads import read
from tests.unit.replication.replicas import Replicas, with_replicas
from tests.unit.replication.test_archived_partition import CONFIG, ten_committed
from tests.unit.replication.test_partition import refusal
from tests.unit.replication.transactions import end, write

ARCHIVED_BATCHES = b"batches of the archive"


@dataclass
class Archive:
    """An archive reader that answers with what it is given."""

    answer: bytes | asyncio.Future[None] | None = None
    asked: list[tuple[int, int, bool]] = field(default_factory=list)

    def take(
        self, partition: Partition, offset: int, max_bytes: int, *, may_exceed: bool
    ) -> bytes | asyncio.Future[None] | None:
        self.asked.append((offset, max_bytes, may_exceed))
        return self.answer


def test_clients_see_what_is_committed_and_replicas_see_all() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.append(b"committed")
        await replicas.fetch()
        leader.append(b"only here")
        reader = leader.partition.reader
        assert [reader.limit(each) for each in Audience] == [1, 2, 2, 1]
        assert reader.limit(Audience.CLIENT, Isolation.READ_COMMITTED) == leader.partition.last_stable_offset == 1
        for audience, is_there in ((Audience.CLIENT, False), (Audience.INSPECTOR, False), (Audience.REPLICA, True)):
            assert (read(leader.partition, 1, 1000, audience=audience) is not None) is is_there

    with_replicas(test)


def test_what_is_told_beside_the_batches() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.append()
        await replicas.fetch()
        told = leader.partition.reader.read(0, 1000)
        assert (told.high_watermark, told.last_stable_offset, told.log_start_offset) == (1, 1, 0)
        assert (told.aborted, told.diverging_epoch, told.pending, told.is_archived) == (None, None, None, False)
        assert leader.partition.reader.read(0, 1000, isolation=Isolation.READ_COMMITTED).aborted == ()

    with_replicas(test)


def test_only_an_inspector_reads_a_copy_that_is_not_led_here() -> None:
    async def test(replicas: Replicas) -> None:
        replicas.leader.append()
        await replicas.fetch(rounds=3)
        follower = replicas.second.partition
        for audience in (Audience.CLIENT, Audience.REPLICA, Audience.COORDINATOR):
            assert refusal(lambda audience=audience: read(follower, 0, 1000, audience=audience)) is (  # type: ignore[misc]
                ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        assert read(follower, 0, 1000, audience=Audience.INSPECTOR) is not None

    with_replicas(test)


@pytest.mark.parametrize("max_bytes", [0, 10])
def test_a_batch_larger_than_the_limit_is_read_only_where_it_may_exceed_it(max_bytes: int) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.leader.append()
        await replicas.fetch()
        reader = replicas.leader.partition.reader
        assert reader.read(0, max_bytes, may_exceed=False).batches is None
        part = reader.read(0, max_bytes).batches
        assert isinstance(part, FileRange)
        assert part.size > max_bytes

    with_replicas(test)


def test_a_reader_whose_log_parts_from_this_one_is_told_where_and_gets_nothing() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.append()
        await replicas.fetch()
        replicas.change(leader=1)
        told = leader.partition.reader.read(5, 1000, last_fetched_epoch=0)
        assert (told.diverging_epoch, told.batches) == ((0, 1), None)

    with_replicas(test)


def test_clients_get_archived_records_from_the_archive_and_replicas_are_sent_there() -> None:
    async def test(replicas: Replicas) -> None:
        await ten_committed(replicas, 6)
        partition = replicas.leader.partition
        archive = partition.reader.archive = Archive(ARCHIVED_BATCHES)
        for audience in (Audience.CLIENT, Audience.INSPECTOR):
            told = partition.reader.read(0, 1000, audience, may_exceed=False)
            assert (told.batches, told.is_archived, told.pending) == (ARCHIVED_BATCHES, True, None)
        assert archive.asked == [(0, 1000, False)] * 2
        for audience in (Audience.REPLICA, Audience.COORDINATOR):
            assert refusal(lambda audience=audience: partition.reader.read(0, 1000, audience)) is (  # type: ignore[misc]
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
            )
        archive.answer = asyncio.get_running_loop().create_future()
        told = partition.reader.read(0, 1000)
        assert (told.batches, told.is_archived, told.pending) == (None, False, archive.answer)
        archive.answer = None
        told = partition.reader.read(0, 1000)
        assert (told.batches, told.is_archived, told.pending) == (None, False, None)
        # What is here is read here.
        partition.apply_archive(ArchivedRange(0, 10), 10)
        assert isinstance(partition.reader.read(partition.log.start_offset, 1000).batches, FileRange)
        assert len(archive.asked) == 4

    with_replicas(test, CONFIG)


class Waiter:
    def __init__(self) -> None:
        self.told: list[int] = []

    def more_to_read(self, size: int) -> None:
        self.told.append(size)


def test_readers_of_committed_records_wait_for_the_committed_end_of_transactions() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        partition, reader = leader.partition, leader.partition.reader
        stable, committed = Waiter(), Waiter()
        partition.watch_stable(stable)
        partition.watch(committed)
        leader.append()
        await replicas.fetch()
        assert (len(stable.told), partition.last_stable_offset) == (1, 1)
        write(leader, 7, 0)
        leader.append()
        await replicas.fetch()
        assert (partition.high_watermark, partition.last_stable_offset, len(stable.told)) == (3, 1, 1)
        assert reader.read(1, 1000, isolation=Isolation.READ_COMMITTED).batches is None
        assert reader.read(1, 1000).batches is not None
        end(leader, 7, commit=False)
        assert partition.last_stable_offset == 1, "the marker is not committed yet"
        await replicas.fetch()
        assert partition.last_stable_offset == 4
        assert len(stable.told) == 2
        assert stable.told[-1] > 1 << 60, "it has to look how much there is"
        assert len(committed.told) == 3
        told = reader.read(1, 1000, isolation=Isolation.READ_COMMITTED)
        assert told.aborted == [AbortedTransaction(7, 1, 3, 4)]
        assert reader.read(1, 1000).aborted is None
        partition.unwatch(stable)
        leader.append()
        await replicas.fetch()
        assert len(stable.told) == 2

    with_replicas(test)


def test_a_new_leader_knows_what_is_open_and_what_is_aborted() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        write(leader, 7, 0)
        write(leader, 8, 0)
        end(leader, 7, commit=False)
        await replicas.fetch(rounds=3)
        replicas.change(leader=2)
        assert second.partition.last_stable_offset == 1
        assert second.partition.reader.read(0, 1000, isolation=Isolation.READ_COMMITTED).aborted == [
            AbortedTransaction(7, 0, 2, 1)
        ]
        await replicas.fetch(rounds=3)
        end(second, 8, commit=True, epoch=1, version=2)
        await replicas.fetch(rounds=3)
        assert second.partition.last_stable_offset == second.partition.high_watermark == 4
        assert [dict(each.partition.log.producers.entries())[8].epoch for each in replicas.all] == [1, 1, 1]

    with_replicas(test)


def test_an_uncommitted_marker_that_is_cut_off_leaves_its_transaction_open() -> None:
    async def test(replicas: Replicas) -> None:
        leader, second = replicas.leader, replicas.second
        write(leader, 7, 0)
        await replicas.fetch(rounds=3)
        end(leader, 7, commit=False)
        replicas.change(leader=2)
        second.append()
        await replicas.fetch(rounds=4)
        assert leader.partition.log.producers.transactions.first_open == 0
        assert second.partition.last_stable_offset == 0
        end(second, 7, commit=True)
        await replicas.fetch(rounds=4)
        replicas.change(leader=1)
        await replicas.fetch(rounds=4)
        told = leader.partition.reader.read(0, 1000, isolation=Isolation.READ_COMMITTED)
        assert (told.aborted, leader.partition.last_stable_offset) == ((), 3)

    with_replicas(test)


def test_a_leader_refuses_markers_as_it_refuses_records() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        write(leader, 7, 0, epoch=3)
        assert refusal(lambda: end(leader, 7, commit=True, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert refusal(lambda: end(leader, 7, commit=True, epoch=3, version=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert refusal(lambda: write(leader, 7, 1, epoch=3, plain=True)) is ErrorCode.INVALID_TXN_STATE
        assert refusal(lambda: end(replicas.second, 7, commit=True, epoch=3)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader.partition.min_insync_replicas = 2
        replicas.change(isr=(1,))
        assert refusal(lambda: end(leader, 7, commit=True, epoch=3)) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert leader.partition.log.end_offset == 1

    with_replicas(test)


def test_records_of_an_open_transaction_that_are_deleted_hold_back_nothing_below_the_start() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        write(leader, 7, 0)
        leader.append()
        await replicas.fetch()
        leader.partition.log.advance_start(2)
        assert leader.partition.last_stable_offset == 2
        leader.append()
        await replicas.fetch()
        assert (leader.partition.high_watermark, leader.partition.last_stable_offset) == (3, 2)

    with_replicas(test)
