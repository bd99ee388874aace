"""The command behind `make test` and `make quick`; see --help.

Prints a line for each finished piece, failures in full, and where the time went. Output and JUnit files of all pieces
stay in build/test-results. The exit code is 1 if anything failed.

With TEST_AGAIN=1, if only a few tests with real processes fail beside others, they run once more, alone. Those that
then pass are reported as unstable, and the run passes: a machine that stalls every process for seconds says nothing
about a change. Fix a test that is reported twice, or mark it `alone`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence

from scripts.testrun import quick
from scripts.testrun.lanes import Lanes
from scripts.testrun.pieces import FOLDERS, ROOT, Piece, divide, files_of, read_durations, write_durations
from scripts.testrun.results import (
    FAILED,
    OK,
    PASSED,
    SKIPPED,
    TESTS_FAILED,
    Outcome,
    failure_summary,
    folder_table,
    seconds_by_file,
    slowest_table,
)

RESULTS = ROOT / "build/test-results"
#: With more failures in a folder, nothing runs again: the cause is not chance.
MOST_AGAIN = 5


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    # A shell starts background jobs with SIGINT ignored, and the brokers under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = _parse()
    extra = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    pieces = _pieces(options)
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    cores = len(os.sched_getaffinity(0))
    lanes = Lanes(RESULTS, extra, cores, say)
    say(f"{sum(len(piece.files) for piece in pieces)} test files in {len(pieces)} pieces on {cores} cores")
    started = time.monotonic()
    ended: list[Outcome] = []

    def told(outcome: Outcome) -> None:
        ended.append(outcome)
        say(f"[{len(ended):>3}/{len(pieces)}] {_line(outcome)}")
        _show_output(outcome)

    outcomes = lanes.run(pieces, told)
    if os.environ.get("TEST_AGAIN") == "1":
        _try_again(lanes, outcomes)
    if options.record:
        write_durations(seconds_by_file(outcomes))
    return _conclude(outcomes, time.monotonic() - started, cores, [] if extra else [p.folder.name for p in pieces])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="testrun", description="Run the test suite.")
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", help=f"run only these folders: {', '.join(FOLDERS)} (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run the tests of changed files and a selection of the others"
    )
    parser.add_argument("--record", action="store_true", help="record how long each file took in tests/durations.json")
    options = parser.parse_args()
    if unknown := [name for name in options.folders if name not in FOLDERS]:
        parser.error(f"no such folder: {', '.join(unknown)}; choose from {', '.join(FOLDERS)}")
    return options


def _pieces(options: argparse.Namespace) -> list[Piece]:
    durations = read_durations()
    chosen = quick.choose(quick.changed_files(), durations) if options.quick else None
    pieces = []
    for name, folder in FOLDERS.items():
        if options.folders and name not in options.folders:
            continue
        files = files_of(name)
        pieces += divide(folder, files if chosen is None else [file for file in files if file in chosen], durations)
    # Only `make test` runs tests that need the machine to themselves.
    return [piece for piece in pieces if not (options.quick and piece.is_alone)]


def _line(outcome: Outcome) -> str:
    counts = f"{outcome.count(PASSED)} passed"
    for kind in (FAILED, SKIPPED):
        if number := outcome.count(kind):
            counts += f", {number} {kind}"
    verdict = "" if outcome.has_passed else f"  FAILED ({outcome.code})"
    files = outcome.piece.files
    of = f"{files[0].removeprefix('tests/')}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    return f"{outcome.piece.name:<15} {counts} in {outcome.seconds:.0f} s: {of}{verdict}"


def _show_output(outcome: Outcome) -> None:
    """Print the output of pytest if the piece failed, otherwise only its seeds."""
    lines = outcome.log.read_text(errors="replace").splitlines()
    if outcome.has_passed:
        lines = [line for line in lines if outcome.piece.folder.is_talkative and "seed" in line]
    for line in lines:
        say(f"{outcome.piece.name:<15} | {line}")


def _try_again(lanes: Lanes, outcomes: Sequence[Outcome]) -> None:
    """Run failed tests again, alone, if only a few tests with real processes failed."""
    for name, folder in FOLDERS.items():
        failed = [outcome for outcome in outcomes if outcome.piece.folder is folder and not outcome.has_passed]
        tests = sum(outcome.count(FAILED) for outcome in failed)
        if not (failed and folder.has_processes and tests <= MOST_AGAIN):
            continue
        for outcome in failed:
            if outcome.code != TESTS_FAILED:
                continue
            remembered = ROOT / ".pytest_cache" / outcome.piece.name / "v/cache/lastfailed"
            names = sorted(json.loads(remembered.read_text())) if remembered.is_file() else []
            say(f"\n{name}: retrying alone: {', '.join(names)}")
            second = lanes.again(outcome.piece)
            say(_line(second))
            _show_output(second)
            outcome.cpu_seconds += second.cpu_seconds
            if second.code == OK:
                outcome.code = OK
                outcome.unstable = names


def _conclude(outcomes: Sequence[Outcome], seconds: float, cores: int, expected: Sequence[str]) -> int:
    """Print the tables, the failures and the counts; return the exit code."""
    # A folder without collected tests is a failure, unless options of pytest deselected them.
    ran = {outcome.piece.folder.name for outcome in outcomes if outcome.tests}
    empty = [name for name in dict.fromkeys(expected) if name not in ran]
    say(f"\n{folder_table(outcomes, seconds, cores)}")
    say(f"\n{slowest_table(outcomes)}")
    say(f"\nJUnit files and output: {RESULTS.relative_to(ROOT)}")
    if summary := failure_summary(outcomes):
        say(f"\n{summary}")
    for name in empty:
        say(f"FAILED {name}: no test was collected")
    unstable = [name for outcome in outcomes for name in outcome.unstable]
    for name in unstable:
        say(f"UNSTABLE {name}: failed beside others, passed alone")
    failed = sum(outcome.count(FAILED) for outcome in outcomes) - len(unstable)
    say("")
    say(f"{sum(outcome.count(PASSED) for outcome in outcomes) + len(unstable)} passed, {failed} failed")
    return int(bool(empty) or any(not outcome.has_passed for outcome in outcomes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
