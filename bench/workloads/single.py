"""The workloads on a single server: what each sends, the figures that compare it, and its size.

A name says what is measured. `clients` runs and times the programs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.clients.idle import idle_connections
from bench.clients.programs import beside, measured, rawbench, rdbench, result_of, run_client, server_usage, with_costs
from bench.harness import page_cache
from bench.harness.suite import Metrics, OneSample
from bench.workloads.target import Target

#: No bulk run sends longer than this: a slow system is measured with fewer messages.
LONGEST_SECONDS = 15
#: CPU time has a resolution of 10 ms: with fewer requests, the cost of one would be a guess.
FEWEST_REQUESTS = 20_000
#: Brokers write the first entry of an index after 4 KiB of records.
BEGUN_BYTES = 8192
#: One-time work of a broker for new partitions is over after this time.
BEGUN_SECONDS = 2.5
#: Messages of 1 KB.
_BACKLOG = 1_500_000
SIZE_NAMES = {100: "100b", 1000: "1k"}


BULK_FIGURES = ("throughput_mb_s", "messages_s", "cpu_s_per_gb", "cpu_s_per_million", "rss_mb")


@dataclass(frozen=True, slots=True)
class Bulk:
    """What a produce workload and the consume workload after it share: one topic full of messages."""

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
class Produce(OneSample[Target]):
    """As many messages as possible, with acks 1."""

    bulk: Bulk
    judged_by = BULK_FIGURES
    bounded_by = ("page_cache_write_mb_s", "loopback_mb_s")

    @property
    def name(self) -> str:
        return f"produce-{self.bulk.topic}"

    def measure(self, target: Target) -> Metrics:
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
class Consume(OneSample[Target]):
    """Everything that the produce workload with the same name wrote, from the beginning."""

    bulk: Bulk
    judged_by = BULK_FIGURES
    bounded_by = ("loopback_mb_s",)

    @property
    def name(self) -> str:
        return f"consume-{self.bulk.topic}"

    def measure(self, target: Target) -> Metrics:
        bulk = self.bulk
        count = target.held(bulk.topic)
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
class OneMessage(OneSample[Target]):
    """Requests with exactly one 100-byte message."""

    in_flight: int
    judged_by = ("requests_s", "p50_ms", "p99_ms", "cpu_us_per_request", "rss_mb")

    @property
    def name(self) -> str:
        return f"one-message-{self.in_flight}-in-flight"

    def measure(self, target: Target) -> Metrics:
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
class Latency(OneSample[Target]):
    """End-to-end latency at a fixed rate, from when each message was due, so that all waits count."""

    rate: int
    seconds: int = 10
    judged_by = ("p99_ms", "p50_ms", "p999_ms", "cpu_s_per_million", "rss_mb")
    expected_seconds = 13.0

    @property
    def name(self) -> str:
        return f"latency-{self.rate // 1000}k-per-s"

    def measure(self, target: Target) -> Metrics:
        seconds = max(self.seconds * min(target.scale, 1.0), 1.0)
        command = rdbench(
            "latency", target.handle, self.name, rate=self.rate, seconds=f"{seconds:g}", size=100, warmup_seconds=1
        )
        return measured(target.system, command)


@dataclass(frozen=True, slots=True)
class Tail(OneSample[Target]):
    """Producing 1 KB messages while several consumers follow the end."""

    consumers: int = 5
    judged_by = ("throughput_mb_s", "slowest_consumer_mb_s", "cpu_s_per_gb", "rss_mb")
    bounded_by = ("page_cache_write_mb_s", "loopback_mb_s")

    @property
    def name(self) -> str:
        return f"produce-while-{self.consumers}-tail"

    def measure(self, target: Target) -> Metrics:
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
class CatchUp(OneSample[Target]):
    """A backlog read from its beginning, from memory or from disk, beside live traffic of 1,000 messages a second."""

    cold: bool
    judged_by = ("throughput_mb_s", "p99_ms", "p50_ms", "rss_mb")
    expected_seconds = 14.0
    bounded_by = ("loopback_mb_s",)

    @property
    def name(self) -> str:
        return f"catch-up-{'cold' if self.cold else 'warm'}"

    def prepare(self, target: Target) -> None:
        count = target.count(_BACKLOG)
        run_client(rdbench("produce", target.handle, self.name, partitions=1, count=count, size=1000, acks=1))
        if self.cold:
            page_cache.drop(target.data_dir)

    def measure(self, target: Target) -> Metrics:
        count = target.count(_BACKLOG)
        resident = page_cache.resident_share(target.data_dir)
        live = rdbench("latency", target.handle, f"{self.name}-live", rate=1000, seconds=5, size=100, warmup_seconds=1)
        catch_up = rdbench(
            "consume", target.handle, self.name, partitions=1, count=count, from_beginning=True, seconds=60
        )
        with beside(live) as process:
            # The live traffic warms up for a second before it is measured; only then the reader of the backlog starts.
            time.sleep(1.5)
            with server_usage(target.system) as usage:
                result = run_client(catch_up)
            latency = result_of(process, live)
        percentiles = {key: value for key, value in latency.items() if key.endswith("_ms")}
        return {**with_costs(result, usage), **percentiles, "resident_share": resident}


@dataclass(frozen=True, slots=True)
class RawProduce(OneSample[Target]):
    """Prepared requests with one batch each, replayed on one connection beside idle ones, to partitions in turn."""

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

    @property
    def _options(self) -> dict[str, object]:
        return {
            "partitions": self.partitions,
            "connections": 1,
            "batch_bytes": self.batch_bytes,
            "records_per_batch": max(self.batch_bytes // 1024, 1),
            "in_flight": 5,
        }

    def prepare(self, target: Target) -> None:
        # Creates the topic and starts every partition's log and index: the measured cost is that of existing ones.
        begun = (BEGUN_BYTES // self.batch_bytes + 1) * self.partitions
        run_client(rawbench("produce", target.handle, self.name, **self._options, requests=begun))
        time.sleep(BEGUN_SECONDS)

    def measure(self, target: Target) -> Metrics:
        requests = max(target.count(self.requests), FEWEST_REQUESTS)
        # Held here and not by the client: opening a thousand connections costs as much as thousands of requests.
        with idle_connections(target.handle, self.idle_connections):
            command = rawbench("produce", target.handle, self.name, **self._options, requests=requests)
            return measured(target.system, command)


@dataclass(frozen=True, slots=True)
class RawFetch(OneSample[Target]):
    """Prepared fetches of what the raw produce workload with the same batch size wrote."""

    batch_bytes: int = 16384
    judged_by = ("throughput_mb_s", "requests_s", "cpu_s_per_gb", "rss_mb")
    bounded_by = ("loopback_mb_s",)

    @property
    def name(self) -> str:
        return f"raw-fetch-{self.batch_bytes // 1024}k-1p"

    def measure(self, target: Target) -> Metrics:
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
