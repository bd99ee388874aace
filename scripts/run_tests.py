#!/usr/bin/env python3
"""Runs the test folders, all of them whatever fails, and says how long each took.

Folders may be named as arguments; the exit code is 1 if any of them failed. They run in two lanes side by side. A
single lane prints as pytest does, of two each line begins with its folder.
"""

from __future__ import annotations

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
FOLDERS = ("unit", "fault", "interop", "simulation", "contract", "packaging")
#: Side by side: most of them wait for processes and their clients for half of their time.
LANES = 2
#: What these print, seeds above all, is wanted also when they pass.
TALKATIVE = ("simulation", "fault")
NO_TESTS_COLLECTED = 5

Results = dict[str, tuple[str, float]]


def run_lane(folders: queue.SimpleQueue[str], extra: list[str], prefixed: bool, results: Results) -> None:
    """Run folders one after another, whichever is next."""
    while True:
        try:
            name = folders.get_nowait()
        except queue.Empty:
            return
        print(f"\n=== tests/{name}", flush=True)
        started = time.monotonic()
        code = run_folder(name, extra, prefixed)
        minutes = (time.monotonic() - started) / 60
        # A folder in which nothing was collected proves nothing, unless that was asked for.
        if code == NO_TESTS_COLLECTED and extra:
            code = 0
        verdict = {0: "passed", NO_TESTS_COLLECTED: "EMPTY"}.get(code, f"FAILED ({code})")
        results[name] = verdict, minutes
        print(f"=== tests/{name}: {verdict} in {minutes:.1f} min", flush=True)


def run_folder(name: str, extra: list[str], prefixed: bool) -> int:
    command = [ROOT / ".venv/bin/pytest", f"tests/{name}", "--durations=5", "--durations-min=2"]
    if name in TALKATIVE:
        command.append("-s")
    if not prefixed:
        return subprocess.run([*command, *extra], cwd=ROOT, check=False).returncode
    process = subprocess.Popen(
        [*command, *extra], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:<10} | {line}", end="", flush=True)
    return process.wait()


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
    lanes = min(LANES, len(chosen))
    threads = [threading.Thread(target=run_lane, args=(folders, extra, lanes > 1, results)) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\nfolder       minutes  result")
    for name in chosen:
        verdict, minutes = results[name]
        print(f"{name:<12} {minutes:7.1f}  {verdict}")
    print(f"{'all':<12} {(time.monotonic() - started) / 60:7.1f}")
    return int(any(verdict != "passed" for verdict, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main())
