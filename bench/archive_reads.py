"""Reading what only the archive has, through the broker: `python -m bench.archive_reads`, after `scripts/setup-bench`.

The same records are in two topics, in the log of one and in the archive of the other. Measured are the look-up of
single offsets, a catch-up read through librdkafka from either, and what live traffic notices while that goes on, from
an archive that is long enough for one reader all the time: what readers cost that start and end is not the broker's.
Owns the order of the run, its progress lines and its results, bench/results/archive-reads.json. Whatever was started
is stopped in every case.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench import report
from bench.clients.programs import ClientFailedError, Metrics, measured, parse_result, rdbench, run_client
from bench.harness import machine
from bench.harness.paths import ROOT
from bench.harness.processes import ServerFailedError, ServerProcess
from bench.systems.system import Handle
from bench.systems.tailrace import Tailrace
from bench.workloads.archive_filling import fill_archive
from tailrace.client.request import ask
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.settings import ConnectionSettings
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

RESULTS = ROOT / "bench/results/archive-reads.json"
LOG, ARCHIVE = "log", "archive"
#: For each size, how many records: more bytes than the broker's helper process keeps of what it has decoded.
SIZES = {1000: 600_000, 100: 3_000_000}
LOOKED_UP = 1_000
#: What a look-up may be answered with: a single record, or as much as librdkafka asks for unless told otherwise.
LOOKUP_BYTES = {"one": 1, "1mb": 1 << 20}
LIVE_RATE = 1_000
LIVE_SECONDS = 10
LIVE_ARCHIVE = "archive-live"
#: More records of 1 KB than an archive is read in a second.
LIVE_READ_RATE = 300_000
GIVEN_UP_SECONDS = 120.0
QUICK_SCALE = 0.1
_FETCH = Versions(11, 11)
_EARLIEST_LOCAL = -4


class Archiving(Tailrace):
    """A broker that looks often for what it may give up."""

    def _launch(self, data_dir: Path, port: int) -> ServerProcess:
        often = ["--set", "log.retention.check.interval.ms=500"]
        return ServerProcess([*self.command(data_dir, port), *often], data_dir / "output")


class Run:
    """The state of one run: its samples and its clock."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.rounds: int = options.rounds
        self.scale: float = QUICK_SCALE if options.quick else options.scale
        self.seed: int = options.seed
        self.samples: list[dict[str, Any]] = []
        self._scratch = scratch
        self._started = time.monotonic()
        self._round = 1
        self._broker = Archiving()
        self._handle = Handle("", 0, 0)

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._started) / 60

    def run(self) -> None:
        """All rounds against one broker."""
        self._handle = self._broker.start(self._scratch / "broker")
        try:
            self._broker.wait_ready()
            for size in SIZES:
                self._fill(size)
            self._fill_archive(LIVE_ARCHIVE, 1000, self._live_count)
            # What was written is none of the measured.
            os.sync()
            for number in range(1, self.rounds + 1):
                self._round = number
                for size in SIZES:
                    self._catch_up(size)
                    self._look_up(size)
                self._live()
                self._broker.server.check_alive()
        finally:
            self._broker.stop()

    def _count(self, size: int) -> int:
        return max(1000, int(SIZES[size] * self.scale))

    @property
    def _live_seconds(self) -> float:
        return max(2.0, LIVE_SECONDS * min(1.0, self.scale))

    @property
    def _live_count(self) -> int:
        """More records than one reader gets through beside live traffic, its start and warm-up included."""
        return int((self._live_seconds + 3) * LIVE_READ_RATE)

    def _fill(self, size: int) -> None:
        """The same records into the log of one topic, and through the log of another into its archive."""
        self._produce(topic_of(LOG, size), size, self._count(size), {})
        self._fill_archive(topic_of(ARCHIVE, size), size, self._count(size))

    def _produce(self, topic: str, size: int, count: int, config: dict[str, str]) -> None:
        admin = AdminClient({"bootstrap.servers": self._handle.address, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(60)
        run_client(rdbench("produce", self._handle, topic, partitions=1, count=count, size=size, acks=1))

    def _fill_archive(self, topic: str, size: int, count: int) -> None:
        archived = {
            "tailrace.archive.enable": "true",
            "tailrace.archive.uri": str(self._scratch / "archive"),
            "local.retention.ms": "1",
            "file.delete.delay.ms": "0",
        }
        self._produce(topic, size, count, archived)
        started = time.monotonic()
        fill_archive(self._handle.address, topic, count)
        self._say(f"{count:,} records of {size} B archived in {time.monotonic() - started:.1f} s")
        deadline = time.monotonic() + GIVEN_UP_SECONDS
        while local_start(self._handle.address, topic) < count:
            if time.monotonic() > deadline:
                raise ServerFailedError(f"the broker does not give up what is archived\n{self._broker.server.tree()}")
            time.sleep(0.1)
        # The process that reads archives is started by the first read.
        look_up(self._handle, topic, [0], 1)

    def _catch_up(self, size: int) -> None:
        """Everything from the beginning, by librdkafka, from log and archive in turn."""
        for source in (LOG, ARCHIVE) if self._round % 2 else (ARCHIVE, LOG):
            metrics = measured(self._broker, self._consume(topic_of(source, size), size, self._count(size)))
            self._keep(f"catch-up-{size}b", source, metrics, ("throughput_mb_s", "cpu_s_per_gb", "rss_mb"))

    def _consume(self, topic: str, size: int, count: int) -> list[str]:
        return rdbench(
            "consume",
            self._handle,
            topic,
            partitions=1,
            count=count,
            size=size,
            from_beginning=True,
            seconds=120,
        )

    def _look_up(self, size: int) -> None:
        """Single offsets anywhere, one after another on one connection; the first time does not count."""
        chance = random.Random(self.seed)
        offsets = [chance.randrange(self._count(size)) for _ in range(LOOKED_UP)]
        for name, max_bytes in LOOKUP_BYTES.items():
            for source in (LOG, ARCHIVE):
                for is_warm in (False, True):
                    times = look_up(self._handle, topic_of(source, size), offsets, max_bytes)
                    if is_warm:
                        self._keep(f"lookup-{name}-{size}b", source, percentiles(times), ("p50_ms", "p99_ms"))

    def _live(self) -> None:
        """Live traffic alone, beside readers of the log one after another, and beside one reader of the archive."""
        for source in ("nothing", LOG, ARCHIVE):
            seconds = self._live_seconds
            live = rdbench("latency", self._handle, "live", rate=LIVE_RATE, seconds=seconds, size=100, warmup_seconds=1)
            process = subprocess.Popen(live, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                if source == LOG:
                    self._read_log_beside(process)
                elif source == ARCHIVE:
                    self._read_archive_beside(process)
                output, errors = process.communicate(timeout=120)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
            self._keep("live-beside", source, parse_result(live, process.returncode, output, errors), LIVE_FIGURES)

    def _read_log_beside(self, live: subprocess.Popen[str]) -> None:
        while live.poll() is None:
            with reading(self._consume(topic_of(LOG, 1000), 1000, self._count(1000))) as reader:
                wait_for_either(reader, live)

    def _read_archive_beside(self, live: subprocess.Popen[str]) -> None:
        with reading(self._consume(LIVE_ARCHIVE, 1000, self._live_count)) as reader:
            wait_for_either(reader, live)
            if reader.poll() is not None:
                raise ClientFailedError("the archive was read to its end before the live traffic ended")

    def _keep(self, workload: str, source: str, metrics: Metrics, shown: Sequence[str]) -> None:
        kept = {name: metrics[name] for name in shown}
        self.samples.append({"workload": workload, "source": source, "round": self._round, "metrics": kept})
        self._say(f"{workload} {source}: " + ", ".join(f"{name} {report.number(kept[name])}" for name in shown))

    def _say(self, text: str) -> None:
        print(f"[{self.minutes:5.1f} min] round {self._round}/{self.rounds} {text}", flush=True)

    def results(self) -> dict[str, Any]:
        """Everything that is written to the results file."""
        versions, _ = machine.describe_versions(["tailrace"])
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": self.minutes,
            "machine": machine.describe_machine(self._scratch),
            "versions": {name: versions[name] for name in ("python", "librdkafka", "tailrace")},
            "settings": {
                "records": {f"{size}b": self._count(size) for size in SIZES},
                "looked_up": LOOKED_UP,
                "live_rate": LIVE_RATE,
                "rounds": self.rounds,
                "scale": self.scale,
                "seed": self.seed,
            },
            "figures": figures(self.samples),
            "samples": self.samples,
        }


LIVE_FIGURES = ("p50_ms", "p99_ms", "p999_ms")


def topic_of(source: str, size: int) -> str:
    return f"{source}-{size}b"


def local_start(bootstrap: str, topic: str) -> int:
    """Where the broker's own log of a topic begins."""
    wanted = ListOffsetsPartition(partition_index=0, timestamp=_EARLIEST_LOCAL, current_leader_epoch=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    answer = (
        ask(bootstrap, request, Versions(9, 9), ListOffsetsResponse, doing="listing offsets").topics[0].partitions[0]
    )
    return answer.offset


def look_up(handle: Handle, topic: str, offsets: Sequence[int], max_bytes: int) -> list[float]:
    """Ask for offsets one after another; how many ms each took until its record was there."""
    times = []
    settings = ConnectionSettings("bench", request_timeout_ms=60_000)
    with BrokerConnection((handle.host, handle.port), settings) as connection:
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


def percentiles(times: Sequence[float]) -> Metrics:
    ordered = sorted(times)
    return {"p50_ms": statistics.median(ordered), "p99_ms": ordered[len(ordered) * 99 // 100]}


@contextmanager
def reading(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A client that is ended at the end, if it has not ended itself."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        if process.poll():
            raise ClientFailedError(f"{' '.join(command)}: exit code {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_either(*processes: subprocess.Popen[str]) -> None:
    while all(process.poll() is None for process in processes):
        time.sleep(0.01)


def figures(samples: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each workload, the median of each figure by source, and the archive's in relation to the log's or to none."""
    by_workload: dict[str, dict[str, dict[str, list[float]]]] = {}
    for sample in samples:
        sources = by_workload.setdefault(sample["workload"], {})
        for name, value in sample["metrics"].items():
            sources.setdefault(sample["source"], {}).setdefault(name, []).append(value)
    found: dict[str, dict[str, Any]] = {}
    for workload, sources in by_workload.items():
        medians = {
            source: {name: statistics.median(values) for name, values in metrics.items()}
            for source, metrics in sources.items()
        }
        base = "nothing" if "nothing" in medians else LOG
        ratios = {name: value / medians[base][name] for name, value in medians[ARCHIVE].items() if medians[base][name]}
        found[workload] = {**medians, f"archive_to_{base}": ratios}
    return found


def summary(results: Mapping[str, Any]) -> str:
    """The medians as lines."""
    lines = []
    for workload, by_source in results["figures"].items():
        for source, metrics in by_source.items():
            words = ", ".join(f"{name} {report.number(value)}" for name, value in metrics.items())
            lines.append(f"{workload:<18} {source:<18} {words}")
    return "\n".join(lines)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.archive_reads", description="reading the archive through the broker")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of records")
    parser.add_argument("--seed", type=int, default=1, help="which offsets are looked up")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data", help="where all data is kept")
    options = parser.parse_args()
    # A stopped benchmark must stop its servers too.
    signal.signal(signal.SIGTERM, _interrupt)
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="archive-", dir=options.scratch))
    try:
        run = Run(options, scratch)
        run.run()
        results = run.results()
    except (ServerFailedError, ClientFailedError) as error:
        print(f"bench.archive_reads: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + summary(results))
    print(f"\n{run.minutes:.1f} minutes; wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
