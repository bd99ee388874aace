"""Consumer groups in virtual time: members come, go and die, their coordinator is killed and unplugged, by seed.

Each seed is one run of one group of the classic protocol, of the newer one, or of both at once. The history that the
members keep objects when an acknowledged commit is lost or goes back, or when a partition has two owners; at the end
everything is healed, and the group has to become stable with every partition owned.

The broker syncs every record before it acknowledges it: the loss window of the default policy is another test's matter.
TAILRACE_SIM_SEEDS sets how many seeds run, TAILRACE_SIM_SEED replays a single one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest

from tailrace.errors import KafkaError
from tailrace.groups.classic import ClassicProtocol
from tailrace.groups.consumer_group import ConsumerGroup
from tailrace.model import TopicPartition
from tailrace.testing.cluster.group_members import ClassicMember, ConsumerMember, GroupHistory
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import PORT, SimNode
from tests.simulation.seeds import chunks_of_seeds, name_of_chunk

SEEDS_PER_TEST = 25
GROUP, TOPIC, PARTITIONS = "billing", "orders", 5
PROTOCOLS = ("classic", "consumer", "both")
MAX_MEMBERS = 4
#: Long enough for every current session, rebalance and connection to end.
CALM_SECONDS = 120
NOTICE_SECONDS = 15
SETTINGS = {
    "log.flush.interval.messages": "1",
    "log.flush.offset.checkpoint.interval.ms": "1500",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "1000",
}


@dataclass
class Run:
    """One seed's world."""

    seed: int
    loop: SimLoop
    random: Random
    network: SimNetwork
    node: SimNode
    history: GroupHistory
    protocol: str
    topic_id: UUID
    members: dict[str, tuple[ClassicMember | ConsumerMember, asyncio.Task[None]]] = field(default_factory=dict)
    born: int = 0
    crashes: int = 0

    def new_member(self) -> None:
        self.born += 1
        name = f"member{self.born}"
        protocol = self.random.choice(["classic", "consumer"]) if self.protocol == "both" else self.protocol
        common = (name, GROUP, TOPIC, self.network.host(name), "broker", PORT, self.loop)
        random = self.loop.random_for(name)
        member: ClassicMember | ConsumerMember
        if protocol == "classic":
            member = ClassicMember(*common, random, self.history, partitions=PARTITIONS)
        else:
            member = ConsumerMember(*common, random, self.history, topic_id=self.topic_id)
        self.members[name] = member, self.loop.create_task(member.run())


async def simulate(seed: int) -> Run:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    random = loop.random_for("scenario")
    network = SimNetwork(loop, loop.random_for("network"))
    node = SimNode(loop, network, "broker", SETTINGS)
    broker = await node.start()
    await broker.metadata.create_topic(broker.metadata.plan_topic(TOPIC, PARTITIONS, 1, {}, {}))
    topic_id = broker.metadata.image.topics[TOPIC].topic_id
    protocol = PROTOCOLS[seed % len(PROTOCOLS)]
    history = GroupHistory(loop, counts_once=protocol != "both")
    run = Run(seed, loop, random, network, node, history, protocol, topic_id)
    for _ in range(random.randint(1, MAX_MEMBERS)):
        run.new_member()
    for _ in range(random.randint(4, 10)):
        await asyncio.sleep(random.uniform(0.1, 4.0))
        await disturb(run)
        check_members(run)
    network.heal()
    if not run.members:
        run.new_member()
    await end_stable(run)
    for member, task in run.members.values():
        member.is_leaving = True
        await task
    await check_offsets(run)
    await node.stop()
    return run


async def disturb(run: Run) -> None:
    """One fault of a member, of the coordinator or of the network between them."""
    random = run.random
    what = random.choice(
        ["come", "come", "leave", "die", "freeze", "freeze", "kill", "unplug", "unplug", "stop", "network"]
    )
    if what == "come":
        if len(run.members) < MAX_MEMBERS:
            run.new_member()
    elif what in ("leave", "die"):
        if run.members:
            name = random.choice(list(run.members))
            member, task = run.members.pop(name)
            if what == "leave":
                member.is_leaving = True
                await task
            else:
                task.cancel()
                await asyncio.wait([task])
                member.crash()
                run.network.crash(name)
    elif what == "freeze":
        # For less than a session, or for more.
        for member, _ in run.members.values():
            if random.random() < 0.5:
                member.freeze(random.uniform(1.0, 8.0))
    elif what == "network":
        for name in run.members:
            fate = random.choice(["nothing", "reset", "cut", "one way"])
            if fate == "reset":
                run.network.reset(name, "broker")
            elif fate != "nothing":
                run.network.cut(name, "broker", one_way=fate == "one way")
        await asyncio.sleep(random.uniform(0.1, 6.0))
        run.network.heal()
    else:
        if what == "stop":
            await run.node.stop()
        elif what == "kill":
            run.node.kill()
        else:
            run.node.unplug()
        run.crashes += 1
        await asyncio.sleep(random.uniform(0.01, 3.0))
        await run.node.start()


