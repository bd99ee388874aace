"""Many topics changed at once, and ISRs: whole or not at all, checked, and never twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import pytest

from tailrace.cluster.image import PartitionState, TopicImage
from tailrace.cluster.keys import broker_epoch_key, epoch_to_bytes, topic_key
from tailrace.cluster.metadata import IsrChange
from tailrace.cluster.store import MAX_OPERATIONS, Check, Unavailable, Write
from tailrace.errors import TailraceError
from tailrace.stores.memory import MemorySpace, MemoryStore
from tests.unit.cluster.worlds import Member, World, run, state


class CountingStore(MemoryStore):
    """A store that remembers its transactions, and loses what a test has it lose."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.transactions: list[tuple[Sequence[Check], Sequence[Write]]] = []
        self.before_txn: Callable[[], None] = _nothing
        #: Applied when a test says so: a transaction whose sender has given up.
        self.late: list[tuple[Sequence[Check], Sequence[Write]]] = []
        self.loses = 0

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        self.transactions.append((checks, writes))
        self.before_txn()
        if self.loses:
            self.loses -= 1
            self.late.append((checks, writes))
            raise Unavailable("no answer")
        return await super().txn(checks, writes)


def _nothing() -> None:
    """Nothing happens in between."""


async def member_of(world: World) -> tuple[Member, CountingStore]:
    store = CountingStore(world.space)
    member = Member(store, world.clock, 1)
    await member.metadata.load("cluster")
    store.transactions.clear()
    return member, store


def configured(topic: TopicImage) -> TopicImage:
    return replace(topic, configs=MappingProxyType({**topic.configs, "a": "b"}))


def rewrite(world: World, topic: TopicImage) -> None:
    """Change a topic behind a broker's back."""
    key = topic_key(topic.lineage)
    entry = world.space.get(key)
    assert entry is not None
    stored = TopicImage.from_bytes(entry.value)
    count = int(stored.configs.get("count", "0")) + 1
    changed = replace(stored, configs=MappingProxyType({**stored.configs, "count": str(count)}))
    world.space.txn([], [(key, changed.to_bytes(), 0)])


def test_many_topics_go_into_few_transactions() -> None:
    async def test(world: World) -> None:
        topics = [await world.put_topic(f"t{number}", state("12", "12", 1)) for number in range(120)]
        member, store = await member_of(world)
        fence = Check("/fence", 0)
        await member.metadata.alter_topics({topic.lineage: configured for topic in topics}, [fence])
        assert [len(writes) for _, writes in store.transactions] == [49, 49, 22]
        assert all(len(checks) + len(writes) <= MAX_OPERATIONS for checks, writes in store.transactions)
        assert all(checks[0] == fence for checks, _ in store.transactions)
        for topic in topics:
            assert member.metadata.image.topics[topic.name] == configured(topic) == await world.stored(topic)

    run(test)


def test_a_topic_of_a_newer_format_is_left_alone_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        newer, *others = [await world.put_topic(f"t{number}", state("12", "12", 1)) for number in range(3)]
        member, _ = await member_of(world)
        value = b'{"version":99}'
        await world.put(topic_key(newer.lineage), value)
        await member.metadata.alter_topics({topic.lineage: configured for topic in (newer, *others)})
        assert [await world.stored(topic) for topic in others] == [configured(topic) for topic in others]
        entry = await world.store.get(topic_key(newer.lineage))
        assert entry is not None
        assert entry.value == value
        assert member.metadata.image.topics["t0"] == newer, "as it was known before"
        assert "Cannot change a topic: a topic is stored in format 99" in caplog.text

    run(test)


def test_large_topics_go_into_transactions_of_half_a_mebibyte() -> None:
    async def test(world: World) -> None:
        large = [state("123", "123", 1)] * 11_000
        topics = [await world.put_topic(f"t{number}", *large) for number in range(5)]
        member, store = await member_of(world)
        await member.metadata.alter_topics({topic.lineage: configured for topic in topics})
        sizes = [sum(len(write.value or b"") for write in writes) for _, writes in store.transactions]
        assert max(sizes) <= 512 << 10
        assert len(sizes) == 3

    run(test)


