"""The speed of `tailrace pipeline archive`: a topic is filled by librdkafka and archived to a local directory.

Broker, driver and tasks share the machine. The first commit of a run is the warm-up, in which Spark starts its Python
workers; the figures cover all others, including the commits.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass

from confluent_kafka import Producer

from bench.clients.topics import create_topic
from bench.harness.failures import ClientFailedError
from bench.harness.suite import Metrics, OneSample
from bench.workloads.spark_rows import KEY_BYTES, PARTITIONS, Rows, figures
from bench.workloads.target import Target

#: Different values, enough that none repeats within a page of a file; a prime number, so that every partition gets all
#: of them.
_VALUES = 50_021
_RUN_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Archiving(OneSample[Target]):
    """A topic of records, half of whose bytes are random, archived to its end by a process on local[2]."""

    rows: Rows
    judged_by = ("throughput_mb_s", "rows_s")

    @property
    def name(self) -> str:
        return self.rows.name

    def prepare(self, target: Target) -> None:
        target.say(f"filling a topic with {self.rows.read:,} rows of {self.rows.record_bytes} B")
        target.system.wait_ready()
        fill(target.handle.address, self.rows)
        # Writing the topic must not affect the measurement.
        os.sync()

    def measure(self, target: Target) -> Metrics:
        place, errors = target.data_dir / "archive", target.data_dir / "stderr"
        command = [
            sys.executable,
            "-m",
            "tailrace",
            "pipeline",
            "archive",
            self.rows.name,
            "--to",
            str(place),
            "--once",
        ]
        command += ["--bootstrap", target.handle.address, "--master", "local[2]", "--json"]
        begun = time.monotonic()
        with errors.open("wb") as stream:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=stream, text=True, timeout=_RUN_TIMEOUT_SECONDS, check=False
            )
        seconds = time.monotonic() - begun
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        archived = sum(line["rows"] for line in lines)
        if done.returncode or archived != self.rows.read:
            raise ClientFailedError(f"exit code {done.returncode}, {archived} rows\n{errors.read_text()[-3000:]}")
        first, *others = lines
        if not others:
            raise ClientFailedError("all rows were archived in the first round, which is the warm-up: use more rows")
        warm_rows, warm_ms = (sum(line[name] for line in others) for name in ("rows", "duration_ms"))
        return {
            **figures(warm_rows, self.rows.record_bytes, warm_ms / 1000),
            "first_round_mb_s": first["mb_per_second"],
            "whole_command_s": seconds,
            "commits": len(lines),
            "files": sum(line["files"] for line in lines),
            "archived_mb": sum(line["file_bytes"] for line in lines) / 1e6,
        }


def fill(bootstrap: str, rows: Rows) -> None:
    """Fill a topic with librdkafka, all partitions equally."""
    create_topic(bootstrap, rows.name, PARTITIONS)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 18, "acks": "1"}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20})
    generator = random.Random(1)
    size = rows.record_bytes - KEY_BYTES
    values = [generator.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(_VALUES)]
    for number in range(rows.read):
        key = b"%0*d" % (KEY_BYTES, number)
        while True:
            try:
                producer.produce(rows.name, values[number % _VALUES], key, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    if left := producer.flush(300):
        raise ClientFailedError(f"{left} records could not be written to the topic")
