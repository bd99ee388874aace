#!/usr/bin/env python3
"""Run the simulated cluster with many seeds, several at a time, and print the result of each.

On a failure it prints the seed, the violation, the last events and the command that runs the seed alone, and exits with
1. It stops after ten failures. With --record you can split a long run: it records each seed with its commit and result,
and skips seeds that passed on the current commit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from tailrace.testing.cluster.run import run_seed

MOST_FAILURES = 10


def run_one(favoured: str | None, seed: int) -> tuple[int, str, str | None, float]:
    """Run one seed in a process of its own; return its line, and what went wrong if it failed."""
    started = time.monotonic()
    try:
        line, failure = run_seed(seed, favoured=favoured).line(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  every error is reported with its seed
        line, failure = f"seed {seed}: {error}", "".join(traceback.format_exception(error))
    return seed, line, failure, time.monotonic() - started


def commit() -> str:
    """Return the commit that is checked out, marked if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=-changed"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def passed_before(record: Path, on: str, favoured: str | None) -> set[int]:
    """Return the seeds that passed on a commit according to the record."""
    if not record.exists():
        return set()
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    return {row["seed"] for row in rows if (row["commit"], row.get("favoured"), row["passed"]) == (on, favoured, True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="run this many seeds")
    parser.add_argument("--first", type=int, default=0, help="start with this seed")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="run this many seeds at the same time"
    )
    parser.add_argument("--favour", metavar="FAULT", help="inject this kind of fault far more often than all others")
    parser.add_argument("--trace", action="store_true", help="print every failure in full, not only the first")
    parser.add_argument(
        "--record",
        type=Path,
        help="append each seed's result and commit to a file; skip seeds that passed on this commit",
    )
    arguments = parser.parse_args()
    record: Path | None = arguments.record
    on = commit() if record is not None else ""
    known = passed_before(record, on, arguments.favour) if record is not None else set()
    seeds = [seed for seed in range(arguments.first, arguments.first + arguments.seeds) if seed not in known]
    if known:
        print(f"{arguments.seeds - len(seeds)} of {arguments.seeds} seeds already passed on {on}", flush=True)
    if not seeds:
        return 0
    favour = {"favoured": arguments.favour} if arguments.favour is not None else {}
    started = time.monotonic()
    failures: list[tuple[int, str, str]] = []
    done = 0
    with multiprocessing.get_context("spawn").Pool(min(arguments.jobs, len(seeds)), maxtasksperchild=20) as pool:
        for seed, line, failure, seconds in pool.imap_unordered(partial(run_one, arguments.favour), seeds):
            done += 1
            print(f"{line} [{seconds:.1f} s]" if failure is None else f"FAILED {line} [{seconds:.1f} s]", flush=True)
            if record is not None:
                with record.open("a") as file:
                    print(json.dumps({"seed": seed, "commit": on, "passed": failure is None} | favour), file=file)
            if failure is not None:
                failures.append((seed, line, failure))
                if arguments.trace or len(failures) == 1:
                    print(failure, flush=True)
                if len(failures) >= MOST_FAILURES:
                    print(f"stopped after {MOST_FAILURES} failures", flush=True)
                    pool.terminate()
                    break
    print(f"{done} seeds, {len(failures)} failed, {(time.monotonic() - started) / 60:.1f} min")
    for _, line, _ in failures:
        print(f"  FAILED {line.splitlines()[0]}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
