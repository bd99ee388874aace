"""The suites: systems, workloads and sizes of each, its stage, and its part of a page.

`NAMES` are the names on the command line. A suite's module, with the same name, is imported only when needed, as its
dependencies may not be installed.
"""

from __future__ import annotations

from importlib import import_module

from bench.harness.command import Command

NAMES = ("peers", "cluster", "spark", "archive", "archive-reads", "presets", "validation")


def command(name: str) -> Command:
    """Return the suite with this name."""
    found: Command = import_module(f"{__name__}.{name.replace('-', '_')}").COMMAND
    return found
