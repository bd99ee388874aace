"""What wider runs of a simulated cluster add: more topics, clients and faults, and work that costs time.

Owns which seeds are wider, and what belongs to such a run. The other seeds run as before, so that seeds that once found
something still show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from tailrace.model import INTERNAL_TOPICS, TopicPartition
from tailrace.testing.cluster.client import ClusterClient
from tailrace.testing.cluster.disasters import BLACKOUT, ClusterDisasters
from tailrace.testing.cluster.faults import ClusterFaults
from tailrace.testing.cluster.group_reader import GroupReading
from tailrace.testing.cluster.history import STALLED, Violation
from tailrace.testing.cluster.load import ORDERS, ClusterLoad
from tailrace.testing.cluster.machines import SimCluster
from tailrace.testing.cluster.topic_changes import FleetingTopic, TopicChanges
from tailrace.testing.cluster.workload import create_topic
from tailrace.testing.process import Process
from tailrace.testing.work import MOST_SECONDS_A_STEP

#: Seeds from here on are wider.
FIRST_WIDER_SEED = 50_000_000
#: The probability, after each response, that a reader of data that may rot starts over.
_STARTS_OVER = 0.1
_LEDGER, _LOOSE = "ledger", "loose"
#: Producers that are silent longer are forgotten.
_EXPIRATION_MS = 60_000
#: Producers expire by the clocks of brokers, so clocks may not be off by more than the remaining time.
_MOST_SKEW_MS = 4_000
_EVERY_RECORD = {"log.flush.interval.messages": "1"}
_SETTINGS = {
    "producer.id.expiration.ms": str(_EXPIRATION_MS),
    "log.retention.check.interval.ms": "3000",
}


def is_wider(seed: int) -> bool:
    """True if a seed has everything."""
    return seed >= FIRST_WIDER_SEED


class WiderRun:
    """What is added to one run."""

    def __init__(self, random: Random, favoured: str | None) -> None:
        self._random = random
        #: Whether everything is on disk before it is acknowledged, so that power may fail everywhere.
        self.survives_blackout = random.random() < 0.3 or favoured == BLACKOUT
        self._fleeting: FleetingTopic | None = None
        self._changes: TopicChanges | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the brokers."""
        return _SETTINGS | (_EVERY_RECORD if self.survives_blackout else {})

    def prepare(self, cluster: SimCluster, load: ClusterLoad) -> None:
        """Let producers give up in time, let steps of brokers cost time, and report steps that cost too much."""
        load.give_up_seconds = _EXPIRATION_MS / 1000 - 15.0

        def step_done(process: Process, seconds: float) -> None:
            node = next(node for node in cluster.nodes if node.name == process.name)
            if seconds > MOST_SECONDS_A_STEP and node.is_serving:
                load.watch.object(Violation(STALLED, f"{process.name} takes {seconds:.2f} s for one step"))

        cluster.loop.on_costly_step = step_done
        cluster.charges_processes = True

    async def begin(self, load: ClusterLoad, admin: ClusterClient) -> None:
        """Create the topics, and start the clients that run all the time."""
        loop = load.cluster.loop
        load.reading = GroupReading()
        partitions = self._random.randint(2, 3)
        await create_topic(admin, _LEDGER, partitions, {})
        ledger = [TopicPartition(_LEDGER, number) for number in range(partitions)]
        for _ in range(self._random.randint(1, 2)):
            load.rove(ledger, _EXPIRATION_MS / 1000 * self._random.uniform(0.2, 1.2))
        for partition in ledger:
            load.consume(partition, starts_over=_STARTS_OVER)
        load.history.unclean_topics[_LOOSE] = None
        load.log.tolerated.append(_LOOSE)
        unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        await create_topic(admin, _LOOSE, 1, unclean)
        load.produce(TopicPartition(_LOOSE, 0), 1)
        load.consume(TopicPartition(_LOOSE, 0))
        cluster, history, watch = load.cluster, load.history, load.watch
        self._fleeting = FleetingTopic(
            cluster,
            history,
            watch,
            loop.random_for("fleeting"),
            load.client("janitor"),
            load.use_for_a_while,
            load.end_use,
        )

        def trimmable() -> Sequence[TopicPartition]:
            return [
                consumer.partition
                for consumer in load.consumers
                if consumer.partition.topic not in (ORDERS, _LOOSE, *INTERNAL_TOPICS, *load.ids)
                and (load.archive is None or consumer.partition != load.archive.partition)
            ]

        self._changes = TopicChanges(
            cluster,
            history,
            watch,
            loop.random_for("topic changes"),
            load.client("operator"),
            self.survives_blackout,
            trimmable,
        )

    def tasks(self, load: ClusterLoad, faults: ClusterFaults, until: float) -> list[asyncio.Task[None]]:
        """Start the tasks that run until a time."""
        loop = load.cluster.loop
        faults.most_skew_ms = _MOST_SKEW_MS
        ClusterDisasters(
            faults,
            loop.random_for("disasters"),
            survives_blackout=self.survives_blackout,
            read_again=load.read_again,
        )
        assert self._fleeting is not None
        assert self._changes is not None
        return [
            loop.create_task(self._fleeting.run(until), name="fleeting topic"),
            loop.create_task(self._changes.run(until), name="changes of settings"),
        ]

    def healed(self, load: ClusterLoad) -> None:
        """Reset the checks: there are no more faults."""
        load.history.begin_anew()
        load.watch.compare_anew()

    def check(self) -> None:
        """Check what was acknowledged to administrators."""
        assert self._changes is not None
        self._changes.check()

    def counts(self) -> dict[str, int]:
        """Return how often things happened that only wider runs have."""
        if self._fleeting is None or self._changes is None:
            return {}
        return {
            "lives of a topic": self._fleeting.lives,
            "settings": self._changes.configured,
            "deletions of records": self._changes.trimmed,
        }
