"""What `tailrace.records.validate` costs: `python -m bench.validation` measures a real broker with and without it.

One connection keeps several produce requests of ready-made batches on their way, so that the broker is all that works.
The processor time is the broker's own, which is what a validated record costs on a machine that is busy.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.raw_client import RawClient, request_frame

_PRODUCE_VERSION = 8
_IN_FLIGHT = 5
_SECONDS = 3.0
_ROUNDS = 3
#: Records of a batch, and the bytes of a value: what a busy producer sends, and small batches.
_SHAPES = ((1000, 100), (100, 1000), (10, 100))


def _values(count: int, size: int) -> list[bytes]:
    """Values that compress as text does."""
    random = Random(size)
    words = [bytes(random.choices(b"abcdefghijklmnopqrstuvwxyz", k=random.randrange(2, 9))) for _ in range(200)]
    return [b" ".join(random.choices(words, k=size // 3 + 1))[:size] for _ in range(count)]


def _frame(topic: str, count: int, size: int, codec: Compression) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    records = [NewRecord(value, b"key-%d" % number, now_ms) for number, value in enumerate(_values(count, size))]
    batch = bytes(build_batch(records, compression=codec))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return request_frame(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]), _PRODUCE_VERSION)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _produce(client: RawClient, pid: int, frame: bytes, seconds: float) -> tuple[float, float]:
    """Requests a second, and the broker's processor time for each."""
    waiting: deque[None] = deque()
    done = 0
    cpu, begun = _cpu_seconds(pid), time.monotonic()
    while time.monotonic() < begun + seconds:
        while len(waiting) < _IN_FLIGHT:
            client.send(frame)
            waiting.append(None)
        answer = client.read_answer(_PRODUCE_VERSION, ProduceResponse)
        assert not answer.responses[0].partition_responses[0].error_code
        waiting.popleft()
        done += 1
    took = time.monotonic() - begun
    for _ in waiting:
        client.read_answer(_PRODUCE_VERSION, ProduceResponse)
    return done / took, (_cpu_seconds(pid) - cpu) / max(1, done)


def main() -> None:
    """Print a table."""
    print("records  bytes  codec    off: records/s  MB/s   on: records/s  MB/s   processor per record, off and on")
    with TemporaryDirectory() as directory, BrokerProcess(Path(directory)) as broker, RawClient(broker.port) as client:
        for count, size in _SHAPES:
            for codec in Compression:
                best: dict[bool, tuple[float, float]] = {}
                for number in range(_ROUNDS):
                    for is_on in (False, True):
                        topic = f"{codec.name.lower()}-{count}-{size}-{is_on}-{number}"
                        _create(client, topic, is_on)
                        frame = _frame(topic, count, size, codec)
                        _produce(client, broker.pid, frame, 0.3)
                        found = _produce(client, broker.pid, frame, _SECONDS / _ROUNDS)
                        best[is_on] = max(best.get(is_on, found), found)
                _print(count, size, codec, best)


def _create(client: RawClient, topic: str, is_on: bool) -> None:
    configs = [
        CreatableTopicConfig(name="tailrace.records.validate", value=str(is_on).lower()),
        CreatableTopicConfig(name="retention.bytes", value="0"),
    ]
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    answer = client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 4, CreateTopicsResponse)
    assert not answer.topics[0].error_code, answer


def _print(count: int, size: int, codec: Compression, best: dict[bool, tuple[float, float]]) -> None:
    columns = []
    for is_on in (False, True):
        records = best[is_on][0] * count
        columns.append(f"{records:14,.0f} {records * size / 1e6:6,.0f}")
    times = " and ".join(f"{best[is_on][1] / count * 1e6:.2f}" for is_on in (False, True))
    print(f"{count:7}  {size:5}  {codec.name.lower():7} {columns[0]} {columns[1]}   {times} µs", flush=True)


if __name__ == "__main__":
    main()
