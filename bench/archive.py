"""How fast `tailrace pipeline archive` gets through a topic: `python -m bench.archive`.

Topics of 1 KB and 100 B records, of which half of the bytes are random, are filled by librdkafka and archived to a
local directory on local[2], in a process of its own each time; broker, driver and tasks share the machine. The first
round of each is the warm-up, in which Spark starts its Python workers; the figures are of all others, commits included.
Owns the order of the run and its results, bench/results/archive.json. A step that fails is recorded, the run goes on;
whatever was started is stopped.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.harness import machine
from bench.harness.paths import ROOT
from bench.harness.processes import ServerFailedError
from bench.systems.tailrace import Tailrace
from bench.workloads.spark_rows import KEY_BYTES, PARTITIONS, Rows, figures

OURS = "tailrace"
RESULTS = ROOT / "bench/results/archive.json"
#: Keys and values together; as many rows are archived as are written.
SIZES = (Rows("1k", 1_000, 4_000_000, 4_000_000), Rows("100b", 100, 30_000_000, 30_000_000))
#: Less would be archived in one round.
QUICK_SCALE = 0.5
#: What is to be reached at each size.
GOALS = {"1k": ("throughput_mb_s", 200.0), "100b": ("rows_s", 700_000.0)}
#: Different values, enough of them that none comes again within a page of a file; a prime, so that every partition gets
#: all of them.
VALUES = 50_021
RUN_TIMEOUT_SECONDS = 1800


class ArchivingFailedError(Exception):
    """The command ended with an error, or did not archive all; the message carries its output."""


class Run:
    """The state of one run: its samples, its failures, its clock."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.rounds: int = options.rounds
        self.scale: float = QUICK_SCALE if options.quick else options.scale
        self.samples: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self._scratch = scratch
        self._started = time.monotonic()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._started) / 60

    def run(self) -> None:
        """Every size once in each round, each with a broker and topics of its own."""
        for number in range(1, self.rounds + 1):
            for rows in self._sizes():
                place = Path(tempfile.mkdtemp(dir=self._scratch))
                broker = Tailrace()
                bootstrap = broker.start(place / "broker").address
                try:
                    broker.wait_ready()
                    self._say(number, f"filling a topic with {rows.read:,} rows of {rows.record_bytes} B")
                    fill(bootstrap, rows)
                    os.sync()
                    metrics = archive(bootstrap, rows, place)
                except ArchivingFailedError as error:
                    self.failures.append({"system": OURS, "workload": rows.name, "reason": str(error), "round": number})
                    self._say(number, f"FAILED: {error}")
                else:
                    self.samples.append({"system": OURS, "workload": rows.name, "round": number, "metrics": metrics})
                    words = f"{metrics['throughput_mb_s']:.0f} MB/s, {metrics['rows_s']:,.0f} rows/s"
                    self._say(number, f"archived {rows.name}: {words}")
                finally:
                    broker.stop()
                    shutil.rmtree(place)

    def _sizes(self) -> list[Rows]:
        return [rows.scaled(self.scale) for rows in SIZES]

    def _say(self, number: int, text: str) -> None:
        print(f"[{self.minutes:5.1f} min] round {number}/{self.rounds}: {text}", flush=True)

    def results(self) -> dict[str, Any]:
        """Everything that is written to the results file."""
        import pyspark

        versions, _ = machine.describe_versions([OURS])
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": self.minutes,
            "machine": machine.describe_machine(self._scratch),
            "versions": {name: versions[name] for name in ("python", "java", OURS)} | {"spark": pyspark.__version__},
            "settings": {
                "master": "local[2]",
                "partitions": PARTITIONS,
                "rounds": self.rounds,
                "scale": self.scale,
                "rows": {rows.name: rows.read for rows in self._sizes()},
            },
            "goals": {name: {metric: least} for name, (metric, least) in GOALS.items()},
            "failures": self.failures,
            "samples": self.samples,
        }


def fill(bootstrap: str, rows: Rows) -> None:
    """Fill a topic with librdkafka, all partitions alike."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # A client that asks a broker in its first moments may hear of no controller, and asks again only minutes later.
    while admin.list_topics(timeout=30).controller_id < 0:
        time.sleep(0.1)
    admin.create_topics([NewTopic(rows.name, PARTITIONS)], operation_timeout=120)[rows.name].result(120)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 18, "acks": "1"}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20})
    generator = random.Random(1)
    size = rows.record_bytes - KEY_BYTES
    values = [generator.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(VALUES)]
    for number in range(rows.read):
        key = b"%0*d" % (KEY_BYTES, number)
        while True:
            try:
                producer.produce(rows.name, values[number % VALUES], key, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    if left := producer.flush(300):
        raise ArchivingFailedError(f"{left} records could not be written to the topic")


def archive(bootstrap: str, rows: Rows, place: Path) -> dict[str, float]:
    """Archive a topic to its end and give the figures of all rounds."""
    target, errors = place / "archive", place / "stderr"
    command = [sys.executable, "-m", "tailrace", "pipeline", "archive", rows.name, "--to", str(target), "--once"]
    command += ["--bootstrap", bootstrap, "--master", "local[2]", "--json"]
    begun = time.monotonic()
    with errors.open("wb") as stream:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, timeout=RUN_TIMEOUT_SECONDS, check=False
        )
    seconds = time.monotonic() - begun
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    archived = sum(line["rows"] for line in lines)
    if done.returncode or archived != rows.read:
        raise ArchivingFailedError(f"exit code {done.returncode}, {archived} rows\n{errors.read_text()[-3000:]}")
    first, *others = lines
    if not others:
        raise ArchivingFailedError("all rows were archived in the first round, which is the warm-up: take more rows")
    warm_rows, warm_ms = (sum(line[name] for line in others) for name in ("rows", "duration_ms"))
    return {
        **figures(warm_rows, rows.record_bytes, warm_ms / 1000),
        "first_round_mb_s": first["mb_per_second"],
        "whole_command_s": seconds,
        "commits": len(lines),
        "files": sum(line["files"] for line in lines),
        "archived_mb": sum(line["file_bytes"] for line in lines) / 1e6,
    }


def summary(results: Mapping[str, Any]) -> str:
    """What is printed at the end: each goal, and the median of what was reached."""
    lines = []
    for name, (metric, least) in GOALS.items():
        found = sorted(each["metrics"][metric] for each in results["samples"] if each["workload"] == name)
        if found:
            median = found[len(found) // 2]
            verdict = "reached" if median >= least else "missed"
            lines.append(f"{name} {metric}: median {median:,.0f} of {len(found)}, goal {least:,.0f} {verdict}")
    lines += [f"failed: {item['workload']}: {item['reason']}" for item in results["failures"]]
    return "\n".join(lines)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.archive", description="how fast topics are archived")
    parser.add_argument("--quick", action="store_true", help="half of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of rows")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data", help="where all data is kept")
    options = parser.parse_args()
    # A stopped benchmark must stop its broker too.
    signal.signal(signal.SIGTERM, _interrupt)
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="archive-", dir=options.scratch))
    try:
        run = Run(options, scratch)
        run.run()
        results = run.results()
    except ServerFailedError as error:
        print(f"bench.archive: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + summary(results))
    print(f"\n{run.minutes:.1f} minutes; wrote {options.output}")
    return int(bool(run.failures))


if __name__ == "__main__":
    sys.exit(main())
