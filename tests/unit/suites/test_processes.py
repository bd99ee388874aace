"""Processes of a suite end with their test or their time, and leave nothing behind."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from pathlib import Path

import pytest

from suites.processes import Command, Ended, Interrupted, ProcessGroups, Unit, run_units


def command(tmp_path: Path, code: str) -> Command:
    return Command([sys.executable, "-c", code], tmp_path, tmp_path / "output.txt", {"GIVEN": "yes"})


def wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor, "rb") as ended:
        assert select.select([ended], [], [], 30)[0], f"process {pid} still runs"


def test_the_exit_code_and_the_output_are_told(tmp_path: Path) -> None:
    code = (
        "import os, sys; print(os.environ['GIVEN'], os.environ.get('CI')); print('why', file=sys.stderr); sys.exit(3)"
    )
    ended = ProcessGroups().run(command(tmp_path, code), 30)
    assert ended.code == 3
    assert sorted(ended.output.split("\n")) == ["", "why", "yes None"]


@pytest.mark.parametrize(("last", "code"), [("wait", None), ("exit 0", 0)])
def test_children_end_with_their_test(tmp_path: Path, last: str, code: int | None) -> None:
    # The child, a program of its own, would outlive both a test that ends and one whose time is over.
    script = Command(["sh", "-c", f"sleep 1000 & echo $!; {last}"], tmp_path, tmp_path / "output.txt")
    ended = ProcessGroups().run(script, 2)
    assert ended.code == code
    wait_until_gone(int(ended.output))


def test_a_stopped_run_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    processes = ProcessGroups()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            processes.run(command(tmp_path, "import signal; print('up', flush=True); signal.pause()"), 60)
        except Interrupted as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    output = tmp_path / "output.txt"
    while not (output.exists() and output.read_text()):
        assert thread.is_alive()
        thread.join(0.01)
    processes.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert len(raised) == 1
    with pytest.raises(Interrupted):
        processes.run(command(tmp_path, "pass"), 30)


def test_every_unit_is_run_once_and_no_more_at_a_time_than_allowed() -> None:
    units = [Unit(str(number), (str(number),)) for number in range(20)]
    lock = threading.Lock()
    running = most = 0

    def run(unit: Unit) -> Ended:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1
        return Ended(0, 0.0, unit.key)

    done: list[str] = []
    run_units(units, run, lambda unit, ended: done.append(ended.output), 3, lambda: None)
    assert sorted(done, key=int) == [unit.key for unit in units]
    assert most <= 3


def test_a_unit_that_cannot_be_run_ends_the_others_and_the_run(tmp_path: Path) -> None:
    processes = ProcessGroups()
    output = tmp_path / "output.txt"

    def run(unit: Unit) -> Ended:
        if unit.key == "waits":
            return processes.run(command(tmp_path, "import signal; print('up', flush=True); signal.pause()"), 60)
        while not (output.exists() and output.read_text()):
            threading.Event().wait(0.01)
        raise OSError("no such program")

    units = [Unit("waits", ("waits",)), Unit("fails", ("fails",))]
    began = time.monotonic()
    with pytest.raises(OSError, match="no such program"):
        run_units(units, run, lambda unit, ended: None, 2, processes.stop)
    assert time.monotonic() - began < 30