def test_one_topic_that_others_keep_changing_does_not_hold_up_the_rest() -> None:
    async def test(world: World) -> None:
        topics = [await world.put_topic(f"t{number}", state("12", "12", 1)) for number in range(10)]
        member, store = await member_of(world)
        attempts = 0

        def interfere() -> None:
            nonlocal attempts
            attempts += 1
            if attempts <= 6:
                rewrite(world, topics[0])

        store.before_txn = interfere
        await member.metadata.alter_topics({topic.lineage: configured for topic in topics})
        for topic in topics:
            assert (await world.stored(topic)).configs["a"] == "b"
        assert (await world.stored(topics[0])).configs["count"] == "6", "what the others did is kept"
        assert member.metadata.image.topics["t0"] == await world.stored(topics[0])

    run(test)


def test_topics_that_need_no_change_or_are_gone_cost_nothing() -> None:
    async def test(world: World) -> None:
        topics = [await world.put_topic(f"t{number}", state("12", "12", 1)) for number in range(3)]
        member, store = await member_of(world)
        changes = {topic.lineage: (lambda each: replace(each)) for topic in topics[:2]}
        await member.metadata.alter_topics({**changes, UUID(int=1): configured})
        assert store.transactions == []
        world.space.txn([], [(topic_key(topics[2].lineage), None, 0)])
        await member.metadata.alter_topics({topics[2].lineage: configured})
        assert sorted(member.metadata.image.topics) == ["t0", "t1"]

    run(test)


def test_a_check_that_fails_for_good_ends_it_and_nothing_is_written() -> None:
    class Deposed(TailraceError):
        pass

    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("12", "12", 1))
        member, _ = await member_of(world)

        async def recheck() -> Sequence[Check]:
            raise Deposed("somebody else rules")

        with pytest.raises(Deposed):
            await member.metadata.alter_topics({topic.lineage: configured}, [Check("/fence", 99)], recheck)
        assert await world.stored(topic) == topic

    run(test)


# --- ISRs


async def isr_world(world: World, *states: PartitionState) -> tuple[Member, CountingStore, TopicImage]:
    topic = await world.put_topic("orders", *states)
    await world.store.txn(
        [], [Write(broker_epoch_key(broker_id), epoch_to_bytes(broker_id * 10)) for broker_id in (1, 2, 3)]
    )
    member, store = await member_of(world)
    return member, store, topic


def test_leaders_change_isrs_in_one_write_for_each_topic() -> None:
    async def test(world: World) -> None:
        member, store, topic = await isr_world(
            world, state("123", "123", 1), state("123", "1", 1), state("123", "1", 1)
        )
        await member.metadata.alter_isr(
            [
                IsrChange(topic.lineage, 0, 5, (1, 3), {}),
                IsrChange(topic.lineage, 1, 5, (1, 2, 3), {2: 20, 3: 30}),
            ]
        )
        assert len(store.transactions) == 1
        expected = (state("123", "13", 1), state("123", "123", 1), state("123", "1", 1))
        assert (await world.stored(topic)).partitions == member.metadata.image.topics["orders"].partitions == expected

    run(test)


@pytest.mark.parametrize(
    "change",
    [
        IsrChange(UUID(int=1), 0, 5, (1, 2), {2: 20}),  # no such topic
        IsrChange(UUID(int=0), 1, 5, (1, 2), {2: 20}),  # no such partition
        IsrChange(UUID(int=0), 0, 4, (1, 2), {2: 20}),  # of an earlier epoch
        IsrChange(UUID(int=0), 0, 6, (1, 2), {2: 20}),
        IsrChange(UUID(int=0), 0, 5, (1, 2), {2: 19}),  # for fetches of an earlier process
        IsrChange(UUID(int=0), 0, 5, (1, 4), {4: 40}),  # of a broker that never was
        IsrChange(UUID(int=0), 0, 5, (2,), {2: 20}),  # without the leader
    ],
)
def test_a_leader_that_is_out_of_date_changes_no_isr(change: IsrChange) -> None:
    async def test(world: World) -> None:
        member, _, topic = await isr_world(world, state("123", "13", 1))
        wanted = replace(change, lineage=topic.lineage) if change.lineage.int == 0 else change
        await member.metadata.alter_isr([wanted])
        assert await world.stored(topic) == topic

    run(test)


