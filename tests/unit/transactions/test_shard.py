"""A shard of transactions: markers, time, failover, and a journal that refuses."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.transactions.records import encode_key
from tailrace.transactions.settings import TransactionSettings
from tailrace.transactions.states import ProducerIdentity, State
from tests.unit.transactions.world import ID, P0, P1, P2, TIMEOUT_MS, World, code_of, with_world


@pytest.mark.parametrize("is_newer", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_is_complete_when_every_partition_has_its_marker(is_newer: bool, is_commit: bool) -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        await world.add(me, P1, P2)
        after = await world.end(me, is_commit, is_newer=is_newer)
        assert after == ProducerIdentity(me.producer_id, me.epoch + is_newer)
        (sent,) = world.post.sent
        marker = sent.marker
        assert (marker.producer_id, marker.producer_epoch, marker.is_commit) == (*after, is_commit)
        assert marker.coordinator_epoch == world.replicas.state.leader_epoch
        assert marker.transaction_version == (2 if is_newer else 0)
        assert list(sent.partitions) == [P0, P1, P2]
        sent.arrive(P1, P0)
        assert world.state() is (State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT)
        shown = world.shard.describe(ID)
        assert not isinstance(shown, asyncio.Future)
        assert list(shown.partitions) == [P2]
        sent.arrive()
        assert world.state() is (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT)
        assert (world.counters.committed, world.counters.aborted) == (int(is_commit), int(not is_commit))
        await world.add(after, P0)
        assert world.state() is State.ONGOING

    with_world(test)


def test_no_marker_is_sent_before_the_outcome_is_committed() -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        world.replicas.change(isr=(1, 2, 3))
        await world.replicas.fetch()
        ending = asyncio.ensure_future(world.end(me))
        await world.pass_seconds(1)
        assert not ending.done()
        assert world.post.sent == []
        await world.replicas.fetch()
        await ending
        assert len(world.post.sent) == 1

    with_world(test)


def test_markers_are_sent_though_too_few_replicas_were_left_to_answer_the_client() -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        world.replicas.change(isr=(1, 2, 3))
        await world.replicas.fetch()
        world.refuse_writes()  # two replicas are needed, and there are three
        ending = asyncio.ensure_future(code_of(world.end(me)))
        await world.pass_seconds(0.1)
        world.replicas.change(isr=(1,))
        assert await ending is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await world.pass_seconds(2)
        (sent,) = world.post.sent
        assert sent.marker.is_commit
        # What the journal refuses now is written when it can be.
        sent.arrive()
        assert world.state() is State.PREPARE_COMMIT
        world.refuse_writes(False)
        await world.pass_seconds(2)
        assert world.state() is State.COMPLETE_COMMIT

    with_world(test)


def test_a_refused_write_changes_nothing_and_the_epoch_is_incremented_once() -> None:
    # KAFKA-19367, with its follow-up.
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        world.refuse_writes()
        for _ in range(3):
            assert await code_of(world.begin()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await code_of(world.end(me)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (world.state(), world.transaction().identity) == (State.ONGOING, me)
        world.refuse_writes(False)
        assert await code_of(world.begin()) is ErrorCode.CONCURRENT_TRANSACTIONS
        world.post.deliver()
        assert world.transaction().identity == (me.producer_id, me.epoch + 1)
        assert await world.begin() == (me.producer_id, me.epoch + 2)

    with_world(test)


def test_a_second_producer_aborts_the_transaction_of_the_first_and_fences_it() -> None:
    async def test(world: World) -> None:
        first = await world.begin()
        await world.add(first, P0)
        assert await code_of(world.begin()) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert not world.post.sent[0].marker.is_commit
        assert await code_of(world.begin()) is ErrorCode.CONCURRENT_TRANSACTIONS
        world.post.deliver()
        second = await world.begin()
        assert second.epoch == first.epoch + 2
        assert await code_of(world.add(first, P0)) is ErrorCode.PRODUCER_FENCED
        assert await code_of(world.end(first)) is ErrorCode.PRODUCER_FENCED
        assert await code_of(world.end(first, is_newer=False)) is ErrorCode.PRODUCER_FENCED
        assert await code_of(world.begin(first)) is ErrorCode.PRODUCER_FENCED
        assert world.counters.taken_over == 1

    with_world(test)


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    async def test(world: World) -> None:
        with pytest.raises(KafkaError) as refused:
            world.shard.initialize(ID, None, timeout_ms)
        assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        world.shard.initialize(ID, None, 15 * 60_000)

    with_world(test)


def test_the_empty_transactional_id_is_refused() -> None:
    async def test(world: World) -> None:
        assert await code_of(world.begin(transactional_id="")) is ErrorCode.INVALID_REQUEST

    with_world(test)


def test_a_producer_waits_while_no_producer_id_is_reserved() -> None:
    async def test(world: World) -> None:
        world.has_ids = False
        assert await code_of(world.begin()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.has_ids = True
        assert (await world.begin()).epoch == 0

    with_world(test)


# --- time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_may_come_back() -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        await world.pass_seconds(TIMEOUT_MS / 1000 - 1)
        assert world.state() is State.ONGOING
        await world.pass_seconds(12)
        assert world.state() is State.PREPARE_ABORT
        assert (world.counters.timed_out, world.shard.open_count) == (1, 1)
        world.post.deliver()
        assert world.shard.open_count == 0
        assert await code_of(world.end(me, is_newer=False)) is ErrorCode.PRODUCER_FENCED
        assert await world.begin(me) == (me.producer_id, me.epoch + 1)

    with_world(test)


def test_a_transaction_that_takes_too_long_is_aborted_when_the_journal_can_be_written_again() -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        world.refuse_writes()
        await world.pass_seconds(200)
        assert world.state() is State.ONGOING
        world.refuse_writes(False)
        await world.pass_seconds(12)
        assert world.state() is State.PREPARE_ABORT

    with_world(test)


def test_only_transactions_whose_own_time_is_over_are_aborted() -> None:
    async def test(world: World) -> None:
        ids = [f"id-{number}" for number in range(300)]
        for number, name in enumerate(ids):
            me = await world.begin(transactional_id=name)
            await world.add(me, P0, transactional_id=name)
            if number == 149:
                await world.pass_seconds(30)
        await world.pass_seconds(TIMEOUT_MS / 1000 - 15)
        states = [world.state(name) for name in ids]
        assert states == [State.PREPARE_ABORT] * 150 + [State.ONGOING] * 150

    with_world(test)


def test_ids_that_nobody_uses_expire_and_others_stay() -> None:
    settings = TransactionSettings(id_expiration_ms=3_600_000, expiration_check_ms=60_000)

    async def test(world: World) -> None:
        for number in range(250):
            await world.begin(transactional_id=f"idle-{number}")
        busy = await world.begin(transactional_id="busy")
        await world.pass_seconds(3_000)
        used = await world.begin(transactional_id="used")
        await world.add(used, P0, transactional_id="used")
        await world.end(used, is_newer=False, transactional_id="used")
        world.post.deliver()
        await world.pass_seconds(700)
        assert world.shard.id_count == 1
        assert world.state("used") is State.COMPLETE_COMMIT
        assert world.counters.expired == 251
        refused = await code_of(world.add(busy, P0, transactional_id="busy"))
        assert refused is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        await world.fail_over()
        assert world.shard.id_count == 1

    with_world(test, settings)


def test_an_open_transaction_never_expires() -> None:
    settings = TransactionSettings(id_expiration_ms=1_000, expiration_check_ms=1_000, timeout_check_ms=10**8)

    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0)
        await world.pass_seconds(100)
        await world.end(me)
        await world.pass_seconds(100)
        assert world.state() is State.PREPARE_COMMIT
        world.post.deliver()
        await world.pass_seconds(100)
        assert world.shard.id_count == 0

    with_world(test, settings)


# --- failover


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_next_coordinator_sends_all_markers_of_what_was_decided(is_commit: bool) -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0, P1)
        after = await world.end(me, is_commit)
        world.post.sent[0].arrive(P0)
        await world.fail_over()
        (sent,) = world.post.sent
        assert list(sent.partitions) == [P0, P1]
        assert (sent.marker.is_commit, sent.marker.producer_epoch) == (is_commit, after.epoch)
        assert sent.marker.coordinator_epoch == world.replicas.state.leader_epoch == 1
        world.post.deliver()
        assert world.state() is (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT)
        assert await world.end(me, is_commit) == after

    with_world(test)


def test_the_next_coordinator_resumes_many_transactions_and_keeps_their_time() -> None:
    async def test(world: World) -> None:
        ids = [f"id-{number}" for number in range(250)]
        for name in ids:
            me = await world.begin(transactional_id=name)
            await world.add(me, P0, transactional_id=name)
            if name < "id-2":
                await world.end(me, transactional_id=name)
        await world.fail_over()
        ended = [name for name in ids if name < "id-2"]
        assert len(world.post.under_way) == len(ended)
        assert world.shard.open_count == 250
        assert world.shard.oldest_start_ms == world.transaction(ids[0]).start_ms
        world.post.deliver()
        assert world.shard.open_count == 250 - len(ended)
        await world.pass_seconds(TIMEOUT_MS / 1000 + 11)
        world.post.deliver()
        assert world.shard.open_count == 0

    with_world(test)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_partition_with_a_later_epoch_of_the_producer_does_not_hold_up_the_end(is_commit: bool) -> None:
    # The journal may lose more in a power failure than the partition does.
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0, P1)
        await world.end(me, is_commit)
        (sent,) = world.post.sent
        sent.listener.refused(P0, ErrorCode.INVALID_PRODUCER_EPOCH)
        assert not sent.is_cancelled
        assert world.state() is (State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT)
        sent.arrive(P1)
        assert world.state() is (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT)
        assert (await world.begin()).epoch == me.epoch + 2

    with_world(test)


def test_a_marker_that_a_partition_refuses_for_good_stops_the_errand_until_the_next_coordinator() -> None:
    async def test(world: World) -> None:
        me = await world.begin()
        await world.add(me, P0, P1)
        await world.end(me)
        (sent,) = world.post.sent
        sent.listener.refused(P0, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        assert sent.is_cancelled
        assert world.state() is State.PREPARE_COMMIT
        await world.fail_over()
        world.post.deliver()
        assert world.state() is State.COMPLETE_COMMIT

    with_world(test)


def test_records_that_cannot_be_read_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        shard = world.shard
        shard.replay(encode_key(ID), b"\0\1nonsense", 0, None)
        shard.replay(b"\0\7another kind", b"", 1, None)
        shard.replay(b"x", b"", 2, None)
        assert shard.id_count == 0
        assert caplog.text.count("Cannot read a record of the transaction topic") == 2

    with_world(test)
