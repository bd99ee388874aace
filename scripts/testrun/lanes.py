"""Runs pieces side by side, as many as the cores allow: many that wait, few that compute.

Starts the longest piece first, and another as soon as the load of the running ones leaves room for it. Pieces that must
run alone come last, one after another. Ends only processes that it started, by their ids.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.testrun.pieces import ALONE, ROOT, Piece
from scripts.testrun.results import Outcome, read_tests

#: Slightly more load than cores: every piece waits at times.
OVERCOMMIT = 1.15
#: More lanes would only take memory.
MOST_LANES = 6
#: How often a run reports what it is waiting for.
STATUS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A running piece."""

    piece: Piece
    process: subprocess.Popen[bytes]
    started: float


class Lanes:
    """Runs pieces and reports each as it ends."""

    def __init__(self, results: Path, extra: Sequence[str], cores: int, said: Callable[[str], None]) -> None:
        self._results = results
        self._extra = list(extra)
        self._capacity = cores * OVERCOMMIT
        self._say = said
        self._running: dict[str, Running] = {}
        self._ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def run(self, pieces: Sequence[Piece], told: Callable[[Outcome], None]) -> list[Outcome]:
        """Run all pieces, even after failures; return their outcomes in the order in which they ended."""
        waiting = sorted(pieces, key=lambda piece: (piece.is_alone, -piece.seconds))
        outcomes: list[Outcome] = []
        try:
            while waiting or self._running:
                while piece := self._next(waiting):
                    waiting.remove(piece)
                    self._begin(piece)
                try:
                    outcome = self._ended.get(timeout=STATUS_SECONDS)
                except queue.Empty:
                    self._say(self._status())
                    continue
                del self._running[outcome.piece.name]
                outcomes.append(outcome)
                told(outcome)
        except BaseException:
            self._interrupt()
            raise
        return outcomes

    def again(self, piece: Piece) -> Outcome:
        """Run the failed tests of a piece again, with nothing beside them."""
        self._begin(piece, "--last-failed", suffix="-again")
        outcome = self._ended.get()
        del self._running[piece.name]
        return outcome

    def _next(self, waiting: Sequence[Piece]) -> Piece | None:
        """Return the longest piece that fits beside the running ones."""
        running = [each.piece for each in self._running.values()]
        return next((piece for piece in waiting if fits(piece, running, self._capacity)), None)

    def _begin(self, piece: Piece, *more: str, suffix: str = "") -> None:
        name = piece.name + suffix
        log, junit = self._results / f"{name}.log", self._results / f"{name}.xml"
        junit.unlink(missing_ok=True)
        command = [
            *(str(ROOT / ".venv/bin/pytest"), *piece.files),
            *("-m", ALONE if piece.is_alone else f"not {ALONE}"),
            *("-o", f"cache_dir=.pytest_cache/{piece.name}"),
            *(f"--junitxml={junit}", "-o", "junit_family=xunit1"),
            *(["-s"] if piece.folder.is_talkative else []),
            *(more or ["--cache-clear"]),
            *self._extra,
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        running = Running(piece, process, time.monotonic())
        self._running[piece.name] = running
        threading.Thread(target=self._wait_for, args=(running, log, junit), daemon=True).start()

    def _wait_for(self, running: Running, log: Path, junit: Path) -> None:
        _, status, usage = os.wait4(running.process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        running.process.returncode = code
        seconds = time.monotonic() - running.started
        cpu_seconds = usage.ru_utime + usage.ru_stime
        self._ended.put(Outcome(running.piece, code, seconds, cpu_seconds, log, read_tests(junit)))

    def _status(self) -> str:
        now = time.monotonic()
        return "running: " + ", ".join(
            f"{each.piece.name} ({now - each.started:.0f} s)" for each in self._running.values()
        )

    def _interrupt(self) -> None:
        """Interrupt running pieces as Ctrl-C would, so that fixtures end the processes they started."""
        for each in self._running.values():
            # Not through Popen: it would collect the exit code that the waiting thread needs.
            os.kill(each.process.pid, signal.SIGINT)
        while self._running:
            del self._running[self._ended.get().piece.name]


def fits(piece: Piece, running: Sequence[Piece], capacity: float) -> bool:
    """Return whether a piece can start beside the running ones."""
    if not running:
        return True
    if piece.is_alone or any(each.is_alone for each in running) or len(running) >= MOST_LANES:
        return False
    return sum(each.folder.load for each in running) + piece.folder.load <= capacity
