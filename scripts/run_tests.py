#!/usr/bin/env python3
"""Runs the test folders, all of them whatever fails, and says how long each took.

Folders may be named as arguments; the exit code is 1 if any of them failed. They run in two lanes side by side. A
single lane prints as pytest does, of two each line begins with its folder. The last lines name what failed, and how
it says so, for whoever sees no more than those.

With TEST_AGAIN=1, a few tests of folders with real processes that failed beside others are run once more, alone. Those
that pass then are named as unstable, and the folder has passed: a machine that stalls every process for seconds must
not say that a change is wrong. A test that is named there twice has to be mended all the same.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: In the order in which they are begun: what is quickly known first, then the longest, so that both lanes end together.
FOLDERS = ("unit", "spark", "interop", "simulation", "fault", "contract", "packaging")
#: Side by side: most of them wait for processes and their clients for half of their time.
LANES = 2
#: What these print, seeds above all, is wanted also when they pass.
TALKATIVE = ("simulation", "fault")
NO_TESTS_COLLECTED = 5
TESTS_FAILED = 1
#: Where other processes, and how soon they get to run, have a say in what happens.
WITH_PROCESSES = ("spark", "interop", "fault", "contract")
#: More failures than these have a reason.
MOST_AGAIN = 5
#: How the lines of pytest's short summary begin, and those of the reasons above it.
FAILURES = ("FAILED ", "ERROR ")
REASON = "E   "
KEPT_REASONS = 12

Results = dict[str, tuple[str, float]]
Failures = dict[str, list[str]]


def run_lane(
    folders: queue.SimpleQueue[str], extra: list[str], prefixed: bool, results: Results, failures: Failures
) -> None:
    """Run folders one after another, whichever is next."""
    while True:
        try:
            name = folders.get_nowait()
        except queue.Empty:
            return
        print(f"\n=== tests/{name}", flush=True)
        started = time.monotonic()
        code = run_folder(name, extra, prefixed, failures.setdefault(name, []))
        minutes = (time.monotonic() - started) / 60
        # A folder in which nothing was collected proves nothing, unless that was asked for.
        if code == NO_TESTS_COLLECTED and extra:
            code = 0
        verdict = {0: "passed", NO_TESTS_COLLECTED: "EMPTY"}.get(code, f"FAILED ({code})")
        results[name] = verdict, minutes
        print(f"=== tests/{name}: {verdict} in {minutes:.1f} min", flush=True)


def run_folder(name: str, extra: list[str], prefixed: bool, failures: list[str]) -> int:
    command = [*pytest_for(name), "--cache-clear", "--durations=5", "--durations-min=2"]
    if name in TALKATIVE:
        command.append("-s")
    if not prefixed:
        return subprocess.run([*command, *extra], cwd=ROOT, check=False).returncode
    process = subprocess.Popen(
        [*command, *extra], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    reasons = 0
    for line in process.stdout:
        print(f"{name:<10} | {line}", end="", flush=True)
        if line.startswith(FAILURES):
            failures.append(line.rstrip())
        elif line.startswith(REASON) and reasons < KEPT_REASONS:
            failures.append(line.rstrip())
            reasons += 1
    return process.wait()


def pytest_for(name: str) -> list[str]:
    """What runs a folder; each remembers for itself what failed in it."""
    return [str(ROOT / ".venv/bin/pytest"), f"tests/{name}", "-o", f"cache_dir=.pytest_cache/{name}"]


def run_again(name: str, extra: list[str]) -> str:
    """Run what failed in a folder once more, with nothing beside it; the verdict on the folder."""
    remembered = ROOT / ".pytest_cache" / name / "v/cache/lastfailed"
    failed = sorted(json.loads(remembered.read_text())) if remembered.is_file() else []
    if not 0 < len(failed) <= MOST_AGAIN:
        return f"FAILED ({TESTS_FAILED})"
    print(f"\n=== tests/{name}: once more, alone: {', '.join(failed)}", flush=True)
    code = subprocess.run([*pytest_for(name), "--last-failed", *extra], cwd=ROOT, check=False).returncode
    if code:
        return f"FAILED ({code}), also alone"
    print("".join(f"UNSTABLE {test}\n" for test in failed), end="", flush=True)
    return f"passed, {len(failed)} only at the second try, alone: {', '.join(failed)}"


def main() -> int:
    # A shell starts what runs in the background with it ignored, and the brokers under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    named = sys.argv[1:]
    extra = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    unknown = [name for name in named if name not in FOLDERS]
    if unknown:
        print(f"run_tests: no such folder: {', '.join(unknown)}; there are: {', '.join(FOLDERS)}", file=sys.stderr)
        return 2
    chosen = [name for name in FOLDERS if name in (named or FOLDERS) and (ROOT / "tests" / name).is_dir()]
    folders: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in chosen:
        folders.put(name)
    started = time.monotonic()
    results: Results = {}
    failures: Failures = {}
    lanes = min(LANES, len(chosen))
    threads = [
        threading.Thread(target=run_lane, args=(folders, extra, lanes > 1, results, failures)) for _ in range(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in chosen:
        for line in failures[name]:
            print(f"{name:<10} | {line}")
    if os.environ.get("TEST_AGAIN") == "1":
        for name in chosen:
            verdict, minutes = results[name]
            if name in WITH_PROCESSES and verdict == f"FAILED ({TESTS_FAILED})":
                results[name] = run_again(name, extra), minutes
    print("\nfolder       minutes  result")
    for name in chosen:
        verdict, minutes = results[name]
        print(f"{name:<12} {minutes:7.1f}  {verdict}")
    print(f"{'all':<12} {(time.monotonic() - started) / 60:7.1f}")
    return int(any(not verdict.startswith("passed") for verdict, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main())
