"""The workloads for comparing the data source `tailrace` with Spark's Kafka connector: a first row, and queries.

Every Spark session is a separate process. Both sides read the same topics of one broker and write to topics of the same
shape.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.clients.topics import create_topic
from bench.harness.failures import ClientFailedError
from bench.harness.paths import ROOT
from bench.harness.plan import turns
from bench.harness.suite import Figures, Metrics, OneSample, Say, Workload
from bench.workloads.spark_rows import CONNECTOR, KEY_BYTES, OURS, PARTITIONS, Rows, topic_of

SYSTEMS = (OURS, CONNECTOR)
#: The batch size of the topics to read, as of a producer with a reasonable batch.size.
LOADED_BATCH_BYTES = 64 << 10
_LOADED_ROWS = 10_000
_SESSION_TIMEOUT_SECONDS = 1800
#: The share of a workload's rows that warms up its code.
_WARM_UP_SCALE = 0.05


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """The topics to read, and a place for a session's files."""

    bootstrap: str
    directory: Path
    sizes: tuple[Rows, ...]
    round: int
    #: The measured side; if it is neither, both take turns in one session.
    system: str
    say: Say


@dataclass(frozen=True, slots=True)
class FirstRow(OneSample[SparkTarget]):
    """How long a user waits for the first row, in a separate process for each side."""

    name = "first-row"

    def measure(self, target: SparkTarget) -> Metrics:
        topic = topic_of(target.sizes[0])
        asked = {"task": "first-row", "systems": [target.system], "topic": topic, "started": time.time()}
        (line,) = session(target, asked)
        metrics: Metrics = line["metrics"]
        return metrics


@dataclass(frozen=True, slots=True)
class Queries(Workload[SparkTarget]):
    """One session for both sides, in which they take turns; the first one alternates from query to query."""

    actions: tuple[str, ...]
    name = "workloads"

    def run(self, target: SparkTarget) -> Iterator[Figures]:
        plan = SessionPlan(target)
        for is_warm_up in (True, False):
            queries = [(action, rows) for rows in target.sizes for action in self.actions]
            for number, (action, rows) in enumerate(queries, start=target.round):
                for system in turns(SYSTEMS, number):
                    plan.add(system, action, rows, is_warm_up)
        try:
            for line in session(target, {"task": "workloads", "systems": list(SYSTEMS), "steps": plan.steps}):
                if line["is_warm_up"]:
                    target.say(f"{line['workload']} of {line['system']} (warm-up)")
                else:
                    yield Figures(line["workload"], line["metrics"], line["system"])
            plan.check_written()
        finally:
            plan.delete_written()


@dataclass(slots=True)
class SessionPlan:
    """The steps of a session, and the topics that they write."""

    target: SparkTarget
    steps: list[dict[str, Any]] = field(default_factory=list)
    _written: dict[str, int] = field(default_factory=dict)

    def add(self, system: str, action: str, rows: Rows, is_warm_up: bool) -> None:
        """Plan a query; one that writes gets its own topic."""
        topic = topic_of(rows)
        if is_warm_up:
            rows = rows.scaled(_WARM_UP_SCALE)
        if action == "write":
            topic = f"written-{self.target.round}-{len(self._written)}"
            create_topic(self.target.bootstrap, topic, PARTITIONS)
            self._written[topic] = rows.written
        given = [rows.name, rows.record_bytes, rows.read, rows.written]
        self.steps.append({"system": system, "action": action, "rows": given, "topic": topic, "is_warm_up": is_warm_up})

    def check_written(self) -> None:
        """Raise if a topic does not have everything that was written to it."""
        for topic, count in self._written.items():
            found = record_count(self.target.bootstrap, topic)
            if found != count:
                raise ClientFailedError(f"{topic} has {found} records, expected {count}")

    def delete_written(self) -> None:
        if self._written:
            AdminClient({"bootstrap.servers": self.target.bootstrap}).delete_topics(list(self._written))


def session(target: SparkTarget, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a session to its end, and yield its output as it arrives."""
    given = {**asked, "bootstrap": target.bootstrap, "scratch": str(target.directory)}
    output = target.directory / "stderr"
    command = [sys.executable, "-m", "bench.workloads.spark_session", json.dumps(given)]
    with output.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
        assert process.stdout is not None
        with process.stdout:
            try:
                yield from map(json.loads, process.stdout)
                code = process.wait(_SESSION_TIMEOUT_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
    if code:
        raise ClientFailedError(f"a Spark session ended with {code}\n{output.read_text()[-3000:]}")


def load(bootstrap: str, rows: Rows) -> None:
    """Fill a topic, with the same number of rows in every partition, in batches of a usual size."""
    import pyarrow as pa

    from tailrace.pipeline.sink.columns import WriteColumns
    from tailrace.pipeline.sink.settings import WriteSettings
    from tailrace.pipeline.sink.topic_writing import write_rows

    topic = topic_of(rows)
    create_topic(bootstrap, topic, PARTITIONS)
    host, _, port = bootstrap.rpartition(":")
    settings = WriteSettings(((host, int(port)),), topic, max_batch_bytes=LOADED_BATCH_BYTES)
    text = (bytes(range(33, 123)) * 11)[: rows.record_bytes - KEY_BYTES]
    value = pa.array([text] * _LOADED_ROWS, pa.binary())

    def batches() -> Iterator[Any]:
        for first in range(0, rows.read, _LOADED_ROWS):
            numbers = range(first, min(first + _LOADED_ROWS, rows.read))
            keys = pa.array([b"%0*d" % (KEY_BYTES, number) for number in numbers], pa.binary())
            yield pa.record_batch([keys, value[: len(numbers)]], names=["key", "value"])

    write_rows(batches(), WriteColumns(value=1, key=0), settings)


def record_count(bootstrap: str, topic: str) -> int:
    """Return the number of records of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in range(PARTITIONS)]
    finally:
        consumer.close()
    return sum(end - start for start, end in ends)
