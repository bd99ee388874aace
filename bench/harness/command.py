"""How a suite is asked for on the command line: options that all have, and those of its own."""

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
    """How much of a suite is run."""

    rounds: int
    scale: float = 1.0


def _no_options(_: argparse.ArgumentParser) -> None:
    """Add nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One suite, as it is asked for."""

    name: str
    description: str
    #: Among which one may choose, if one may.
    systems: Sequence[str] = ()
    full: Size
    quick: Size
    make: Callable[[argparse.Namespace], Suite[Any]]
    add_options: Callable[[argparse.ArgumentParser], None] = _no_options
    pages: tuple[PagePart, ...] = ()

    def suite(self, arguments: Sequence[str]) -> tuple[Suite[Any], Path]:
        """The suite as the arguments want it, and where its data goes."""
        parser = argparse.ArgumentParser(prog=f"bench {self.name}", description=self.description)
        parser.add_argument("--quick", action="store_true", help="a small part of it")
        parser.add_argument("--rounds", type=int, help="how often each workload is run")
        parser.add_argument("--scale", type=float, help="share of the full load")
        if self.systems:
            names = list(self.systems)
            parser.add_argument("--systems", nargs="+", choices=names, default=names, metavar="NAME")
        parser.add_argument("--output", type=Path, help="the results file")
        parser.add_argument("--scratch", type=Path, default=SCRATCH, help="where all data is kept")
        parser.set_defaults(parser=parser)
        self.add_options(parser)
        options = parser.parse_args(arguments)
        size = self.quick if options.quick else self.full
        options.rounds = options.rounds or size.rounds
        options.scale = options.scale or size.scale
        return self.make(options), options.scratch

    def run(self, arguments: Sequence[str]) -> int:
        """Run the suite; 1 if anything failed."""
        suite, scratch = self.suite(arguments)
        # A stopped benchmark must stop its servers too.
        signal.signal(signal.SIGTERM, _interrupt)
        return execute(suite, scratch)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
