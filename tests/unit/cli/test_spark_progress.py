"""The line that shows how far Spark has come."""

from __future__ import annotations

import io
import threading

import pytest

from tailrace.cli import spark_progress
from tailrace.cli.spark_progress import ProgressLine, Tasks, line


class Terminal(io.StringIO):
    """Takes itself for a terminal, and tells when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_it_shows_the_share_of_tasks_and_the_pace_of_rows() -> None:
    assert line("writing x.csv", 5.0, Tasks(10, 2, 20), 1_200_000) == (
        "writing x.csv [===============>              ]  50%  10 of 20 tasks  1,200,000 rows  240,000 rows/s  5 s"
    )


def test_without_stages_it_shows_what_is_done_and_how_long() -> None:
    assert line("starting Spark", 3.4, None, 0) == "starting Spark  3 s"


def test_all_tasks_done_fill_the_bar() -> None:
    assert "[" + "=" * 30 + "] 100%" in line("x", 1, Tasks(4, 0, 4), 0)


def test_it_is_drawn_over_and_wiped_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_progress, "_PATIENCE_SECONDS", 0.0)
    terminal = Terminal()
    drawn = ProgressLine("starting Spark", shown=True, stream=terminal)
    drawn.start()
    assert terminal.written.wait(10)
    drawn.stop()
    text = terminal.getvalue()
    assert text.startswith("\r\x1b[Kstarting Spark  0 s")
    assert text.endswith("\r\x1b[K")
    drawn.stop()
    assert terminal.getvalue() == text


def test_nothing_is_drawn_where_nobody_looks() -> None:
    for stream, shown in ((io.StringIO(), True), (Terminal(), False)):
        drawn = ProgressLine("starting Spark", shown=shown, stream=stream)
        drawn.start()
        drawn.stop()
        assert stream.getvalue() == ""
