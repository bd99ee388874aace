"""One seed of a simulated cluster: load, faults, healing, and all checks.

Owns the order of a run: brokers start, clients start, faults happen for two virtual minutes or more, then all is healed
and the cluster must recover within a bounded time. Everything follows from the seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tailrace.errors import KafkaError
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.testing.cluster.ambushes import ClusterAmbushes
from tailrace.testing.cluster.checkers import (
    check_leader_order,
    check_promises,
    check_records,
    check_replicas_are_equal,
    what_is_missing,
)
from tailrace.testing.cluster.client import ClusterClient
from tailrace.testing.cluster.faults import ClusterFaults
from tailrace.testing.cluster.group_members import GroupHistory
from tailrace.testing.cluster.history import (
    ACKS_ALL,
    GROUP_OFFSETS,
    LIVENESS,
    SELF,
    ClusterHistory,
    Violation,
)
from tailrace.testing.cluster.impostor import Impostor
from tailrace.testing.cluster.load import GROUP, ORDERS, ClusterLoad
from tailrace.testing.cluster.machines import ClusterLog, SimCluster
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.cluster.wider_run import WiderRun, is_wider
from tailrace.testing.cluster.workload import add_partitions, create_topic
from tailrace.testing.loop import SimLoop
from tailrace.testing.process import current_process
from tailrace.testing.work import records_cost_time

LOAD_SECONDS = 120.0
MIN_FAULTS = 10
#: The time after the last fault within which everything is in sync again, and all clients have finished.
WHOLE_SECONDS = 180.0
_LOOK_SECONDS = 0.25
_CALM_SECONDS = 5.0
AUDIT, LATE = "audit", "late"
#: Two of five seeds have an archived topic too; the others run as before.
_ARCHIVED_OF_FIVE = (1, 3)


def has_archive(seed: int) -> bool:
    """True if a seed has an archived topic."""
    return seed % 5 in _ARCHIVED_OF_FIVE


@dataclass(slots=True)
class RunReport:
    """The result of one seed."""

    seed: int
    brokers: int
    virtual_seconds: float
    faults: dict[str, int]
    store_faults: int
    acknowledged: int
    committed: int
    commits: int
    elections: int
    #: The amount of the archived topic that is archived, and the number of commits; 0 without one.
    archived: int
    archive_versions: int
    steps: int
    digest: str
    #: What only wider runs have, and how often.
    further: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"seed {self.seed}: {self.virtual_seconds:.0f} s virtual, {self.brokers} brokers, "
            f"{sum(self.faults.values())} faults ({faults}; {self.store_faults} of the store), "
            f"{self.acknowledged} records acknowledged, {self.commits} group commits, "
            f"{self.archived} records archived by {self.archive_versions} commits, "
            + "".join(f"{count} {what}, " for what, count in self.further.items())
            + f"{self.elections} controllers, trace {self.digest}"
        )


async def simulate(
    seed: int, prepare: Callable[[SimCluster], None] = lambda cluster: None, favoured: str | None = None
) -> RunReport:
    """Run one seed in the running loop; a favoured kind of fault happens far more often."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    random = loop.random_for("scenario")
    brokers = random.choice([3, 3, 3, 4, 5])
    settings = {"log.flush.interval.messages": random.choice(["1", "7"])} if random.random() < 0.2 else {}
    if has_archive(seed):
        from tailrace.testing.cluster.archived_topic import SETTINGS

        settings.update(SETTINGS)
    wider = WiderRun(loop.random_for("wider"), favoured) if is_wider(seed) else None
    if wider is not None:
        settings.update(wider.settings)
    cluster = SimCluster(loop, brokers, settings)
    log = ClusterLog(cluster, _process_name)
    logger = logging.getLogger("tailrace")
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    prepare(cluster)
    history = ClusterHistory(loop)
    watch = ClusterWatch(cluster, history)
    try:
        with records_cost_time() if wider is not None else nullcontext():
            return await _run(seed, cluster, history, watch, log, random, wider, favoured)
    except BaseException as error:
        for line in [f"the last events before {loop.time():.3f} s:", *cluster.events.tail(80).splitlines()]:
            error.add_note(line)
        raise
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)


def _process_name() -> str:
    process = current_process()
    return "-" if process is None else process.name


