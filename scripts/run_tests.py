#!/usr/bin/env python3
"""Runs the test folders one after another, all of them whatever fails, and says how long each took.

Folders may be named as arguments; the exit code is 1 if any of them failed.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("unit", "contract", "simulation", "interop", "fault", "packaging")
#: What these print, seeds above all, is wanted also when they pass.
TALKATIVE = ("simulation", "fault")
NO_TESTS_COLLECTED = 5


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
    results: list[tuple[str, str, float]] = []
    for number, name in enumerate(chosen, start=1):
        print(f"\n=== tests/{name} ({number} of {len(chosen)})", flush=True)
        started = time.monotonic()
        command = [ROOT / ".venv/bin/pytest", f"tests/{name}", "--durations=5", "--durations-min=2"]
        if name in TALKATIVE:
            command.append("-s")
        code = subprocess.run([*command, *extra], cwd=ROOT, check=False).returncode
        minutes = (time.monotonic() - started) / 60
        # A folder in which nothing was collected proves nothing, unless that was asked for.
        if code == NO_TESTS_COLLECTED and extra:
            code = 0
        verdict = {0: "passed", NO_TESTS_COLLECTED: "EMPTY"}.get(code, f"FAILED ({code})")
        results.append((name, verdict, minutes))
        print(f"=== tests/{name}: {verdict} in {minutes:.1f} min", flush=True)
    print("\nfolder       minutes  result")
    for name, verdict, minutes in results:
        print(f"{name:<12} {minutes:7.1f}  {verdict}")
    print(f"{'all':<12} {sum(minutes for _, _, minutes in results):7.1f}")
    return int(any(verdict != "passed" for _, verdict, _ in results))


if __name__ == "__main__":
    sys.exit(main())
