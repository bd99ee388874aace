"""The cost of `tailrace.records.validate`: prepared batches, kept in flight by one connection.

So only the broker works. The processor time is the broker's own: the cost of a validated record on a busy machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random

from bench.clients.connection import connected
from bench.clients.server import Handle
from bench.clients.topics import create_topic
from bench.harness import processes
from bench.harness.failures import ClientFailedError
from bench.harness.suite import Metrics, OneSample
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

OFF, ON = "off", "on"
_PRODUCE_VERSION = 8
_IN_FLIGHT = 5
_WARM_UP_SECONDS = 0.3
_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ValidationTarget:
    """A broker, and whether the records of its topics are validated."""

    handle: Handle
    validates: str
    round: int


@dataclass(frozen=True, slots=True)
class ProduceBatches(OneSample[ValidationTarget]):
    """Batches of one shape and codec, produced repeatedly."""

    codec: Compression
    records: int
    #: The bytes of a value.
    size: int
    judged_by = ("records_s", "throughput_mb_s", "cpu_us_per_record")

    @property
    def name(self) -> str:
        return f"{self.records}-of-{self.size}-{self.codec.name.lower()}"

    def measure(self, target: ValidationTarget) -> Metrics:
        topic = f"{self.name}-{target.validates}-{target.round}"
        validates = str(target.validates == ON).lower()
        # Nothing is kept longer than necessary.
        configs = {"tailrace.records.validate": validates, "retention.bytes": "0"}
        create_topic(target.handle.address, topic, 1, configs)
        body = self._body(topic)
        with connected(target.handle) as connection:
            _produce(connection, body, _WARM_UP_SECONDS)
            before = _own_cpu_seconds(target)
            requests, seconds = _produce(connection, body, _SECONDS)
            cpu = _own_cpu_seconds(target) - before
        records = requests * self.records
        return {
            "records_s": records / seconds,
            "throughput_mb_s": records * self.size / seconds / 1e6,
            "cpu_us_per_record": cpu / records * 1e6,
        }

    def _body(self, topic: str) -> Buffer:
        now_ms = time.time_ns() // 1_000_000
        values = enumerate(_values(self.records, self.size))
        records = [NewRecord(value, b"key-%d" % number, now_ms) for number, value in values]
        batch = bytes(build_batch(records, compression=self.codec))
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]).encode(_PRODUCE_VERSION)


def _values(count: int, size: int) -> list[bytes]:
    """Return values that compress like text."""
    random = Random(size)
    words = [bytes(random.choices(b"abcdefghijklmnopqrstuvwxyz", k=random.randrange(2, 9))) for _ in range(200)]
    return [b" ".join(random.choices(words, k=size // 3 + 1))[:size] for _ in range(count)]


def _own_cpu_seconds(target: ValidationTarget) -> float:
    return sum(processes.cpu_by_process([target.handle.pid]).values())


def _produce(connection: BrokerConnection, body: Buffer, seconds: float) -> tuple[int, float]:
    """Keep some requests on their way for a while; how many were answered, and in how many seconds."""
    begun = time.monotonic()
    sent = answered = 0
    while answered < sent or not sent:
        while sent - answered < _IN_FLIGHT and time.monotonic() < begun + seconds:
            connection.send_pieces(ApiKey.PRODUCE, _PRODUCE_VERSION, [body])
            sent += 1
        answer = connection.receive_as(ProduceResponse, _PRODUCE_VERSION).responses[0].partition_responses[0]
        if answer.error_code:
            raise ClientFailedError(f"a batch was refused with error {answer.error_code}")
        answered += 1
    return answered, time.monotonic() - begun
