"""Jobs run in tests: in the shared session to the end of what is there, or as a process `tailrace pipeline …`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace.client import Producer, read
from tailrace.pipeline.jobs.batches import Batch
from tailrace.pipeline.jobs.declaration import Job
from tailrace.pipeline.jobs.query import RunSettings
from tailrace.pipeline.jobs.run import Stop, run_job

LINE_TIMEOUT_SECONDS = 600
END_TIMEOUT_SECONDS = 600


@dataclass
class JobRuns:
    """One job, run repeatedly from the same checkpoint, each time until everything present is processed."""

    spark: SparkSession
    job: Job[...]
    bootstrap: str
    checkpoint: Path
    max_offsets_per_trigger: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def settings(self) -> RunSettings:
        return RunSettings(
            self.bootstrap,
            str(self.checkpoint),
            f"group-of-{self.job.sources[0].name}",
            once=True,
            max_offsets_per_trigger=self.max_offsets_per_trigger,
            options=self.options,
        )

    def once(self) -> list[Batch]:
        """Run to the end, and return the reports."""
        batches: list[Batch] = []
        run_job(self.spark, self.job, self.settings, report=batches.append, warn=self.warnings.append, stop=Stop())
        return batches


def send_json(bootstrap: str, topic: str, values: Iterable[dict[str, Any]], *, partition: int | None = None) -> None:
    """Send objects as JSON, in their order."""
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, json.dumps(value), partition=partition)


def read_json(bootstrap: str, topic: str) -> list[tuple[str | None, dict[str, Any]]]:
    """All records of a topic as their keys and JSON values."""
    with read(topic, bootstrap=bootstrap) as messages:
        return [
            (None if message.key is None else message.key.decode(), json.loads(message.value or b"null"))
            for message in messages
        ]


class JobProcess:
    """`tailrace pipeline run` in a process group of its own, with the objects that it prints for its batches.

    Any other command of `tailrace pipeline` that prints an object at a time is run as well.
    """

    def __init__(self, arguments: Sequence[str], errors: Path, command: str = "run") -> None:
        self._errors = errors
        with errors.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "pipeline", command, *arguments, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()

    def next_batch(self) -> dict[str, Any] | None:
        """The report of the next batch, None if the process has ended."""
        try:
            line = self._lines.get(timeout=LINE_TIMEOUT_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no line within {LINE_TIMEOUT_SECONDS} s\n{self.error_output()}") from None
        if line is None:
            return None
        batch: dict[str, Any] = json.loads(line)
        return batch

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the driver and its Java process, like the failure of a machine."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """The exit code, when the process has ended."""
        try:
            code = self._process.wait(END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise AssertionError(f"still running after {END_TIMEOUT_SECONDS} s\n{self.error_output()}") from None
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def error_output(self) -> str:
        return self._errors.read_text(errors="replace")[-8000:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
