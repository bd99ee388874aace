"""The workloads: what each sends, which figures it is judged by, and how it is run against one system.

Owns the list and its sizes; a name says what is measured. Running and timing clients is `clients`' part, the order
of everything is `run`'s.
"""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bench.clients.idle import idle_connections
from bench.clients.programs import (
    Metrics,
    measured,
    parse_result,
    rawbench,
    rdbench,
    run_client,
    server_usage,
    with_costs,
)
from bench.harness import page_cache
from bench.systems.system import Handle, System

#: No bulk run sends for longer than this: a slow system is measured on fewer messages.
LONGEST_SECONDS = 15
#: CPU time is known to 10 ms: with fewer requests, the cost of one would be a guess.
FEWEST_REQUESTS = 20_000
#: Brokers write the first entry of an index after 4 KiB of records.
BEGUN_BYTES = 8192
#: What a broker does once for new partitions is over after this time.
BEGUN_SECONDS = 2.5
SIZE_NAMES = {100: "100b", 1000: "1k"}


@dataclass(frozen=True, slots=True)
class Target:
    """A running system and how large the workloads are for it: `scale` multiplies every count."""

    system: System
    handle: Handle
    data_dir: Path
    scale: float
    #: How many messages each topic holds.
    produced: dict[str, int] = field(default_factory=dict)

    def count(self, messages: int) -> int:
        """A count of the full benchmark as it is here; never so small that nothing is measured."""
        return max(int(messages * self.scale * self.system.count_share), 1000)


class Workload(ABC):
    """One thing to measure."""

    #: The figures by which systems are compared, the first is the one to show while it runs.
    judged_by: ClassVar[tuple[str, ...]]
    #: A first guess, before the first run of it on this machine is known.
    expected_seconds: ClassVar[float] = 5.0
    #: Which physical limits bound the throughput.
    bounded_by: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def run(self, target: Target) -> Metrics:
        """Run it once and return every figure."""


BULK_FIGURES = ("throughput_mb_s", "messages_s", "cpu_s_per_gb", "cpu_s_per_million", "rss_mb")


@dataclass(frozen=True, slots=True)
class Bulk:
    """What a produce workload and the consume workload after it have in common: one topic full of messages."""

    size: int
    batch_bytes: str = "default"
    partitions: int = 1
    codec: str = "none"

    @property
    def topic(self) -> str:
        words = [SIZE_NAMES[self.size]]
        if self.batch_bytes != "default":
            words.append(f"batch{int(self.batch_bytes) // 1024}k")
        if self.partitions > 1:
            words.append(f"{self.partitions}p")
        if self.codec != "none":
            words.append(self.codec)
        return "-".join(words)

    @property
    def messages(self) -> int:
        return 1_000_000 if self.size >= 1000 else 4_000_000


@dataclass(frozen=True, slots=True)
class Produce(Workload):
    """As many messages as go, with acks 1."""

    bulk: Bulk
    judged_by = BULK_FIGURES
    bounded_by = ("page_cache_write_mb_s", "loopback_mb_s")

    @property
    def name(self) -> str:
        return f"produce-{self.bulk.topic}"

    def run(self, target: Target) -> Metrics:
        bulk = self.bulk
        count = target.count(bulk.messages)
        if not target.system.speaks_kafka:
            command = target.system.client_command("produce", target.handle, bulk.topic, count, bulk.size)
            command += ["--seconds", str(LONGEST_SECONDS)]
        else:
            command = rdbench(
                "produce",
                target.handle,
                bulk.topic,
                partitions=bulk.partitions,
                count=count,
                size=bulk.size,
                batch_bytes=bulk.batch_bytes,
                acks=1,
                codec=bulk.codec,
                seconds=LONGEST_SECONDS,
            )
        metrics = measured(target.system, command)
        target.produced[bulk.topic] = int(metrics["messages"])
        return metrics


@dataclass(frozen=True, slots=True)
class Consume(Workload):
    """Everything that the produce workload of the same name left, from the beginning."""

    bulk: Bulk
    judged_by = BULK_FIGURES
    bounded_by = ("loopback_mb_s",)

    @property
    def name(self) -> str:
        return f"consume-{self.bulk.topic}"

    def run(self, target: Target) -> Metrics:
        bulk = self.bulk
        count = target.produced[bulk.topic]
        if not target.system.speaks_kafka:
            command = target.system.client_command("consume", target.handle, bulk.topic, count, bulk.size)
            return measured(target.system, [*command, "--seconds", str(2 * LONGEST_SECONDS)])
        command = rdbench(
            "consume",
            target.handle,
            bulk.topic,
            partitions=bulk.partitions,
            count=count,
            size=bulk.size,
            from_beginning=True,
            seconds=2 * LONGEST_SECONDS,
        )
        return measured(target.system, command)


