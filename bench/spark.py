"""The data source `tailrace` beside Spark's Kafka connector, in one run: `make bench-spark`, `python -m bench.spark`.

Both read the same topics of the same broker and write to topics of the same shape, on local[2]: rows counted, rows to
Parquet, rows written, at 100 B and 1 KB; and how long the first row takes in a fresh process. Owns the order of the
run, its progress lines and its results, bench/results/spark.json. A step that fails is recorded and the run goes on;
whatever was started is stopped in every case.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import report
from bench.harness import machine
from bench.harness.paths import CONNECTOR_JARS, ROOT
from bench.harness.processes import ServerFailedError
from bench.harness.ratios import HIGHER_IS_BETTER, LOWER_IS_BETTER, Sample, compute_ratios
from bench.systems.tailrace import Tailrace
from bench.workloads.spark_rows import ACTIONS, CONNECTOR, KEY_BYTES, OURS, PARTITIONS, SIZES, Rows, topic_of, turns

SYSTEMS = (OURS, CONNECTOR)
PARTS = ("first-row", *ACTIONS)
#: How batches of a topic that is read are laid out, as a producer with a batch.size that is worth setting makes them.
LOADED_BATCH_BYTES = 64 << 10
LOADED_ROWS = 10_000
SESSION_TIMEOUT_SECONDS = 1800
QUICK_SCALE = 0.1
#: Of a workload's rows, to bring code that runs for the first time up to speed.
WARM_UP_SCALE = 0.05


class SessionFailedError(Exception):
    """A Spark session of the benchmark ended with an error; the message carries its output."""


class Run:
    """The state of one run: its samples, its failures, its clock."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.rounds: int = options.rounds
        self.scale: float = QUICK_SCALE if options.quick else options.scale
        self.parts: Sequence[str] = options.parts
        self.samples: list[Sample] = []
        self.failures: list[dict[str, Any]] = []
        self._scratch = scratch
        self._started = time.monotonic()
        self._round = 1
        self._topics = 0
        self._bootstrap = ""

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._started) / 60

    def run(self) -> None:
        """All rounds against one broker."""
        broker = Tailrace()
        handle = broker.start(self._scratch / "broker")
        self._bootstrap = handle.address
        try:
            broker.wait_ready()
            for rows in self._sizes():
                self._say("broker", f"loading {rows.read:,} rows of {rows.record_bytes} B into {topic_of(rows)}")
                self._create(topic_of(rows))
                load(self._bootstrap, topic_of(rows), rows)
            for number in range(1, self.rounds + 1):
                self._round = number
                if "first-row" in self.parts:
                    for system in turns(SYSTEMS, number):
                        self._first_row(system)
                if any(action in self.parts for action in ACTIONS):
                    self._workloads()
                broker.server.check_alive()
        finally:
            broker.stop()

    def _sizes(self) -> list[Rows]:
        return [rows.scaled(self.scale) for rows in SIZES]

    def _create(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS)], operation_timeout=120)[topic].result(120)

    def _first_row(self, system: str) -> None:
        asked = {"task": "first-row", "systems": [system], "topic": topic_of(SIZES[0]), "started": time.time()}
        try:
            (line,) = self._session(asked)
        except SessionFailedError as error:
            self._failed(system, "first-row", error)
        else:
            self._keep(system, line)

    def _workloads(self) -> None:
        """One session for both, in which they take turns; who goes first alternates from workload to workload."""
        steps = []
        written: list[tuple[str, int]] = []
        plan = [(action, rows) for rows in self._sizes() for action in ACTIONS if action in self.parts]
        for is_warm_up in (True, False):
            for number, (action, rows) in enumerate(plan, start=self._round):
                for system in turns(SYSTEMS, number):
                    step_rows = rows.scaled(WARM_UP_SCALE) if is_warm_up else rows
                    topic = topic_of(rows)
                    if action == "write":
                        self._topics += 1
                        self._create(topic := f"written-{self._topics}")
                        written.append((topic, step_rows.written))
                    given = [step_rows.name, step_rows.record_bytes, step_rows.read, step_rows.written]
                    steps.append(
                        {"system": system, "action": action, "rows": given, "topic": topic, "is_warm_up": is_warm_up}
                    )
        try:
            for line in self._session({"task": "workloads", "systems": list(SYSTEMS), "steps": steps}):
                if not line["is_warm_up"]:
                    self._keep(line["system"], line)
            for topic, count in written:
                found = record_count(self._bootstrap, topic)
                if found != count:
                    raise SessionFailedError(f"{topic} has {found} records in place of {count}")
        except SessionFailedError as error:
            self._failed(" and ".join(SYSTEMS), "workloads", error)
        AdminClient({"bootstrap.servers": self._bootstrap}).delete_topics([topic for topic, _ in written])
        os.sync()

    def _session(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run a session to its end and give what it said."""
        directory = Path(tempfile.mkdtemp(prefix="session-", dir=self._scratch))
        given = {**asked, "bootstrap": self._bootstrap, "scratch": str(directory)}
        output = directory / "stderr"
        command = [sys.executable, "-m", "bench.workloads.spark_session", json.dumps(given)]
        lines: list[dict[str, Any]] = []
        try:
            with output.open("wb") as errors:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
                assert process.stdout is not None
                with process.stdout:
                    try:
                        for text in process.stdout:
                            line = json.loads(text)
                            lines.append(line)
                            if asked["task"] == "workloads":
                                self._show(line.get("system", ""), line)
                        code = process.wait(SESSION_TIMEOUT_SECONDS)
                    finally:
                        if process.poll() is None:
                            process.terminate()
                            process.wait()
            if code:
                raise SessionFailedError(f"a Spark session ended with {code}\n{output.read_text()[-3000:]}")
        finally:
            shutil.rmtree(directory)
        return lines

    def _keep(self, system: str, line: Mapping[str, Any]) -> None:
        self.samples.append(Sample(system, line["workload"], self._round, line["metrics"]))
        if line["workload"] == "first-row":
            self._show(system, line)

    def _show(self, system: str, line: Mapping[str, Any]) -> None:
        words = ", ".join(f"{name} {report.number(line['metrics'][name])}" for name in shown(line["metrics"]))
        self._say(system, f"{line['workload']}{' (warm-up)' if line.get('is_warm_up') else ''}: {words}")

    def _failed(self, system: str, workload: str, error: Exception) -> None:
        reason = str(error)
        self.failures.append({"system": system, "workload": workload, "reason": reason, "round": self._round})
        self._say(system, f"FAILED: {reason}")

    def _say(self, system: str, text: str) -> None:
        print(f"[{self.minutes:5.1f} min] round {self._round}/{self.rounds} {system}: {text}", flush=True)

    def results(self) -> dict[str, Any]:
        """Everything that is written to the results file."""
        judged_by: dict[str, dict[str, None]] = {}
        for sample in self.samples:
            judged_by.setdefault(sample.workload, {}).update(dict.fromkeys(shown(sample.metrics)))
        versions, _ = machine.describe_versions([OURS])
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": self.minutes,
            "machine": machine.describe_machine(self._scratch),
            "versions": {name: versions[name] for name in ("python", "java", OURS)} | spark_versions(),
            "settings": {
                "master": "local[2]",
                "partitions": PARTITIONS,
                "loaded_batch_bytes": LOADED_BATCH_BYTES,
                "rounds": self.rounds,
                "scale": self.scale,
                "rows": {rows.name: {"read": rows.read, "written": rows.written} for rows in self._sizes()},
                "parts": list(self.parts),
            },
            "ratios": compute_ratios(self.samples, {name: list(metrics) for name, metrics in judged_by.items()}),
            "shares": [],
            "skipped": [],
            "failures": self.failures,
            "samples": [
                {"system": each.system, "workload": each.workload, "round": each.round, "metrics": dict(each.metrics)}
                for each in self.samples
            ],
        }


def shown(metrics: Mapping[str, float]) -> list[str]:
    """The figures that have a better side, and so are compared."""
    return [name for name in metrics if name in HIGHER_IS_BETTER or name in LOWER_IS_BETTER]


def spark_versions() -> dict[str, str]:
    """The versions of Spark and of its connector."""
    import pyspark

    (jar,) = CONNECTOR_JARS.glob("spark-sql-kafka-0-10_*.jar")
    return {"spark": pyspark.__version__, CONNECTOR: jar.stem.rpartition("-")[2]}


def load(bootstrap: str, topic: str, rows: Rows) -> None:
    """Fill a topic, every partition with the same number of rows, in batches of a usual size."""
    import pyarrow as pa

    from tailrace.pipeline.sink.columns import WriteColumns
    from tailrace.pipeline.sink.settings import WriteSettings
    from tailrace.pipeline.sink.topic_writing import write_rows

    host, _, port = bootstrap.rpartition(":")
    settings = WriteSettings(((host, int(port)),), topic, max_batch_bytes=LOADED_BATCH_BYTES)
    value = pa.array([bytes(range(33, 123)) * 11] * LOADED_ROWS, pa.binary())
    value = pa.array([each[: rows.record_bytes - KEY_BYTES] for each in value.to_pylist()], pa.binary())

    def batches() -> Any:
        for first in range(0, rows.read, LOADED_ROWS):
            numbers = range(first, min(first + LOADED_ROWS, rows.read))
            keys = pa.array([b"%0*d" % (KEY_BYTES, number) for number in numbers], pa.binary())
            yield pa.record_batch([keys, value[: len(numbers)]], names=["key", "value"])

    write_rows(batches(), WriteColumns(value=1, key=0), settings)


def record_count(bootstrap: str, topic: str) -> int:
    """How many records a topic has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in range(PARTITIONS)]
    finally:
        consumer.close()
    return sum(end - start for start, end in ends)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.spark", description="the data source beside Spark's Kafka connector")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of rows")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help="only these")
    parser.add_argument("--output", type=Path, default=report.SPARK_RESULTS)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data", help="where all data is kept")
    options = parser.parse_args()
    # A stopped benchmark must stop its servers too.
    signal.signal(signal.SIGTERM, _interrupt)
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="spark-", dir=options.scratch))
    try:
        run = Run(options, scratch)
        run.run()
        results = run.results()
    except ServerFailedError as error:
        print(f"bench.spark: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + report.spark_summary(results))
    print(f"\n{run.minutes:.1f} minutes; wrote {options.output}")
    if run.failures:
        print(f"{len(run.failures)} steps failed", file=sys.stderr)
    elif options.output == report.SPARK_RESULTS and report.is_whole_spark_run(results):
        report.write_spark_docs()
    return int(bool(run.failures))


if __name__ == "__main__":
    sys.exit(main())
