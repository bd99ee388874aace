"""The command line of the benchmark: `python -m bench [--quick]`; `make bench` sets up what it needs first."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from bench import report
from bench.harness.paths import ROOT
from bench.run import Run, execute
from bench.systems import SYSTEMS
from bench.workloads.groups import NAMED_GROUPS
from bench.workloads.single import FULL_GROUPS, QUICK_GROUPS, Workload

#: Rounds, rounds of the other peers, share of the messages, minutes.
MODES = {"full": (3, 3, 1.0, 58.0), "part": (3, 0, 1.0, 58.0), "quick": (3, 1, 0.4, 7.5)}

GROUPS = {**FULL_GROUPS, **NAMED_GROUPS}


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def chosen(
    groups: Mapping[str, tuple[Workload, ...]], names: Sequence[str], parser: argparse.ArgumentParser
) -> dict[str, tuple[Workload, ...]]:
    """The workloads of these names, in the groups and the order that they have."""
    known = [item.name for group in groups.values() for item in group]
    for name in names:
        if name not in known:
            parser.error(f"there is no workload {name} in these groups: choose from {', '.join(known)}")
    left = {group: tuple(item for item in items if item.name in names) for group, items in groups.items()}
    return {group: items for group, items in left.items() if items}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="tailrace beside its peers, as ratios")
    parser.add_argument("--quick", action="store_true", help="a representative part, within 8 minutes")
    parser.add_argument("--rounds", type=int, help="how often each workload is run")
    parser.add_argument("--scale", type=float, help="share of the full number of messages")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), metavar="NAME", help="only these workloads")
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="of these groups only the workloads so named")
    parser.add_argument("--output", type=Path, help="the results file, and beside it the chart")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data", help="where all data is kept")
    options = parser.parse_args()
    mode = "quick" if options.quick else "part" if options.groups else "full"
    rounds, peer_rounds, scale, minutes = MODES[mode]
    groups = QUICK_GROUPS if options.quick else FULL_GROUPS
    if mode == "part":
        groups = {name: GROUPS[name] for name in options.groups}
    only_named = mode == "part" and set(groups) <= set(NAMED_GROUPS)
    output = options.output or (report.GROUP_RESULTS if only_named else report.RESULTS)
    if options.workloads:
        groups = chosen(groups, options.workloads, parser)
        # A part of what a page shows does not take its place.
        output = options.output or ROOT / "build/bench-part.json"
    rounds = options.rounds or rounds
    # A stopped benchmark must stop its servers too.
    signal.signal(signal.SIGTERM, _interrupt)
    run = Run(mode, groups, rounds, min(peer_rounds, rounds), options.scale or scale, minutes, options.systems)
    code = execute(run, options.scratch, output)
    if mode == "full" and output == report.RESULTS and code == 0:
        report.write_docs()
    if output == report.GROUP_RESULTS and run.scale >= 1 and code == 0:
        report.write_group_docs()
    return code


if __name__ == "__main__":
    sys.exit(main())
