"""Reads records that only the archive has, through the broker, compared with reading the same records from the log.

Measures a catch-up read through librdkafka, the lookup of single offsets, and the effect on live traffic.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.clients.connection import connected
from bench.clients.programs import beside, measured, rdbench, result_of
from bench.clients.server import Handle
from bench.harness.failures import ClientFailedError
from bench.harness.suite import Metrics, OneSample
from bench.systems.system import System
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

LOG, ARCHIVE, NOTHING = "log", "archive", "nothing"
#: The number of records for each size: more bytes than the broker's helper process caches in decoded form.
SIZES = {1000: 600_000, 100: 3_000_000}
LOOKED_UP = 1_000
#: The size of a lookup's response: a single record, or librdkafka's default.
LOOKUP_BYTES = {"one": 1, "1mb": 1 << 20}
LIVE_RATE = 1_000
LIVE_ARCHIVE = "archive-live"
_LIVE_SECONDS = 10
#: More records of 1 KB than can be read from an archive in a second.
_LIVE_READ_RATE = 300_000
_FETCH = Versions(11, 11)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A broker with the same records in the log of one topic and in the archive of another, and the one to read."""

    broker: System
    handle: Handle
    source: str
    scale: float
    #: Selects the offsets that are looked up.
    seed: int

    def consume(self, topic: str, size: int, count: int) -> list[str]:
        """Return the command that reads a topic from its beginning."""
        options: dict[str, object] = {"partitions": 1, "count": count, "size": size, "from_beginning": True}
        return rdbench("consume", self.handle, topic, **options, seconds=120)


def topic_of(source: str, size: int) -> str:
    return f"{source}-{size}b"


def record_count(size: int, scale: float) -> int:
    """Return the number of records of a size."""
    return max(1000, int(SIZES[size] * scale))


def live_seconds(scale: float) -> float:
    return max(2.0, _LIVE_SECONDS * min(1.0, scale))


def live_record_count(scale: float) -> int:
    """Return more records than one reader can read beside live traffic, including its start and warm-up."""
    return int((live_seconds(scale) + 3) * _LIVE_READ_RATE)


@dataclass(frozen=True, slots=True)
class CatchUpRead(OneSample[ReadTarget]):
    """Read everything from the beginning, with librdkafka."""

    size: int

    @property
    def name(self) -> str:
        return f"catch-up-{self.size}b"

    def measure(self, target: ReadTarget) -> Metrics:
        count = record_count(self.size, target.scale)
        metrics = measured(target.broker, target.consume(topic_of(target.source, self.size), self.size, count))
        return {name: metrics[name] for name in ("throughput_mb_s", "cpu_s_per_gb", "rss_mb")}


@dataclass(frozen=True, slots=True)
class LookUp(OneSample[ReadTarget]):
    """Look up single offsets, one after another on one connection; a first pass does not count."""

    size: int
    #: One of LOOKUP_BYTES.
    answer: str

    @property
    def name(self) -> str:
        return f"lookup-{self.answer}-{self.size}b"

    def prepare(self, target: ReadTarget) -> None:
        self._look_up(target)

    def measure(self, target: ReadTarget) -> Metrics:
        ordered = sorted(self._look_up(target))
        return {"p50_ms": statistics.median(ordered), "p99_ms": ordered[len(ordered) * 99 // 100]}

    def _look_up(self, target: ReadTarget) -> list[float]:
        chance = random.Random(target.seed)
        count = record_count(self.size, target.scale)
        offsets = [chance.randrange(count) for _ in range(LOOKED_UP)]
        return look_up(target.handle, topic_of(target.source, self.size), offsets, LOOKUP_BYTES[self.answer])


@dataclass(frozen=True, slots=True)
class LiveBeside(OneSample[ReadTarget]):
    """Live traffic alone, beside consecutive readers of the log, or beside one reader of the archive."""

    name = "live-beside"

    def measure(self, target: ReadTarget) -> Metrics:
        seconds = live_seconds(target.scale)
        options: dict[str, object] = {"rate": LIVE_RATE, "seconds": seconds, "size": 100, "warmup_seconds": 1}
        command = rdbench("latency", target.handle, "live", **options)
        with beside(command) as live:
            if target.source == LOG:
                _read_log_beside(target, live)
            elif target.source == ARCHIVE:
                _read_archive_beside(target, live)
            metrics = result_of(live, command)
        return {name: metrics[name] for name in ("p50_ms", "p99_ms", "p999_ms")}


def _read_log_beside(target: ReadTarget, live: subprocess.Popen[str]) -> None:
    count = record_count(1000, target.scale)
    while live.poll() is None:
        with _reading(target.consume(topic_of(LOG, 1000), 1000, count)) as reader:
            _wait_for_either(reader, live)


def _read_archive_beside(target: ReadTarget, live: subprocess.Popen[str]) -> None:
    # The cost of readers that start and end is not the broker's.
    with _reading(target.consume(LIVE_ARCHIVE, 1000, live_record_count(target.scale))) as reader:
        _wait_for_either(reader, live)
        if reader.poll() is not None:
            raise ClientFailedError("the reader reached the end of the archive before the live traffic ended")


@contextmanager
def _reading(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with beside(command) as process:
        yield process
        if process.poll():
            raise ClientFailedError(f"{' '.join(command)}: exit code {process.returncode}")


def _wait_for_either(*processes: subprocess.Popen[str]) -> None:
    while all(process.poll() is None for process in processes):
        time.sleep(0.01)


def look_up(handle: Handle, topic: str, offsets: Sequence[int], max_bytes: int) -> list[float]:
    """Ask for offsets one after another; return how many ms each took until its record arrived."""
    times = []
    with connected(handle) as connection:
        version = connection.version_of(FetchRequest, _FETCH)
        for offset in offsets:
            wanted = FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=-1
            )
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=30_000,
                min_bytes=1,
                max_bytes=max(max_bytes, 1 << 20),
                topics=[FetchTopic(topic=topic, partitions=[wanted])],
            )
            started = time.perf_counter()
            connection.send(request, version)
            body = connection.receive()
            times.append((time.perf_counter() - started) * 1000)
            answer = FetchResponse.decode(version, body).responses[0].partitions[0]
            if answer.error_code or not answer.records:
                raise ClientFailedError(f"offset {offset} of {topic}: error {answer.error_code}, or no records")
    return times
