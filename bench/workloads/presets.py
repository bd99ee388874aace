"""The presets with their exact settings, and the loads that clients send to a broker under a preset.

The settings are defined only here, so that docs/tuning.md recommends what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.clients.programs import measured, rdbench, run_client
from bench.harness.suite import Metrics, OneSample
from bench.workloads.target import Target

DEFAULT = "default"
#: Half of it can be compressed, as is common for real data.
_PAYLOAD = "lz4"
_LONGEST_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings that belong together, under the names of broker, topics and librdkafka."""

    name: str
    purpose: str
    broker: Mapping[str, str] = field(default_factory=dict)
    #: The same for single topics, if the broker keeps its defaults.
    topic: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict)
    consumer: Mapping[str, str] = field(default_factory=dict)


#: librdkafka's own defaults, as the benchmark's client has others.
PRODUCER = {"acks": "all", "linger.ms": "5", "compression.codec": "none"}
CONSUMER = {"fetch.wait.max.ms": "500", "queued.min.messages": "100000"}

PRESETS = (
    Preset(DEFAULT, "nothing set", producer=PRODUCER, consumer=CONSUMER),
    Preset(
        "latency",
        "a message reaches its consumer as soon as possible",
        producer={**PRODUCER, "linger.ms": "0"},
        consumer=CONSUMER,
    ),
    Preset(
        "throughput",
        "the most bytes a second, for the least CPU",
        broker={"tailrace.flush.background.bytes": "67108864"},
        producer={**PRODUCER, "linger.ms": "50", "batch.size": "1000000", "compression.codec": "lz4"},
        consumer={**CONSUMER, "queued.min.messages": "1000000", "fetch.message.max.bytes": "8388608"},
    ),
    Preset(
        "durability",
        "an acknowledged message survives a power cut",
        broker={"log.flush.interval.messages": "1"},
        topic={"flush.messages": "1"},
        producer={**PRODUCER, "enable.idempotence": "true"},
        consumer=CONSUMER,
    ),
)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A broker with the settings of a preset, and its clients' settings."""

    preset: Preset
    server: Target


@dataclass(frozen=True, slots=True)
class TunedLoad(OneSample[Tuned]):
    """One load that is measured under every preset."""

    load: str
    title: str
    #: The client's options beside those of the preset.
    kind: str
    options: Mapping[str, object]
    figures: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.load

    def measure(self, target: Tuned) -> Metrics:
        server, preset = target.server, target.preset
        topic = PRODUCE if self.kind == "consume" else self.name
        options = dict(self.options)
        if self.kind == "consume":
            options["count"] = server.held(topic)
        else:
            options |= {"codec": _PAYLOAD, "producer": pairs(preset.producer)}
        if self.kind != "produce":
            options["consumer"] = pairs(preset.consumer)
        metrics = measured(server.system, rdbench(self.kind, server.handle, topic, **options))
        if self.kind == "produce":
            server.produced[topic] = int(metrics["messages"])
        return metrics


def pairs(settings: Mapping[str, str]) -> str:
    """Format settings as rdbench takes them."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def warm_up(server: Target) -> None:
    """Run some of the loads once."""
    server.system.wait_ready()
    run_client(rdbench("produce", server.handle, "warm-up", partitions=1, count=100_000, size=1000, seconds=3))
    consume = {"partitions": 1, "count": 10_000, "from_beginning": True, "seconds": 3}
    run_client(rdbench("consume", server.handle, "warm-up", **consume))


PRODUCE = "produce"
WORKLOADS = (
    TunedLoad(
        "latency",
        "end to end at 1,000 messages a second",
        "latency",
        {"rate": 1000, "seconds": 8, "size": 100, "warmup_seconds": 1},
        {"p50_ms": "p50, ms", "p99_ms": "p99, ms", "p999_ms": "p99.9, ms"},
    ),
    TunedLoad(
        PRODUCE,
        "producing 1 KB messages",
        "produce",
        {"partitions": 1, "count": 1_000_000, "size": 1000, "seconds": _LONGEST_SECONDS},
        {"throughput_mb_s": "MB/s", "cpu_s_per_gb": "broker CPU, s/GB"},
    ),
    TunedLoad(
        "consume",
        "consuming them from the beginning",
        "consume",
        {"partitions": 1, "size": 1000, "from_beginning": True, "seconds": 2 * _LONGEST_SECONDS},
        {"throughput_mb_s": "MB/s", "cpu_s_per_gb": "broker CPU, s/GB"},
    ),
    TunedLoad(
        "one-by-one",
        "one message of 100 bytes at a time, each acknowledged before the next",
        "produce",
        {"partitions": 1, "count": 10_000, "size": 100, "one_message": True, "in_flight": 1, "seconds": 5},
        {"messages_s": "messages/s", "p99_ms": "p99, ms"},
    ),
)