@dataclass(frozen=True, slots=True)
class OneMessage(Workload):
    """Requests of exactly one 100-byte message."""

    in_flight: int
    judged_by = ("requests_s", "p50_ms", "p99_ms", "cpu_us_per_request", "rss_mb")

    @property
    def name(self) -> str:
        return f"one-message-{self.in_flight}-in-flight"

    def run(self, target: Target) -> Metrics:
        command = rdbench(
            "produce",
            target.handle,
            self.name,
            partitions=1,
            count=target.count(20_000 if self.in_flight == 1 else 60_000),
            size=100,
            acks=1,
            in_flight=self.in_flight,
            one_message=True,
            seconds=LONGEST_SECONDS,
        )
        return measured(target.system, command)


@dataclass(frozen=True, slots=True)
class Latency(Workload):
    """End to end at a fixed rate, from the moment each message was due, so that no wait is left out."""

    rate: int
    seconds: int = 10
    judged_by = ("p99_ms", "p50_ms", "p999_ms", "cpu_s_per_million", "rss_mb")
    expected_seconds = 13.0

    @property
    def name(self) -> str:
        return f"latency-{self.rate // 1000}k-per-s"

    def run(self, target: Target) -> Metrics:
        seconds = max(self.seconds * min(target.scale, 1.0), 1.0)
        command = rdbench(
            "latency", target.handle, self.name, rate=self.rate, seconds=f"{seconds:g}", size=100, warmup_seconds=1
        )
        return measured(target.system, command)


@dataclass(frozen=True, slots=True)
class Tail(Workload):
    """Producing 1 KB messages while several consumers follow the end."""

    consumers: int = 5
    judged_by = ("throughput_mb_s", "slowest_consumer_mb_s", "cpu_s_per_gb", "rss_mb")
    bounded_by = ("page_cache_write_mb_s", "loopback_mb_s")

    @property
    def name(self) -> str:
        return f"produce-while-{self.consumers}-tail"

    def run(self, target: Target) -> Metrics:
        command = rdbench(
            "tail",
            target.handle,
            self.name,
            partitions=1,
            consumers=self.consumers,
            count=target.count(400_000),
            size=1000,
            acks=1,
        )
        return measured(target.system, command)