def test_a_broker_that_does_not_lead_changes_no_isr() -> None:
    async def test(world: World) -> None:
        member, _, topic = await isr_world(world, state("123", "123", 2))
        await member.metadata.alter_isr([IsrChange(topic.lineage, 0, 5, (1, 2), {})])
        assert await world.stored(topic) == topic

    run(test)


def test_a_follower_that_starts_again_in_between_is_not_added() -> None:
    async def test(world: World) -> None:
        member, store, topic = await isr_world(world, state("123", "1", 1))
        store.before_txn = lambda: None if len(store.transactions) > 1 else _start_again(world, 2, 21)
        await member.metadata.alter_isr([IsrChange(topic.lineage, 0, 5, (1, 2), {2: 20})])
        assert (await world.stored(topic)).partitions == (state("123", "1", 1),)

    run(test)


def _start_again(world: World, broker_id: int, epoch: int) -> None:
    world.space.txn([], [(broker_epoch_key(broker_id), epoch_to_bytes(epoch), 0)])


def test_a_leader_that_was_deposed_in_between_changes_no_isr_and_learns_of_it() -> None:
    async def test(world: World) -> None:
        member, store, topic = await isr_world(world, state("123", "123", 1))
        deposed = replace(topic, partitions=(state("123", "23", 2, 6),))

        def depose() -> None:
            if len(store.transactions) == 1:
                world.space.txn([], [(topic_key(topic.lineage), deposed.to_bytes(), 0)])

        store.before_txn = depose
        await member.metadata.alter_isr([IsrChange(topic.lineage, 0, 5, (1, 2), {})])
        assert await world.stored(topic) == member.metadata.image.topics["orders"] == deposed

    run(test)


def test_a_follower_that_left_in_between_is_not_brought_back_by_a_change_that_was_made_before() -> None:
    async def test(world: World) -> None:
        member, store, topic = await isr_world(world, state("123", "123", 1), state("123", "123", 1))
        left = replace(topic, partitions=(state("123", "13", 1), state("123", "123", 1)))

        def leave() -> None:
            if len(store.transactions) == 1:
                world.space.txn([], [(topic_key(topic.lineage), left.to_bytes(), 0)])

        store.before_txn = leave
        # The leader removes broker 3, which is slow. It does not know yet that broker 2 has crashed and left.
        await member.metadata.alter_isr(
            [IsrChange(topic.lineage, 0, 5, (1, 2), {}), IsrChange(topic.lineage, 1, 5, (1, 2), {})]
        )
        assert (await world.stored(topic)).partitions == (state("123", "13", 1), state("123", "12", 1))

    run(test)


@pytest.mark.parametrize("wants_it_still", [True, False])
def test_what_was_not_answered_can_not_be_applied_any_more_once_a_change_returns(wants_it_still: bool) -> None:
    async def test(world: World) -> None:
        member, store, topic = await isr_world(world, state("123", "1", 1))
        growth = IsrChange(topic.lineage, 0, 5, (1, 2), {2: 20})
        store.loses = 1
        with pytest.raises(Unavailable):
            await member.metadata.alter_isr([growth])
        assert member.metadata.is_doubtful(topic.lineage)
        await member.metadata.alter_isr([growth if wants_it_still else IsrChange(topic.lineage, 0, 5, (1,), {})])
        assert not member.metadata.is_doubtful(topic.lineage)
        shown = member.metadata.image.topics["orders"]
        assert shown.partitions == (state("123", "12" if wants_it_still else "1", 1),)
        ((checks, writes),) = store.late
        assert world.space.txn(checks, [(write.key, write.value, 0) for write in writes]) is None
        assert await world.stored(topic) == shown

    run(test)


def test_what_was_applied_and_not_answered_is_learned_by_the_next_attempt() -> None:
    async def test(world: World) -> None:
        member, store, topic = await isr_world(world, state("123", "1", 1))
        growth = IsrChange(topic.lineage, 0, 5, (1, 2), {2: 20})
        store.loses = 1
        with pytest.raises(Unavailable):
            await member.metadata.alter_isr([growth])
        ((checks, writes),) = store.late
        assert world.space.txn(checks, [(write.key, write.value, 0) for write in writes]) is not None
        await member.metadata.alter_isr([growth])
        assert member.metadata.image.topics["orders"].partitions == (state("123", "12", 1),)

    run(test)
