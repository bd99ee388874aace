"""The suites: systems, workloads and sizes of each, the stage on which it runs, and what a page says of it.

`NAMES` are those of the command line. A suite's module, of the same name, is imported only when it is asked for,
as its dependencies may not be installed.
"""

from __future__ import annotations

from importlib import import_module

from bench.harness.command import Command

NAMES = ("peers", "cluster", "spark", "archive", "archive-reads", "presets", "validation")


def command(name: str) -> Command:
    """The suite of this name."""
    found: Command = import_module(f"{__name__}.{name.replace('-', '_')}").COMMAND
    return found