@dataclass(frozen=True, slots=True)
class CatchUp(Workload):
    """A backlog read from its beginning, from memory or from disk, beside live traffic of 1,000 messages a second."""

    cold: bool
    judged_by = ("throughput_mb_s", "p99_ms", "p50_ms", "rss_mb")
    expected_seconds = 14.0
    bounded_by = ("loopback_mb_s",)

    @property
    def name(self) -> str:
        return f"catch-up-{'cold' if self.cold else 'warm'}"

    def run(self, target: Target) -> Metrics:
        count = target.count(1_500_000)
        run_client(rdbench("produce", target.handle, self.name, partitions=1, count=count, size=1000, acks=1))
        if self.cold:
            page_cache.drop(target.data_dir)
        resident = page_cache.resident_share(target.data_dir)
        live = rdbench("latency", target.handle, f"{self.name}-live", rate=1000, seconds=5, size=100, warmup_seconds=1)
        catch_up = rdbench(
            "consume", target.handle, self.name, partitions=1, count=count, from_beginning=True, seconds=60
        )
        process = subprocess.Popen(live, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            # The live traffic is warmed up for a second and measured afterwards: the backlog's reader joins it then.
            time.sleep(1.5)
            with server_usage(target.system) as usage:
                result = run_client(catch_up)
            output, errors = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        latency = parse_result(live, process.returncode, output, errors)
        percentiles = {key: value for key, value in latency.items() if key.endswith("_ms")}
        return {**with_costs(result, usage), **percentiles, "resident_share": resident}


@dataclass(frozen=True, slots=True)
class RawProduce(Workload):
    """Prepared requests of one batch each, replayed on one connection beside idle ones, partitions in turn."""

    partitions: int = 1
    idle_connections: int = 0
    batch_bytes: int = 1024
    judged_by = ("requests_s", "cpu_us_per_request", "p99_ms", "throughput_mb_s", "rss_mb")
    expected_seconds = 6.0

    @property
    def name(self) -> str:
        words = ["raw-produce", f"{self.batch_bytes // 1024}k", f"{self.partitions}p"]
        if self.idle_connections:
            words.append(f"{self.idle_connections}-idle")
        return "-".join(words)

    @property
    def requests(self) -> int:
        return 60_000 if self.batch_bytes <= 1024 else 20_000

    def run(self, target: Target) -> Metrics:
        options: dict[str, object] = {
            "partitions": self.partitions,
            "connections": 1,
            "batch_bytes": self.batch_bytes,
            "records_per_batch": max(self.batch_bytes // 1024, 1),
            "in_flight": 5,
        }
        # Makes the topic and begins every partition's log and index: what is measured is the cost once they are there.
        begun = BEGUN_BYTES // self.batch_bytes + 1
        run_client(rawbench("produce", target.handle, self.name, **options, requests=begun * self.partitions))
        time.sleep(BEGUN_SECONDS)
        requests = max(target.count(self.requests), FEWEST_REQUESTS)
        # Held from here and not by the client: opening a thousand connections costs as much as thousands of requests.
        with idle_connections(target.handle, self.idle_connections):
            return measured(target.system, rawbench("produce", target.handle, self.name, **options, requests=requests))


@dataclass(frozen=True, slots=True)
class RawFetch(Workload):
    """Prepared fetches over what the raw produce workload of the same batch size left."""

    batch_bytes: int = 16384
    judged_by = ("throughput_mb_s", "requests_s", "cpu_s_per_gb", "rss_mb")
    bounded_by = ("loopback_mb_s",)

    @property
    def name(self) -> str:
        return f"raw-fetch-{self.batch_bytes // 1024}k-1p"

    def run(self, target: Target) -> Metrics:
        topic = RawProduce(batch_bytes=self.batch_bytes).name
        command = rawbench(
            "fetch",
            target.handle,
            topic,
            partitions=1,
            connections=1,
            in_flight=1,
            requests=target.count(2000),
        )
        return measured(target.system, command)


#: Figures of the start of a server, taken at each start: not a workload that is run.
START = "start"
START_FIGURES = ("first_ack_s", "rss_mb")

PEER_BULKS = (Bulk(1000), Bulk(100))


def _pairs(*bulks: Bulk) -> tuple[Workload, ...]:
    return tuple(workload for bulk in bulks for workload in (Produce(bulk), Consume(bulk)))


def _bulks(size: int, codec: str) -> tuple[Bulk, ...]:
    return tuple(Bulk(size, batch, partitions, codec) for batch in ("default", "16384") for partitions in (1, 6))


#: Every group is run on a freshly started server.
FULL_GROUPS: dict[str, tuple[Workload, ...]] = {
    "bulk-1k": _pairs(*_bulks(1000, "none")),
    "bulk-100b": _pairs(*_bulks(100, "none")),
    "lz4": _pairs(*_bulks(1000, "lz4"), *_bulks(100, "lz4")),
    "requests": (OneMessage(1), OneMessage(5), Latency(1000), Latency(10_000)),
    "flow": (Tail(), CatchUp(cold=False), CatchUp(cold=True)),
    "raw": (
        *(RawProduce(partitions=number) for number in (1, 100, 1000)),
        *(RawProduce(idle_connections=number) for number in (100, 1000)),
        RawProduce(batch_bytes=16384),
        RawFetch(16384),
    ),
}

QUICK_GROUPS: dict[str, tuple[Workload, ...]] = {
    "quick": (
        OneMessage(1),
        OneMessage(5),
        Latency(1000),
        Latency(10_000),
        *_pairs(Bulk(1000), Bulk(100)),
        Produce(Bulk(1000, "16384", 6)),
        Produce(Bulk(1000, codec="lz4")),
        Tail(),
        RawProduce(partitions=1),
        RawProduce(partitions=100),
        RawProduce(idle_connections=1000),
    ),
}

#: The four that the other peers run too.
PEER_GROUP: tuple[Workload, ...] = _pairs(*PEER_BULKS)
