"""One Spark session of the benchmark, in a separate process, with its tasks as JSON.

Prints a line of JSON for each figure. It gets rows that are already in topics, and executes its tasks in order. Must
not know what the figures are compared with.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness.paths import connector_jars
from bench.harness.processes import cpu_by_process, process_tree
from bench.workloads.spark_rows import CONNECTOR, FORMATS, KEY_BYTES, PARTITIONS, Rows, cpu_between, figures

#: For `prctl`: descendants that lose their parent become our children, so that their CPU counts.
_SET_CHILD_SUBREAPER = 36


def main() -> None:
    asked = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    session = _start(asked)
    try:
        if asked["task"] == "first-row":
            _first_row(session, asked)
        else:
            _workloads(session, asked)
    finally:
        session.stop()


def _start(asked: Mapping[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    from tailrace.pipeline.spark.worker_python import command_beside_python

    os.environ["PYSPARK_PYTHON"] = command_beside_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": asked["scratch"],
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{asked['scratch']}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if CONNECTOR in asked["systems"]:
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _first_row(session: Any, asked: Mapping[str, Any]) -> None:
    """Measure how long a user waits for a topic's first row, since the process started and since Spark is up."""
    up = time.time()
    (system,) = asked["systems"]
    rows = _read(session, system, asked["bootstrap"], asked["topic"]).limit(1).collect()
    now = time.time()
    assert len(rows) == 1
    _say("first-row", {"from_start_s": now - asked["started"], "first_row_s": now - up})


def _workloads(session: Any, asked: Mapping[str, Any]) -> None:
    for step in asked["steps"]:
        rows = Rows(*step["rows"])
        system, action = step["system"], step["action"]
        cpu_before = _cpu()
        if action == "write":
            metrics = _write(session, system, asked["bootstrap"], step["topic"], rows)
        else:
            frame = _read(session, system, asked["bootstrap"], step["topic"])
            if step["is_warm_up"]:
                frame = frame.limit(rows.read)
            metrics = (
                _count(frame, rows) if action == "count" else _parquet(frame, rows, Path(asked["scratch"]) / "out")
            )
        done = rows.written if action == "write" else rows.read
        metrics["cpu_s_per_million"] = cpu_between(cpu_before, _cpu()) / done * 1e6
        _say(f"{action}-{rows.name}", metrics, system=system, is_warm_up=step["is_warm_up"])


def _cpu() -> dict[int, float]:
    """Return the CPU time of each process of this session: the driver, its Java process, the Python workers."""
    return cpu_by_process(process_tree(os.getpid()))


def _read(session: Any, system: str, bootstrap: str, topic: str) -> Any:
    reader = session.read.format(FORMATS[system]).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def _count(frame: Any, rows: Rows) -> dict[str, float]:
    started = time.monotonic()
    found = frame.count()
    seconds = time.monotonic() - started
    if found != rows.read:
        raise SystemExit(f"counted {found} rows, expected {rows.read}")
    return figures(rows.read, rows.record_bytes, seconds)


def _parquet(frame: Any, rows: Rows, target: Path) -> dict[str, float]:
    started = time.monotonic()
    frame.write.mode("overwrite").parquet(str(target))
    seconds = time.monotonic() - started
    written = sum(path.stat().st_size for path in target.rglob("*.parquet"))
    shutil.rmtree(target)
    return {**figures(rows.read, rows.record_bytes, seconds), "parquet_mb": written / 1e6}


def _write(session: Any, system: str, bootstrap: str, topic: str, rows: Rows) -> dict[str, float]:
    from pyspark.sql import functions as f

    number = f.col("id").cast("string")
    frame = session.range(0, rows.written, 1, PARTITIONS).select(
        f.lpad(number, KEY_BYTES, "0").alias("key"),
        # Almost free to create: the measurement is about the way to the topic.
        f.concat(f.lpad(number, KEY_BYTES, "0"), f.lit("x" * (rows.record_bytes - 2 * KEY_BYTES))).alias("value"),
    )
    started = time.monotonic()
    frame.write.format(FORMATS[system]).mode("append").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", topic
    ).save()
    return figures(rows.written, rows.record_bytes, time.monotonic() - started)


def _say(workload: str, metrics: Mapping[str, float], **more: object) -> None:
    print(json.dumps({"workload": workload, "metrics": metrics, **more}), flush=True)


if __name__ == "__main__":
    main()
