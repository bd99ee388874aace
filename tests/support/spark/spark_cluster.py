"""A real Spark standalone cluster on loopback: a master and workers, each a process of its own.

Owns the processes, their folders and their output. It ends only processes that it started, by their pids. It must not
know pytest, nor what runs on the cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyspark

from tests.support.brokers.broker_process import free_port

SPARK_HOME = Path(pyspark.__file__).parent
START_TIMEOUT_SECONDS = 300
STOP_TIMEOUT_SECONDS = 30
#: What an executor of a program on this cluster may have: each worker offers one core and memory for one of them.
EXECUTOR_MEMORY_MB = 512


class ClusterFailedError(Exception):
    """The cluster did not reach the expected state; the message has the output of its processes."""


def clean_environment() -> dict[str, str]:
    """The environment without variables that lead the cluster's Python to another installation."""
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "SPARK_CONF_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}


class SparkCluster:
    """A master and its workers; use it as a context manager."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._port = free_port()
        self._web_port = free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._wanted = workers
        self._started = 0

    @property
    def url(self) -> str:
        """The value for `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> SparkCluster:
        try:
            self._master = self._run(
                "master.Master", "--port", str(self._port), "--webui-port", str(self._web_port), name="master"
            )
            self._wait("the master answers", lambda: self.state() is not None)
            for _ in range(self._wanted):
                self._start_worker()
            self.wait_for_workers(self._wanted)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        executors = [pid for worker in self._workers for pid in children(worker.pid)]
        running = [*self._workers, *([self._master] if self._master is not None else [])]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._workers, self._master = [], None
        # A worker ends its executors before it ends itself.
        self._wait("executors are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in executors))

    def workers(self) -> list[int]:
        """The pids of the workers that were started and not killed."""
        return [worker.pid for worker in self._workers]

    def executors(self, worker: int) -> list[int]:
        """The pids of the executors that a worker has started."""
        return children(worker)

    def kill_worker(self, pid: int) -> None:
        """End a worker and its executors with SIGKILL, like the loss of a machine."""
        (worker,) = (one for one in self._workers if one.pid == pid)
        executors = children(pid)
        worker.kill()
        worker.wait()
        self._workers.remove(worker)
        for executor in executors:
            try:
                os.kill(executor, 9)
            except ProcessLookupError:
                pass

    def state(self) -> dict[str, Any] | None:
        """The master's status, or None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as refusal:
            refusal.close()  # Python 3.14 warns about one that the collector has to close
            return None
        except (urllib.error.URLError, OSError, ValueError):  # not listening, or not answering yet
            return None

    def wait_for_workers(self, count: int) -> None:
        """Wait until the master counts this many workers as alive."""
        self._wait(f"{count} workers are alive", lambda: (self.state() or {}).get("aliveworkers") == count)

    def _start_worker(self) -> None:
        number = self._started
        self._started += 1
        ports = ("--port", str(free_port()), "--webui-port", str(free_port()))
        size = (
            "--cores",
            "1",
            "--memory",
            f"{EXECUTOR_MEMORY_MB}m",
            "--work-dir",
            str(self._folder / f"work-{number}"),
        )
        self._workers.append(self._run("worker.Worker", *ports, *size, self.url, name=f"worker-{number}"))

    def _run(self, what: str, *arguments: str, name: str) -> subprocess.Popen[bytes]:
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1"]
        scratch = self._folder / f"{name}-tmp"
        scratch.mkdir(parents=True)
        environment: Mapping[str, str] = {**clean_environment(), "SPARK_LOCAL_DIRS": str(scratch)}
        with (self._folder / f"{name}.out").open("wb") as output:
            return subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self._folder,
            )

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise ClusterFailedError(f"not within {START_TIMEOUT_SECONDS} s: {what}\n{self.output()}")
            time.sleep(0.1)

    def output(self) -> str:
        """The last lines of what each process printed."""
        parts = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self._folder.glob("*.out")]
        return "\n".join(sorted(parts))


def children(pid: int) -> list[int]:
    """The pids of the processes that a process has started and that still run."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, tasks.read_text().split())
        except OSError:  # the thread has ended
            continue
    return sorted(found)
