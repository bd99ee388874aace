"""Spark's Python processes as forks of one that has loaded PySpark: equal to a fresh start, or no fork."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.pipeline.spark.warm_python import _settings_of
from tailrace.pipeline.spark.worker_python import command_beside_python
from tests.support.topics import eventually

ROOT = Path(__file__).parents[3]
SECRET = "hidden"
#: What a fork is asked to do in place of Spark's work.
PROBE = """
import json, os, sys, time

def main(infile, outfile):
    seen = {
        "daemon": os.getppid(),
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "who": os.environ.get("WHO"),
        "inherited": "PYTEST_CURRENT_TEST" in os.environ,
        "zone": time.tzname[0],
        "hash": hash("seed"),
        "threads": len(os.listdir("/proc/self/task")),
    }
    outfile.write(json.dumps(seen).encode() + b"\\n")
"""


class Daemon:
    """A daemon of PySpark's as Spark starts it, and what a worker of it sees."""

    def __init__(self, folder: Path, **environment: str) -> None:
        (folder / "pyspark_probe.py").write_text(PROBE)
        self.process = subprocess.Popen(
            [command_beside_python(), "-m", "pyspark.daemon", "pyspark_probe", "more"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(folder),
                "PYTHONHASHSEED": "0",
                "PYTHONUNBUFFERED": "YES",
                "PYTHON_WORKER_FACTORY_SECRET": SECRET,
                **environment,
            },
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.seen = self._look()

    @property
    def is_fork(self) -> bool:
        return bool(self.seen["daemon"] != self.process.pid)

    def _look(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        (port,) = struct.unpack(">i", self.process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            stream = connection.makefile("rwb")
            stream.read(4)  # the worker's pid
            stream.write(struct.pack(">i", len(SECRET)) + SECRET.encode())
            stream.flush()
            assert stream.read(6)[4:] == b"ok"
            seen: dict[str, Any] = json.loads(stream.readline())
            return seen

    def end(self) -> None:
        """As Spark ends it: its standard input is closed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def ask_version() -> None:
    """What Spark's driver does before it starts the first worker; without what it sets for workers."""
    clean = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([command_beside_python(), "-c", "print(1)"], env=clean, capture_output=True, check=True)
    assert done.stdout == b"1\n"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    started: list[Daemon] = []
    yield started
    for daemon in started:
        daemon.end()


def test_a_worker_is_a_fork_with_what_it_was_asked_with(tmp_path: Path, daemons: list[Daemon]) -> None:
    ask_version()
    daemons.append(Daemon(tmp_path, WHO="me", TZ="Etc/GMT+7"))
    daemons.append(Daemon(tmp_path, WHO="you", TZ="Etc/GMT-3"))
    fresh = subprocess.run(
        [sys.executable, "-c", "print(hash('seed'))"], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    for daemon, who, zone in zip(daemons, ("me", "you"), ("-07", "+03"), strict=True):
        assert daemon.is_fork
        assert daemon.seen == {
            "daemon": daemon.seen["daemon"],
            "arguments": ["pyspark_probe", "more"],
            "folder": str(tmp_path),
            "who": who,
            "inherited": False,
            "zone": zone,
            "hash": int(fresh.stdout),
            "threads": 1,
        }
    first, second = (parent_of(daemon.seen["daemon"]) for daemon in daemons)
    assert first == second


def test_it_ends_with_its_standard_input_and_with_the_process_that_stands_for_it(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    ask_version()
    daemons += [Daemon(tmp_path), Daemon(tmp_path)]
    closed, ended = daemons
    assert closed.is_fork
    assert ended.is_fork
    closed.end()
    assert eventually(lambda: not is_running(closed.seen["daemon"]))
    ended.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: not is_running(ended.seen["daemon"]))
    assert ended.process.wait(60) == 0


@pytest.mark.parametrize("other", [{"PYTHONHASHSEED": "1"}, {"LC_ALL": "C"}, {"PYTHONDONTWRITEBYTECODE": "1"}])
def test_where_python_itself_would_start_otherwise_it_is_started(
    tmp_path: Path, daemons: list[Daemon], other: dict[str, str]
) -> None:
    ask_version()
    daemons.append(Daemon(tmp_path, **other))
    assert not daemons[0].is_fork
    assert daemons[0].seen["folder"] == str(tmp_path)


def test_a_worker_whose_rows_nobody_wants_any_more_ends_without_a_traceback() -> None:
    program = """
import sys
from tailrace.pipeline.spark.warm_python import quiet_when_unread

def worker(socket, authenticated):
    raise {error}

quiet_when_unread(worker)(None, True)
"""
    for error, says_nothing in (("BrokenPipeError(32, 'Broken pipe')", True), ("ValueError('odd')", False)):
        ended = subprocess.run([sys.executable, "-c", program.format(error=error)], cwd=ROOT, capture_output=True)
        assert ended.returncode == 1
        assert (ended.stderr == b"") == says_nothing


def test_where_another_pyspark_comes_first_python_is_started(tmp_path: Path, daemons: list[Daemon]) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "daemon.py").write_text("import os; os.write(1, b'another'); os.read(0, 1)")
    ask_version()
    process = subprocess.run(
        [command_beside_python(), "-m", "pyspark.daemon", "pyspark.worker"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    assert process.stdout == b"another"


def test_what_is_forked_ends_with_the_process_that_it_was_loaded_for(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from tests.unit.pipeline.test_warm_python import Daemon, ask_version, parent_of
ask_version()
daemon = Daemon(Path({str(tmp_path)!r}))
print(int(daemon.is_fork), daemon.seen["daemon"], parent_of(daemon.seen["daemon"]), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            is_fork, daemon, loaded = map(int, parent.stdout.readline().split())
            assert is_fork
            assert is_running(loaded)
        finally:
            parent.kill()
    assert eventually(lambda: not is_running(daemon))
    assert eventually(lambda: not is_running(loaded))


def test_what_python_reads_only_when_it_starts_is_told_from_the_rest() -> None:
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C", "LC_ALL": "C"}
    free = {"PYTHONPATH": "here", "PYTHON_WORKER_FACTORY_SECRET": SECRET, "TZ": "UTC", "SPARK_BUFFER_SIZE": "1"}
    assert _settings_of({**free, **fixed}) == fixed