async def _run(
    seed: int,
    cluster: SimCluster,
    history: ClusterHistory,
    watch: ClusterWatch,
    log: ClusterLog,
    random: Random,
    wider: WiderRun | None,
    favoured: str | None,
) -> RunReport:
    loop = cluster.loop
    pause_seconds = random.choice([0.4, 0.8, 1.6])
    load = ClusterLoad(cluster, history, watch, random, pause_seconds, GroupHistory(loop, counts_once=False), log)
    if wider is not None:
        wider.prepare(cluster, load)
    # Three start at once; others may join under load.
    first = cluster.nodes if random.random() < 0.5 else cluster.nodes[:3]
    for node in first:
        node.launch()
    await _within(60.0, "the brokers do not start", *[node.wait_until_serving() for node in first])
    admin = load.client("admin")
    partitions = random.randint(1, 3)
    await _within(30.0, "no topic is created", create_topic(admin, ORDERS, partitions, {}))
    configs = {"flush.messages": "1"} if random.random() < 0.3 else {}
    await _within(30.0, "no topic is created", create_topic(admin, AUDIT, 1, configs))
    for number in range(partitions):
        load.produce(TopicPartition(ORDERS, number), ACKS_ALL, is_idempotent=True)
        load.consume(TopicPartition(ORDERS, number))
    load.produce(TopicPartition(ORDERS, 0), ACKS_ALL)
    load.produce(TopicPartition(AUDIT, 0), 2)
    load.produce(TopicPartition(AUDIT, 0), 1)
    load.consume(TopicPartition(AUDIT, 0))
    orders = next(topic for topic in watch.topics.values() if topic.name == ORDERS)
    if has_archive(seed):
        await _begin_archive(load, admin)
    if wider is not None:
        await _within(60.0, "no topic is created", wider.begin(load, admin))
    for _ in range(random.randint(1, 3)):
        load.join(orders.topic_id, partitions)
    faults = ClusterFaults(cluster, history, watch, loop.random_for("faults"), load.names, favoured=favoured)
    ClusterAmbushes(faults, loop.random_for("ambushes"))
    until = loop.time() + LOAD_SECONDS
    work = [
        loop.create_task(faults.run(until, MIN_FAULTS), name="faults"),
        loop.create_task(_change_topics(load, admin, partitions, until), name="changes of topics"),
        loop.create_task(Impostor(cluster, watch).run(until), name="impostor"),
    ]
    if wider is not None:
        work += wider.tasks(load, faults, until)
    await _look_until_done(load, log, work)
    await _look_until_done(load, log, [loop.create_task(faults.heal(), name="healing")])
    await _become(load, log, lambda: what_is_missing(cluster, watch))
    if wider is not None:
        wider.healed(load)
    _read_all_again(load)
    for producer in load.producers:
        producer.is_stopping = True
    for member in load.members:
        member.is_leaving = True
    await _become(load, log, lambda: [*what_is_missing(cluster, watch), *_unfinished(load)])
    check_replicas_are_equal(cluster, watch, history)
    _check_group(load, partitions)
    check_promises(history, watch)
    check_leader_order(watch, history.promises)
    check_records(history, [*load.producers, *load.ended_producers])
    if wider is not None:
        wider.check()
    for task in load.tasks:
        task.cancel()
    report = RunReport(
        seed,
        len(cluster.nodes),
        loop.time(),
        faults.injected,
        sum(cluster.coordination.injected.values()),
        len(history.promises),
        sum(len(records) for partition, records in history.committed.items() if partition.topic != OFFSETS_TOPIC),
        sum(map(len, load.groups.acknowledged.values())),
        watch.elections,
        load.archive.archived_end if load.archive is not None else 0,
        len(load.archive.checks.heads) if load.archive is not None else 0,
        loop.steps,
        cluster.digest(),
        wider.counts() if wider is not None else {},
    )
    for node in cluster.nodes:
        await node.stop()
    load.watch.look()
    _check_log(log)
    return report


async def _begin_archive(load: ClusterLoad, admin: ClusterClient) -> None:
    """Start an archived topic, with producers, readers that sometimes start over, and archivers."""
    from tailrace.testing.cluster.archived_topic import CONFIGS, ArchivedTopic

    loop = load.cluster.loop
    archive = load.archive = ArchivedTopic(load.cluster, load.history, loop.random_for("archive"))
    await _within(30.0, "no topic is created", create_topic(admin, archive.partition.topic, 1, CONFIGS))
    load.produce(archive.partition, ACKS_ALL, is_idempotent=True)
    load.produce(archive.partition, 1)
    load.consume(archive.partition, starts_over=0.05)
    load.tasks += archive.begin(load.client)


def _read_all_again(load: ClusterLoad) -> None:
    """Make readers that start over read everything once more, archived or not, now that nothing fails."""
    if load.archive is not None:
        load.archive.location.is_away = False
    for consumer in load.consumers:
        if consumer.starts_over:
            consumer.starts_over, consumer.shall_start_over = 0.0, True