def check_members(run: Run) -> None:
    """A member that ended by itself has found a violation."""
    for _, task in run.members.values():
        if task.done():
            task.result()


def is_settled(run: Run) -> bool:
    """Whether members and coordinator agree that every partition has one owner, and nothing is in progress."""
    assert run.node.broker is not None
    try:
        group = run.node.broker.groups.shard(GROUP).describe(GROUP)
    except KafkaError:
        return False
    members = [member for member, _ in run.members.values()]
    owned = sorted(partition for member in members for partition in member.owned)
    if isinstance(group, ConsumerGroup):
        agree = all(
            member.member_id in group.members and group.members[member.member_id].epoch == member.epoch
            for member in members
        )
    else:
        agree = all(member.member_id in group.members and member.epoch == group.generation for member in members)
    return (
        group.state.value == "Stable"
        and agree
        and len(group.members) == len(members)
        and owned == list(range(PARTITIONS))
    )


async def end_stable(run: Run) -> None:
    """Without further faults the group becomes stable, and stays so."""
    # First, members must notice the last event: they may wait for an answer or for a session to end.
    await asyncio.sleep(NOTICE_SECONDS)
    deadline = run.loop.time() + CALM_SECONDS
    while not is_settled(run):
        check_members(run)
        assert run.node.broker is not None
        assert run.loop.time() < deadline, describe(run)
        await asyncio.sleep(0.5)
    generations = run.history.generations
    await asyncio.sleep(30)
    check_members(run)
    assert is_settled(run), describe(run)
    assert run.history.generations == generations, "a group that nobody disturbed was rebalanced"


def describe(run: Run) -> str:
    assert run.node.broker is not None
    members = [(member.name, member.member_id, member.epoch, member.owned) for member, _ in run.members.values()]
    try:
        group: object = run.node.broker.groups.shard(GROUP).describe(GROUP)
    except KafkaError as error:
        group = error
    return f"not stable after {CALM_SECONDS} s: {group}; its members: {members}"


async def check_offsets(run: Run) -> None:
    """Check that the group would continue from what was acknowledged last, or sent after that."""
    assert run.node.broker is not None
    offsets = run.node.broker.groups.shard(GROUP).offsets.of_group(GROUP)
    for partition in range(PARTITIONS):
        found = offsets.get(TopicPartition(TOPIC, partition))
        run.history.fetched(partition, -1 if found is None else found.offset, run.loop.time())


class Faults(logging.Handler):
    """Collects the faults that the broker itself reports: requests that it did not answer."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "fault of the broker" in record.getMessage():
            error = record.exc_info[1] if record.exc_info else None
            self.found.append(f"{record.getMessage()} ({error!r})")


def run_seed(seed: int) -> Run:
    faults = Faults()
    logger = logging.getLogger("tailrace")
    logger.addHandler(faults)
    try:
        run = SimLoop(seed, max_virtual_seconds=3600).run(simulate(seed))
        assert not faults.found
        return run
    except BaseException as error:
        error.add_note(f"replay with: TAILRACE_SIM_SEED={seed} pytest tests/simulation/test_groups.py")
        raise
    finally:
        logger.removeHandler(faults)


@pytest.mark.parametrize("seeds", chunks_of_seeds(SEEDS_PER_TEST, one_in=4), ids=name_of_chunk)
def test_no_acknowledged_commit_is_lost_and_no_partition_has_two_owners(seeds: list[int]) -> None:
    crashes = acknowledged = generations = 0
    for seed in seeds:
        run = run_seed(seed)
        crashes += run.crashes
        generations += run.history.generations
        acknowledged += sum(map(len, run.history.acknowledged.values()))
    print(f"seeds from {seeds[0]}: {crashes} crashes, {generations} generations, {acknowledged} commits acknowledged")
    assert min(crashes, generations, acknowledged) > 0


def test_the_same_seed_gives_the_same_trace() -> None:
    def digest(seed: int) -> tuple[int, int, int]:
        run = run_seed(seed)
        return run.node.disk.trace.digest, run.network.trace.digest, run.loop.steps

    assert digest(4242) == digest(4242)
    assert digest(4242) != digest(4243)


def seeds_until_caught(limit: int = 60) -> int:
    """Return how many seeds it takes until a check fails."""
    for seed in range(limit):
        try:
            run_seed(seed)
        except (AssertionError, BaseExceptionGroup):
            return seed + 1
    raise AssertionError(f"nobody noticed in {limit} seeds")


def test_the_history_catches_a_commit_that_is_acknowledged_before_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "log.flush.interval.messages", "1000000")
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_history_catches_commits_of_an_old_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicProtocol, "check_commit", lambda *arguments: None)
    monkeypatch.setattr("tailrace.groups.consumer.ConsumerProtocol.check_commit", lambda *arguments: None)
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_history_catches_an_owner_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerGroup, "is_free", lambda *arguments: True)
    print(f"caught after {seeds_until_caught()} seeds")
