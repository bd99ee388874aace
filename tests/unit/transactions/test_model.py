"""Whatever producers, time, refusals and failovers do: one producer at a time, one outcome for every partition.

Three clients fight for one transactional id. A model that knows only what they were answered says what must hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.batch import iterate_batches
from tailrace.transactions.states import LAST_EPOCH, ProducerIdentity, State
from tests.unit.replication.replicas import Replicas
from tests.unit.transactions.world import ID, P0, P1, P2, TIMEOUT_MS, World, code_of, with_world

PARTITIONS = (P0, P1, P2)
#: The second one speaks the older protocol.
IS_NEWER = (True, False, True)

CLIENTS = st.integers(0, 2)
ACTIONS = st.one_of(
    st.tuples(st.just("begin"), CLIENTS, st.booleans()),
    st.tuples(st.just("add"), CLIENTS, st.integers(0, 2)),
    st.tuples(st.just("add"), CLIENTS, st.integers(0, 2)),
    st.tuples(st.just("end"), CLIENTS, st.booleans()),
    st.tuples(st.just("end again"), CLIENTS, st.just(0)),
    st.tuples(st.just("arrive"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("seconds"), st.sampled_from([1, 5, 70]), st.just(0)),
    st.tuples(st.just("fail over"), st.just(0), st.just(0)),
    st.tuples(st.just("refuse"), st.just(0), st.booleans()),
    st.tuples(st.just("ids"), st.just(0), st.booleans()),
)


@dataclass(eq=False)
class Made:
    """A transaction, as its producer was answered."""

    owner: int
    began_at: float
    partitions: list[TopicPartition] = field(default_factory=list)
    #: None until it is decided.
    is_commit: bool | None = None


@dataclass
class Client:
    """A producer, and the last end that it asked for."""

    number: int
    me: ProducerIdentity | None = None
    last_end: tuple[ProducerIdentity, bool, Made | None] | None = None

    @property
    def is_newer(self) -> bool:
        return IS_NEWER[self.number]


class Model:
    """What must hold, by what was answered."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients = [Client(number) for number in range(3)]
        #: The client that was last made the producer.
        self.owner: int | None = None
        self.current: Made | None = None
        #: Who was given an identity.
        self.given: dict[ProducerIdentity, int] = {}
        self.checked = 0

    async def run(self, actions: list[tuple[str, int, Any]]) -> None:
        for kind, number, detail in actions:
            await getattr(self, "do_" + kind.replace(" ", "_"))(number, detail)
            self.check()
        await self.heal()

    # --- what clients do

    async def do_begin(self, number: int, names_itself: bool) -> None:
        client = self.clients[number]
        known = client.me if names_itself else None
        is_open = self.current is not None and self.current.is_commit is None
        try:
            me = await self.world.begin(known)
        except KafkaError as error:
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS and is_open:
                self.decided(False)
                if known is None:
                    self.owner = None  # its former owner never gets it back
            elif error.code is ErrorCode.PRODUCER_FENCED:
                assert known is not None
                assert self.owner != number or self.is_stale(client)
            return
        assert self.current is None or self.current.is_commit is not None
        assert known is None or number == self.owner
        self.give(number, me)
        self.owner, self.current = number, None

    def give(self, number: int, me: ProducerIdentity) -> None:
        """A client is given an identity, which nobody else ever had."""
        assert self.given.setdefault(me, number) == number
        self.clients[number].me = me

    def is_stale(self, client: Client) -> bool:
        """Whether it missed the answer that gave it another identity."""
        return client.me != self.world.transaction().identity

    async def do_add(self, number: int, partition: int) -> None:
        client = self.clients[number]
        if client.me is None:
            return
        try:
            await self.world.add(client.me, PARTITIONS[partition])
        except KafkaError:
            return
        assert number == self.owner
        if self.current is None or self.current.is_commit is not None:
            self.assert_complete()
            self.current = Made(number, self.world.loop.time())
        assert self.current.owner == number
        if PARTITIONS[partition] not in self.current.partitions:
            self.current.partitions.append(PARTITIONS[partition])

    async def do_end(self, number: int, is_commit: bool) -> None:
        client = self.clients[number]
        if client.me is None:
            return
        asked = client.me
        made = self.current if self.current is not None and self.current.is_commit is None else None
        try:
            after = await self.world.end(asked, is_commit, is_newer=client.is_newer)
        except KafkaError:
            return
        assert number == self.owner
        client.last_end = (asked, is_commit, made)
        if made is not None:
            assert made.owner == number
            self.decided(is_commit)
        elif not client.is_newer:
            # An older client cannot be told from one that repeats its request.
            assert self.current is None or self.current.is_commit == is_commit
        if client.is_newer:
            self.give(number, after)

    async def do_end_again(self, number: int, _: Any) -> None:
        """Ask again for what was answered already, as a client does that lost the answer."""
        client = self.clients[number]
        if client.last_end is None:
            return
        asked, is_commit, made = client.last_end
        try:
            after = await self.world.end(asked, is_commit, is_newer=client.is_newer)
        except KafkaError:
            return
        assert number == self.owner
        if client.is_newer:
            assert after == client.me
            assert made is None or made is self.current
        elif self.current is not None and self.current.is_commit is None:
            self.decided(is_commit)  # the older protocol takes it for the end of the next transaction

    def decided(self, is_commit: bool) -> None:
        assert self.current is not None
        assert self.current.is_commit is None
        self.current.is_commit = is_commit

    # --- what else happens

    async def do_arrive(self, count: int, _: Any) -> None:
        for sent in self.world.post.under_way[:1]:
            sent.arrive(*list(sent.partitions)[:count])

    async def do_seconds(self, seconds: int, _: Any) -> None:
        await self.world.pass_seconds(seconds)
        state = self.world.shard._transactions.get(ID)
        made = self.current
        if made is not None and made.is_commit is None and (state is None or state.state is not State.ONGOING):
            assert self.world.loop.time() - made.began_at >= TIMEOUT_MS / 1000
            self.decided(False)

    async def do_fail_over(self, _: int, __: Any) -> None:
        before = dict(self.world.shard._transactions)
        await self.world.fail_over()
        assert self.world.shard._transactions == before

    async def do_refuse(self, _: int, is_refused: bool) -> None:
        self.world.refuse_writes(is_refused)

    async def do_ids(self, _: int, has_ids: bool) -> None:
        self.world.has_ids = has_ids

    # --- what must hold

    def check(self) -> None:
        """Markers that were sent since say what was decided, and go where something was added."""
        for marker, partition in self.world.post.arrived[self.checked :]:
            assert self.current is not None
            assert marker.is_commit == self.current.is_commit
            assert partition in self.current.partitions
        self.checked = len(self.world.post.arrived)
        for sent in self.world.post.under_way:
            assert self.current is not None
            assert self.current.is_commit == sent.marker.is_commit
            assert set(sent.partitions) <= set(self.current.partitions)
        transaction = self.world.shard._transactions.get(ID)
        if transaction is not None and transaction.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            self.assert_complete()

    def assert_complete(self) -> None:
        """Every partition of the last transaction has its marker."""
        if self.current is not None and self.current.is_commit is not None:
            have = {partition for _, partition in self.world.post.arrived}
            assert set(self.current.partitions) <= have

    async def heal(self) -> None:
        """Without faults, every transaction ends, and the next producer can work."""
        world = self.world
        world.refuse_writes(False)
        world.has_ids = True
        await world.fail_over()
        await self.do_seconds(80, None)
        for _ in range(5):
            world.post.deliver()
            await world.pass_seconds(1)
        self.check()
        assert world.shard.open_count == 0
        me = await world.begin_at_last()
        await world.add(me, P0)
        after = await world.end(me)
        world.post.deliver()
        assert world.state() is State.COMPLETE_COMMIT
        assert world.transaction().identity == after


@settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(ACTIONS, min_size=5, max_size=60), st.booleans())
@example([("begin", 0, False), ("add", 0, 0), ("begin", 2, False), ("end again", 0, 0), ("arrive", 4, 0)], True)
def test_there_is_one_producer_and_one_outcome(actions: list[tuple[str, int, Any]], is_nearly_exhausted: bool) -> None:
    async def test(world: World) -> None:
        model = Model(world)
        if is_nearly_exhausted:
            await exhaust(world)
        await model.run(actions)

    with_world(test)


async def exhaust(world: World) -> None:
    """Begin two epochs before the last one."""
    await world.begin()
    almost = replace(world.transaction(), producer_epoch=LAST_EPOCH - 2)
    world.shard._write(ID, almost, None)


def test_every_prefix_of_a_journal_is_a_state_that_ends() -> None:
    """A coordinator may fail after any record: the next one ends what is decided, and serves the next producer."""

    async def test(world: World) -> None:
        first = await world.begin()
        await world.add(first, P0)
        await world.add(first, P1)
        first = await world.end(first)
        world.post.deliver()
        await world.add(first, P1)
        first = await world.end(first, False)
        world.post.deliver()
        await world.add(first, P2)
        await code_of(world.begin())
        world.post.deliver()
        second = await world.begin()
        await world.add(second, P0)
        await world.pass_seconds(80)
        world.post.deliver()
        second = await world.begin(second)
        second = await world.end(second, False)
        replica = world.replicas.leader
        log = replica.partition.log
        part = log.read(0, 1 << 20, log.end_offset)
        assert part is not None
        data = part.file.read(part.position, part.size)
        count = log.end_offset
        assert count >= 15
        for end_offset in range(1, count + 1):
            await ends(world, data, end_offset)

    with_world(test)


async def ends(world: World, data: bytes, end_offset: int) -> None:
    """Load a shard from the first records of a journal, and let it work."""
    world.shards.close()
    world.post.sent.clear()
    world.replicas = Replicas(world.loop)
    world.replicas.change(isr=(1,))
    for position, header in iterate_batches(memoryview(data)):
        if header.base_offset < end_offset:
            batch = bytearray(data[position : position + header.size])
            world.replicas.leader.partition.append_own(memoryview(batch), -1)
    world.shards = world._new_shards()
    world.lead()
    await world.pass_seconds(0.1)
    loaded = world.transaction()
    for sent in world.post.sent:
        assert sent.marker.is_commit == (loaded.state is State.PREPARE_COMMIT)
        assert list(sent.partitions) == list(loaded.partitions)
    await world.pass_seconds(80)
    world.post.deliver()
    assert world.shard.open_count == 0
    me = await world.begin_at_last()
    assert me.producer_id == loaded.producer_id
    assert me.epoch > loaded.producer_epoch
    await world.add(me, P0)
    await world.end(me)
    world.post.deliver()
    assert world.state() is State.COMPLETE_COMMIT
