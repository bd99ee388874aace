"""The workloads for comparing two clusters, and those for tailrace alone.

Figures are returned as soon as they are known. State is observed from outside, through the remaining servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

from confluent_kafka import Producer

from bench.clients.programs import rdbench, run_client, with_costs
from bench.harness import processes
from bench.harness.failures import ClientFailedError, ServerFailedError
from bench.harness.suite import Figures, Metrics, OneSample, Say, Workload
from bench.harness.warm_up import WarmUp
from bench.systems.cluster import BROKERS, PATIENCE_SECONDS, Cluster
from bench.systems.tailrace_cluster import TailraceCluster
from bench.systems.view import SessionWatch
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.metadata import MetadataResponsePartition

PARTITIONS = 6
#: With one replica lost, two still have every acknowledged record.
CONFIGS = {"min.insync.replicas": "2"}
_LONGEST_PRODUCE_SECONDS = 20
_WARM_UP_MESSAGES = 300_000
_WARM_UP = WarmUp(least_runs=2, most_runs=6, runs_without_progress=1)
_PARTITIONS_PER_REQUEST = 1000
#: The work after creating topics ends within this time; a JVM compiles for a while.
_SETTLE_SECONDS = 15.0
#: A session timeout, and the time to notice it.
_SESSION_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """A running cluster; `scale` multiplies every count."""

    cluster: Cluster
    scale: float
    say: Say


def warm_up(target: ClusterTarget) -> None:
    """Produce until servers get no faster and every connection is open: a JVM needs a while."""
    costs: list[float] = []
    while not _WARM_UP.has_settled(costs):
        topic, count = f"warm-up-{len(costs)}", int(_WARM_UP_MESSAGES * target.scale)
        costs.append(1 / _produce(target.cluster, topic, 1000, count)["throughput_mb_s"])


@dataclass(frozen=True, slots=True)
class ProduceToAll(OneSample[ClusterTarget]):
    """As many messages as possible, acknowledged by all replicas."""

    size_name: str
    size: int
    messages: int

    @property
    def name(self) -> str:
        return f"produce-{self.size_name}-acks-all"

    def measure(self, target: ClusterTarget) -> Metrics:
        return _produce(target.cluster, f"bulk-{self.size_name}", self.size, int(self.messages * target.scale))


def _produce(cluster: Cluster, topic: str, size: int, count: int) -> Metrics:
    cluster.create([topic], PARTITIONS, CONFIGS)
    before = cluster.cpu_seconds()
    options = {"partitions": PARTITIONS, "count": count, "size": size, "acks": "all"}
    result = run_client(rdbench("produce", cluster.handle, topic, **options, seconds=_LONGEST_PRODUCE_SECONDS))
    return with_costs(result, {"server_cpu_s": cluster.cpu_seconds() - before, "rss_mb": cluster.rss_mb()})


class LatencyToAll(OneSample[ClusterTarget]):
    """End-to-end latency at a thousand messages a second, acknowledged by all replicas."""

    name = "latency-1k-per-s-acks-all"

    def prepare(self, target: ClusterTarget) -> None:
        target.cluster.create(["paced"], 1, CONFIGS)

    def measure(self, target: ClusterTarget) -> Metrics:
        seconds = f"{max(20 * target.scale, 2):g}"
        options = {"rate": 1000, "seconds": seconds, "size": 100, "warmup_seconds": 2, "acks": "all"}
        return run_client(rdbench("latency", target.cluster.handle, "paced", **options))


# --- the death of a leader


@dataclass(frozen=True, slots=True)
class LeaderKilled(Workload[ClusterTarget]):
    """From SIGKILL of a partition's leader to the next acknowledged write to it, several times.

    `failover_s` is for a writer that continuously looks for a leader; `client_failover_s` is for librdkafka, which
    looks once a second. Only for tailrace, `moved_s` is the part of `failover_s` after the store has ended the killed
    broker's session.
    """

    kills: int
    name = "leader-killed"

    def prepare(self, target: ClusterTarget) -> None:
        target.cluster.create(["failing"], 1, CONFIGS)

    def run(self, target: ClusterTarget) -> Iterator[Figures]:
        cluster = target.cluster
        for _ in range(self.kills):
            leader = cluster.leader_of("failing", 0)
            metrics = {"was_controller": float(cluster.controller() == leader)}
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "acks": "all", "linger.ms": 0})
            _write(producer, "failing")
            with (
                SessionWatch(cluster.store_url) if isinstance(cluster, TailraceCluster) else nullcontext() as watch,
                ThreadPoolExecutor(1) as thread,
            ):
                killed_at = cluster.kill(leader)
                by_client = thread.submit(_write, producer, "failing")
                written_at = _write_at_once(cluster, "failing")
                metrics["client_failover_s"] = by_client.result() - killed_at
                if watch is not None:
                    metrics["moved_s"] = written_at - watch.wait_for_end(leader, _SESSION_PATIENCE_SECONDS)
            yield Figures(self.name, {"failover_s": written_at - killed_at, **metrics})
            os.sync()
            cluster.restart(leader)
            cluster.wait_until_in_sync(["failing"])


def _write(producer: Producer, topic: str) -> float:
    """Write with a client library; return when that was acknowledged."""
    problems: list[object] = []
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: problems.append(error) if error else None)
    if producer.flush(PATIENCE_SECONDS) or problems:
        raise ClientFailedError(f"a record was not acknowledged: {problems or 'no response'}")
    return time.monotonic()


def _write_at_once(cluster: Cluster, topic: str) -> float:
    """Write to the leader, asking all remaining servers for it; return when the write was acknowledged."""
    batch = bytes(build_batch([NewRecord(b"x", timestamp=int(time.time() * 1000))]))
    deadline = time.monotonic() + PATIENCE_SECONDS
    with ExitStack() as views:
        servers = {number: views.enter_context(cluster.view(number)) for number in cluster.servers}
        while time.monotonic() < deadline:
            for view in servers.values():
                found = servers.get(view.partitions([topic])[topic, 0].leader_id)
                if found is not None and found.write(topic, 0, batch) == 0:
                    return time.monotonic()
            time.sleep(_LOOK_SECONDS)
    raise ServerFailedError(f"no leader after {PATIENCE_SECONDS:.0f} s")


# --- many partitions


@dataclass(frozen=True, slots=True)
class ManyPartitions(Workload[ClusterTarget]):
    """A thousand idle ones; three thousand, a third of whose leaders dies or stops; for tailrace also ten thousand."""

    per_topic: int
    name = "many-partitions"

    def run(self, target: ClusterTarget) -> Iterator[Figures]:
        for figures in self._steps(target):
            yield figures
            # The next step must not pay for this one's unwritten data.
            os.sync()

    def _steps(self, target: ClusterTarget) -> Iterator[Figures]:
        cluster, scale = target.cluster, target.scale
        idle_seconds = max(30 * scale, 5)
        topics = Topics(cluster, self.per_topic, target.say)
        yield from topics.grow_to(1_000 * scale)
        yield Figures(f"idle-{topics.partitions}-partitions", idle(cluster, idle_seconds))
        yield from topics.grow_to(3_000 * scale)
        yield from lose_leaders(cluster, topics, _not_controller(cluster))
        yield from give_up_leaders(cluster, topics, _not_controller(cluster))
        if isinstance(cluster, TailraceCluster):
            yield from topics.grow_to(10_000 * scale)
            yield Figures(f"idle-{topics.partitions}-partitions", idle(cluster, idle_seconds))
            yield from lose_controller(cluster, topics)


def _not_controller(cluster: Cluster) -> int:
    controller = cluster.controller()
    return next(number for number in cluster.servers if number != controller)


class Topics:
    """A growing number of topics with this many partitions each."""

    def __init__(self, cluster: Cluster, per_topic: int, say: Say) -> None:
        self._cluster = cluster
        self._per_topic = per_topic
        self._say = say
        self.names: list[str] = []

    @property
    def partitions(self) -> int:
        return len(self.names) * self._per_topic

    def grow_to(self, partitions: float) -> Iterator[Figures]:
        """Create at least one more, and measure the time until all replicas were in sync."""
        count = max(round(partitions / self._per_topic), len(self.names) + 1)
        began = time.monotonic()
        while len(self.names) < count:
            most = min(max(_PARTITIONS_PER_REQUEST // self._per_topic, 1), count - len(self.names))
            wanted = [f"many-{number}" for number in range(len(self.names), len(self.names) + most)]
            self._cluster.create(wanted, self._per_topic, CONFIGS)
            self.names += wanted
            self._say(f"{self.partitions} partitions after {time.monotonic() - began:.1f} s")
        yield Figures(f"create-{self.partitions}-partitions", {"create_s": time.monotonic() - began})


def idle(cluster: Cluster, seconds: float) -> Metrics:
    """Measure the CPU share of idle servers: the highest of them, and all together with their store."""
    time.sleep(min(_SETTLE_SECONDS, seconds))
    store = [] if cluster.store is None else cluster.store.tree()
    before, store_before, began = cluster.cpu_seconds_of_each(), processes.cpu_seconds(store), time.monotonic()
    time.sleep(seconds)
    after, elapsed = cluster.cpu_seconds_of_each(), time.monotonic() - began
    shares = [(after[number] - before[number]) / elapsed * 100 for number in before]
    store_share = (processes.cpu_seconds(store) - store_before) / elapsed * 100
    memory = max(processes.rss_mb(server.tree()) for server in cluster.servers.values())
    return {
        "idle_percent": max(shares),
        "idle_all_percent": sum(shares) + store_share,
        "broker_rss_mb": memory,
    }


def lose_leaders(cluster: Cluster, topics: Topics, victim: int) -> Iterator[Figures]:
    """SIGKILL of a server that leads a third of all partitions, and its return."""
    leaders = topics.partitions // BROKERS
    yield Figures(f"lose-{leaders}-leaders", _kill(cluster, topics, victim))
    began = time.monotonic()
    cluster.restart(victim)
    registered = time.monotonic()
    cluster.wait_until_in_sync(topics.names)
    figures = {"ready_s": registered - began, "in_sync_s": time.monotonic() - began}
    yield Figures(f"back-with-{topics.partitions}-partitions", figures)
    began = time.monotonic()
    with cluster.view() as view:
        view.elect_preferred()
    _wait_for_all(cluster, topics.names, lambda each: each.leader_id == each.replica_nodes[0])
    yield Figures(f"give-back-{leaders}-leaders", {"moved_s": time.monotonic() - began})


def _kill(cluster: Cluster, topics: Topics, victim: int) -> Metrics:
    """Kill a server and wait until both remaining ones see a live leader for every partition: `outage_s`.

    Only for tailrace, `moved_s` is the part after the store has ended the killed broker's session.
    """
    led = _led_by(cluster, topics.names, victim)
    if not isinstance(cluster, TailraceCluster):
        killed_at = cluster.kill(victim)
        return {"outage_s": _wait_until_led(cluster, topics.names, victim) - killed_at, "leaders": led}
    with SessionWatch(cluster.store_url) as watch:
        killed_at = cluster.kill(victim)
        ended_at = watch.wait_for_end(victim, _SESSION_PATIENCE_SECONDS)
        led_at = _wait_until_led(cluster, topics.names, victim)
    return {"outage_s": led_at - killed_at, "moved_s": led_at - ended_at, "leaders": led}


def lose_controller(cluster: TailraceCluster, topics: Topics) -> Iterator[Figures]:
    """SIGKILL of the controller, which leads a third of all partitions.

    `load_s` is from the next controller's election until it has loaded everything and acts, according to its log.
    """
    metrics = _kill(cluster, topics, cluster.controller())
    yield Figures(f"controller-killed-{topics.partitions}-partitions", {**metrics, "load_s": _load_seconds(cluster)})


def give_up_leaders(cluster: Cluster, topics: Topics, victim: int) -> Iterator[Figures]:
    """SIGTERM of a server that leads a third of all partitions, until others lead all of them."""
    led = _led_by(cluster, topics.names, victim)
    with cluster.stopping(victim) as began:
        moved = _wait_until_led(cluster, topics.names, victim) - began
    figures = {"moved_s": moved, "stop_s": time.monotonic() - began, "leaders": led}
    yield Figures(f"stop-with-{topics.partitions // BROKERS}-leaders", figures)
    cluster.restart(victim)
    cluster.wait_until_in_sync(topics.names)


def _led_by(cluster: Cluster, topics: Sequence[str], leader: int) -> int:
    with cluster.view() as view:
        return sum(each.leader_id == leader for each in view.partitions(topics).values())


def _wait_until_led(cluster: Cluster, topics: Sequence[str], gone: int) -> float:
    """Return when every remaining server has seen a live leader for each partition."""
    _wait_for_all(cluster, topics, lambda each: each.leader_id not in (-1, gone))
    return time.monotonic()


def _wait_for_all(
    cluster: Cluster, topics: Sequence[str], condition: Callable[[MetadataResponsePartition], bool]
) -> None:
    for number in list(cluster.servers):
        with cluster.view(number) as view:
            view.wait_for(topics, condition, PATIENCE_SECONDS)


def _load_seconds(cluster: TailraceCluster) -> float:
    """Return the time from the election of the present controller until it logged that it has loaded everything."""
    elected_at = loaded_at = None
    for event in cluster.events(cluster.controller()):
        if "controller_epoch" in event:
            elected_at, loaded_at = event["at"], None
        elif "load_seconds" in event:
            loaded_at = event["at"]
    if elected_at is None or loaded_at is None:
        raise ServerFailedError("the controller did not log that it has loaded everything")
    return float(loaded_at - elected_at)
