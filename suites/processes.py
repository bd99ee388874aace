"""Runs the units of a suite, some of them at the same time, each in its own process group and with a time limit.

Ends only groups that it started, and all of them if the run is interrupted. Each unit's output goes to a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Unit:
    """What runs as one process: one test, or several that the suite cannot run separately."""

    key: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """The command line of a unit, and where its output goes."""

    arguments: Sequence[str]
    directory: Path
    output: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a unit's process ended; `code` is None if it exceeded its time limit."""

    code: int | None
    seconds: float
    output: str


class Interrupted(Exception):
    """The run was stopped before this unit ended."""


class ProcessGroups:
    """The running process groups."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, command: Command, limit_seconds: float) -> Ended:
        """Run a command to its end or its time limit; then end everything that it left behind."""
        command.output.parent.mkdir(parents=True, exist_ok=True)
        # Tests must behave the same inside and outside continuous integration.
        environment = {name: value for name, value in os.environ.items() if name != "CI"} | dict(command.environment)
        started = time.monotonic()
        with command.output.open("wb") as output:
            with self._lock:
                if self._stopped:
                    raise Interrupted
                process = subprocess.Popen(
                    command.arguments,
                    cwd=command.directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._running.add(process.pid)
            try:
                in_time = _wait_without_reaping(process.pid, started + limit_seconds)
            finally:
                # The leader is not reaped yet, so no other group can have its id.
                _end(process.pid)
                code = process.wait()
                with self._lock:
                    self._running.discard(process.pid)
        if self._stopped:
            raise Interrupted
        return Ended(code if in_time else None, time.monotonic() - started, command.output.read_text(errors="replace"))

    def stop(self) -> None:
        """End everything that runs and start nothing more."""
        with self._lock:
            self._stopped = True
            for group in self._running:
                _end(group)


def _wait_without_reaping(pid: int, deadline: float) -> bool:
    """Return whether the process ended before the deadline."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_units(
    units: Sequence[Unit],
    run: Callable[[Unit], Ended],
    done: Callable[[Unit, Ended], None],
    at_once: int,
    stop: Callable[[], None],
) -> None:
    """Run all units, `at_once` at a time; `done` is called in the calling thread, in the order in which they end.

    If anything goes wrong, an interrupt included, `stop` must end what runs, because the pool waits for it.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(run, unit): unit for unit in units}
        try:
            for future in as_completed(futures):
                done(futures[future], future.result())
        except BaseException:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
