"""Draws a progress line for Spark on the terminal, redraws it and wipes it away at the end.

Draws nothing if standard error is not a terminal. Asks Spark's status tracker from a thread of its own, because the
main thread waits for the result.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRAW_SECONDS = 0.2
#: Shorter work gets no progress line.
_PATIENCE_SECONDS = 1.0
_BAR_WIDTH = 30
_WIPE = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class Tasks:
    """Task counts of the active stages."""

    done: int
    running: int
    total: int


class ProgressLine:
    """One line that is redrawn regularly; `label` says what is being done."""

    def __init__(self, label: str, *, shown: bool, stream: TextIO | None = None) -> None:
        self.label = label
        self.rows = 0
        self.spark: SparkSession | None = None
        self._stream = sys.stderr if stream is None else stream
        self._shown = shown and self._stream.isatty()
        self._began = time.monotonic()
        self._drawn = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        if self._shown:
            self._thread.start()

    def count(self, rows: int) -> None:
        """Update the number of rows."""
        self.rows = rows

    def stop(self) -> None:
        """Wipe the line away and draw nothing more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._drawn:
            self._stream.write(_WIPE)
            self._stream.flush()
            self._drawn = False

    def _run(self) -> None:
        wait = _PATIENCE_SECONDS
        while not self._ended.wait(wait):
            wait = _DRAW_SECONDS
            text = line(self.label, time.monotonic() - self._began, self._tasks(), self.rows)
            self._stream.write(_WIPE + text)
            self._stream.flush()
            self._drawn = True

    def _tasks(self) -> Tasks | None:
        if self.spark is None:
            return None
        from py4j.protocol import Py4JError

        try:
            tracker = self.spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (Py4JError, OSError, AttributeError):
            return None  # Spark is being stopped.
        known = [stage for stage in stages if stage is not None]
        if not known:
            return None
        return Tasks(
            sum(stage.numCompletedTasks for stage in known),
            sum(stage.numActiveTasks for stage in known),
            sum(stage.numTasks for stage in known),
        )


def line(label: str, elapsed_s: float, tasks: Tasks | None, rows: int) -> str:
    """`reading [======>       ] 45%  9 of 20 tasks  1,200,000 rows  240,000 rows/s  5 s`."""
    parts = []
    if tasks is not None and tasks.total > 0:
        share = tasks.done / tasks.total
        filled = int(share * _BAR_WIDTH)
        bar = ("=" * filled + ">")[:_BAR_WIDTH].ljust(_BAR_WIDTH)
        parts.append(f"{label} [{bar}] {share:4.0%}")
        parts.append(f"{tasks.done} of {tasks.total} tasks")
    else:
        parts.append(label)
    if rows:
        parts.append(f"{rows:,} rows")
        parts.append(f"{rows / max(elapsed_s, 0.001):,.0f} rows/s")
    parts.append(f"{elapsed_s:.0f} s")
    return "  ".join(parts)


@contextmanager
def progress(label: str, *, shown: bool) -> Iterator[ProgressLine]:
    """Draw a line while the block runs."""
    drawn = ProgressLine(label, shown=shown)
    drawn.start()
    try:
        yield drawn
    finally:
        drawn.stop()