async def _within(seconds: float, otherwise: str, *work: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            for each in work:
                await each
    except TimeoutError:
        raise Violation(LIVENESS, f"{otherwise} within {seconds:.0f} s") from None


async def _change_topics(load: ClusterLoad, admin: ClusterClient, partitions: int, until: float) -> None:
    """Create topics and add partitions under load, and give the new ones producers and readers."""
    random, loop = load.random, load.cluster.loop
    late = 0
    audit = 1
    while True:
        await asyncio.sleep(random.uniform(15.0, 50.0))
        if loop.time() >= until:
            return
        if random.random() < 0.5 and late < 3:
            late += 1
            await create_topic(admin, f"{LATE}-{late}", 1, {})
            load.use(TopicPartition(f"{LATE}-{late}", 0))
        elif audit < 4:
            audit += 1
            await add_partitions(admin, AUDIT, audit)
            load.use(TopicPartition(AUDIT, audit - 1))


async def _look_until_done(load: ClusterLoad, log: ClusterLog, work: Sequence[asyncio.Task[None]]) -> None:
    """Check while tasks run; the first problem ends the run at once, or a later one would hide it."""
    loop = load.cluster.loop
    deadline = loop.time() + LOAD_SECONDS + WHOLE_SECONDS
    while True:
        for task in work:
            if task.done():
                task.result()
        if all(task.done() for task in work):
            return
        if loop.time() > deadline:
            raise Violation(LIVENESS, "brokers that should be back, or changes of topics, do not finish")
        _look(load, log)
        await asyncio.sleep(_LOOK_SECONDS)


def _look(load: ClusterLoad, log: ClusterLog) -> None:
    load.watch.look()
    if load.archive is not None:
        load.archive.checks.look()
    load.check()
    _check_log(log)


def _check_log(log: ClusterLog) -> None:
    if log.forbidden:
        raise Violation(SELF, log.forbidden[0])


async def _become(load: ClusterLoad, log: ClusterLog, what_is_missing: Callable[[], list[str]]) -> None:
    """Wait until everything is healthy, within a bounded time, and stays so; there are no more faults."""
    loop = load.cluster.loop
    deadline = loop.time() + WHOLE_SECONDS
    calm_since: float | None = None
    while calm_since is None or loop.time() - calm_since < _CALM_SECONDS:
        _look(load, log)
        missing = what_is_missing()
        if missing:
            calm_since = None
            if loop.time() > deadline:
                raise Violation(LIVENESS, f"after {WHOLE_SECONDS:.0f} s: {'; '.join(missing)}")
        elif calm_since is None:
            calm_since = loop.time()
        await asyncio.sleep(_LOOK_SECONDS)


def _unfinished(load: ClusterLoad) -> list[str]:
    """Return the clients that wait for a response, have not left, or have not read all committed records."""
    unfinished = [f"{each.name} waits for answers" for each in load.producers if not each.is_done]
    unfinished += [
        f"{task.get_name()} has not left" for task in load.tasks if task.get_name().startswith("m") and not task.done()
    ]
    for consumer in load.consumers:
        end = load.history.committed_end(consumer.partition)
        if consumer.offset < end or consumer.shall_start_over:
            unfinished.append(f"{consumer.name} is at {consumer.offset} of {end} in {consumer.partition}")
    ends: dict[TopicPartition, int] = {}
    for node in load.cluster.nodes:
        for replica in node.broker.partitions if node.broker is not None else ():
            partition = load.watch.key_of(replica)
            if partition.topic in load.watch.deleted:
                continue
            end = ends.setdefault(partition, replica.log.end_offset)
            if end != replica.log.end_offset or replica.high_watermark != end:
                unfinished.append(
                    f"{partition} on {node.name} ends at {replica.log.end_offset}, not {end}, "
                    f"committed to {replica.high_watermark}"
                )
    return unfinished


def _check_group(load: ClusterLoad, partitions: int) -> None:
    """Check that the group's offsets are those acknowledged last, or sent after that."""
    for node in load.cluster.nodes:
        assert node.broker is not None
        try:
            shard = node.broker.groups.shard(GROUP)
        except KafkaError:
            continue
        offsets = shard.offsets.of_group(GROUP)
        for number in range(partitions):
            found = offsets.get(TopicPartition(ORDERS, number))
            try:
                load.groups.fetched(number, -1 if found is None else found.offset, load.cluster.loop.time())
            except AssertionError as error:
                raise Violation(GROUP_OFFSETS, str(error)) from error


def run_seed(
    seed: int, prepare: Callable[[SimCluster], None] = lambda cluster: None, favoured: str | None = None
) -> RunReport:
    """Run one seed in its own loop; errors say how to run it alone."""
    try:
        return SimLoop(seed, max_virtual_seconds=3600, max_steps=50_000_000).run(simulate(seed, prepare, favoured))
    except BaseException as error:
        arguments = f" ARGS=\"--favour '{favoured}'\"" if favoured is not None else ""
        error.add_note(f"run it alone with: make sim SEEDS=1 FIRST={seed}{arguments}")
        raise
