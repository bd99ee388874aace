"""The command line of a suite: the options of all suites, and its own."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bench.harness.page import PagePart
from bench.harness.paths import SCRATCH
from bench.harness.run import execute
from bench.harness.suite import Suite


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a suite runs."""

    rounds: int
    scale: float = 1.0


def _no_options(_: argparse.ArgumentParser) -> None:
    """Add nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One suite on the command line."""

    name: str
    description: str
    #: The systems that can be selected, if any.
    systems: Sequence[str] = ()
    full: Size
    quick: Size
    make: Callable[[argparse.Namespace], Suite[Any]]
    add_options: Callable[[argparse.ArgumentParser], None] = _no_options
    pages: tuple[PagePart, ...] = ()

    def suite(self, arguments: Sequence[str]) -> tuple[Suite[Any], Path]:
        """Return the suite according to the arguments, and the place for its data."""
        parser = argparse.ArgumentParser(prog=f"bench {self.name}", description=self.description)
        parser.add_argument("--quick", action="store_true", help="run a small part of it")
        parser.add_argument("--rounds", type=int, help="run each workload this often")
        parser.add_argument("--scale", type=float, help="use this share of the full load")
        if self.systems:
            names = list(self.systems)
            parser.add_argument("--systems", nargs="+", choices=names, default=names, metavar="NAME")
        parser.add_argument("--output", type=Path, help="write the results to this file")
        parser.add_argument("--scratch", type=Path, default=SCRATCH, help="keep all data here")
        parser.set_defaults(parser=parser)
        self.add_options(parser)
        options = parser.parse_args(arguments)
        size = self.quick if options.quick else self.full
        options.rounds = options.rounds or size.rounds
        options.scale = options.scale or size.scale
        return self.make(options), options.scratch

    def run(self, arguments: Sequence[str]) -> int:
        """Run the suite; return 1 if anything failed."""
        suite, scratch = self.suite(arguments)
        # A benchmark that is stopped must stop its servers too.
        signal.signal(signal.SIGTERM, _interrupt)
        return execute(suite, scratch)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
