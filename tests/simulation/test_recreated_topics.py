"""Topics that are deleted and created again under one name, while disks are unplugged and descriptors run out, by seed.

Every record says which incarnation of its topic it was written to: a topic never has records of another one, has all
that was promised to it, and the log directory stays online, as its disk never fails here.
TAILRACE_SIM_SEEDS sets how many seeds run, TAILRACE_SIM_SEED replays a single one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from random import Random

import pytest

from tailrace.cluster.image import TopicImage
from tailrace.errors import KafkaError
from tailrace.testing.cluster.mutations import DISK_MUTATIONS
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import SimNode
from tests.simulation.seeds import chunks_of_seeds, name_of_chunk
from tests.unit.storage.logs import append, batch, read_all

SEEDS_PER_TEST = 25
#: In some seeds, more logs than are synced one by one.
PARTITIONS = (2, 3, 12, 12, 40)
ADOPTED, LOST, OFFLINE = "adopted", "lost", "offline"


class Violation(AssertionError):
    """A violated invariant; the first word names it."""


class Run:
    """One seed: a broker, and several topics, one after the other, with the same name."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.random: Random = loop.random_for("scenario")
        network = SimNetwork(loop, loop.random_for("network"))
        settings = {"tailrace.flush.background.ms": "200", "log.flush.offset.checkpoint.interval.ms": "700"}
        self.node = SimNode(loop, network, "broker", settings)
        self.node.disk.interleaved_probability = 0.8
        self.partitions = self.random.choice(PARTITIONS)
        #: Whether logs are synced one by one before each promise, or many together in the background.
        self.configs = self.random.choice(({}, {"flush.messages": "1"}))
        self.topic: TopicImage | None = None
        self.incarnation = 0
        #: By partition: the number of records in the log of this incarnation, and how many must survive.
        self.written: Counter[int] = Counter()
        self.promised: Counter[int] = Counter()
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        await self.node.start()
        for _ in range(self.random.randint(12, 30)):
            step = self.random.choice((self.create, self.create, self.write, self.write, self.delete, self.interrupt))
            await step()
            self.require_online()
            await asyncio.sleep(self.random.choice((0.0, 0.001, self.random.uniform(0, 0.3), 1.0)))
            self.require_online()
        self.node.disk.lacks_descriptors = False
        await asyncio.sleep(30)
        self.check()
        await self.node.stop()

    async def create(self) -> None:
        if self.topic is not None:
            await self.delete()
        metadata = self.node.broker.metadata
        self.topic = metadata.plan_topic("fleeting", self.partitions, 1, {}, self.configs)
        self.incarnation += 1
        self.written.clear()
        self.promised.clear()
        await metadata.create_topic(self.topic)
        self.done["created"] += 1
        if self.random.random() < 0.3:
            # While the files of the previous topic are being removed.
            await asyncio.sleep(self.random.uniform(0, 0.06))
            await self.end("unplug")

    async def delete(self) -> None:
        if self.topic is not None:
            topic, self.topic = self.topic, None
            await self.node.broker.metadata.delete_topic(topic)
            self.done["deleted"] += 1

    async def write(self) -> None:
        """Append to some logs, and sometimes delete a topic during its sync."""
        self.note_promised()
        for _ in range(self.random.randint(1, 2 * self.partitions) if self.topic is not None else 0):
            number = self.random.randrange(self.partitions)
            try:
                log = self.node.broker.partitions.find("fleeting", number).log
                appended = append(log, batch(value=b"%d" % self.incarnation, timestamp=self.node.clock.wall_ms()))
            except (KafkaError, OSError):
                continue
            except Exception as error:
                if "too many open files" in str(error):
                    continue
                raise
            self.written[number] = appended.last_offset + 1
            if self.random.random() < 0.1:
                log.advance_start(self.random.randint(0, log.flushed_offset))

        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0.05, 0.25))
            self.require_online()
            await self.delete()

    def note_promised(self) -> None:
        """What is synced in the log now survives whatever comes."""
        if self.topic is None or self.node.broker is None:
            return
        for number in range(self.partitions):
            try:
                log = self.node.broker.partitions.find("fleeting", number).log
            except KafkaError:
                continue
            self.promised[number] = max(self.promised[number], log.flushed_offset)

    async def interrupt(self) -> None:
        how = self.random.choice(("unplug", "unplug", "kill", "stop", "descriptors", "descriptors"))
        self.done[how] += 1
        if how == "descriptors":
            self.node.disk.lacks_descriptors = True
            self.loop.call_later(self.random.uniform(0.01, 3), self.give_descriptors)
        else:
            await self.end(how)

    async def end(self, how: str) -> None:
        """End the broker, restart it, and check."""
        self.give_descriptors()
        self.note_promised()
        if how == "stop":
            await self.node.stop()
        elif how == "kill":
            self.node.kill()
        else:
            self.node.unplug()
        await asyncio.sleep(0.01)
        await self.node.start()
        self.check()

    def give_descriptors(self) -> None:
        self.node.disk.lacks_descriptors = False

    def require_online(self) -> None:
        for directory in self.node.broker.partitions.directories:
            if directory.failure is not None:
                raise Violation(f"{OFFLINE}: {directory.failure}")

    def check(self) -> None:
        self.require_online()
        for number in range(self.partitions) if self.topic is not None else ():
            log = self.node.broker.partitions.find("fleeting", number).log
            values = [record.value for record in read_all(log)]
            if strangers := [value for value in values if value != b"%d" % self.incarnation]:
                raise Violation(f"{ADOPTED}: fleeting-{number} of incarnation {self.incarnation} has {strangers[:3]}")
            if log.end_offset < self.promised[number] or log.start_offset > self.written[number]:
                found, promised = f"{log.start_offset} to {log.end_offset}", self.promised[number]
                raise Violation(f"{LOST}: fleeting-{number} is from {found}, up to {promised} it was durable")


def run_seed(seed: int) -> Counter[str]:
    loop = SimLoop(seed, max_virtual_seconds=3600)
    run = Run(loop, seed)
    try:
        loop.run(run.run())
    except BaseException as error:
        error.add_note(f"replay with: TAILRACE_SIM_SEED={seed} pytest tests/simulation/test_recreated_topics.py")
        raise
    return run.done


@pytest.mark.parametrize("seeds", chunks_of_seeds(SEEDS_PER_TEST, one_in=4), ids=name_of_chunk)
def test_a_topic_has_its_own_records_and_no_others_and_its_directory_stays_online(seeds: list[int]) -> None:
    done: Counter[str] = Counter()
    for seed in seeds:
        done += run_seed(seed)
    print(f"seeds {seeds[0]} to {seeds[-1]}: {dict(done)}")
    assert done["deleted"] > 0


#: Seeds that cause faults which few seeds cause.
KNOWN_SEEDS = {"checkpoints of a deleted topic apply to its namesake": (818,)}


@pytest.mark.parametrize("name", DISK_MUTATIONS)
def test_a_broken_rule_is_caught(name: str) -> None:
    mutations = DISK_MUTATIONS[name]
    with ExitStack() as stack:
        for mutation in mutations:
            stack.enter_context(mutation.switched_on())
        for seed in (*KNOWN_SEEDS.get(name, ()), *range(100)):
            found = violation_of(seed)
            if found is not None:
                print(f"caught by seed {seed}: {found}")
                assert found.split(":")[0] in mutations[0].caught_by
                return
    raise AssertionError("nobody noticed")


def violation_of(seed: int) -> str | None:
    try:
        run_seed(seed)
    except Violation as error:
        return str(error)
    return None
