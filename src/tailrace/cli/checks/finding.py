"""What a check found: ok, a warning or a problem, and for the last two what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """How bad a finding is; the worst one is the exit code."""

    OK = 0
    WARNING = 1
    PROBLEM = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    status: Status
    #: What was checked: `configuration`, `port`, a directory.
    subject: str
    text: str
    #: What to do; None if there is nothing to do.
    advice: str | None = None


def ok(subject: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(Status.OK, subject, text)


def warning(subject: str, text: str, advice: str) -> Finding:
    """The broker would start and serve, but somebody should know this."""
    return Finding(Status.WARNING, subject, text, advice)


def problem(subject: str, text: str, advice: str) -> Finding:
    """The broker would not start, not serve all its records, or lose some of them."""
    return Finding(Status.PROBLEM, subject, text, advice)


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status; OK if there are no findings."""
    return max((finding.status for finding in findings), default=Status.OK)


def size_text(size: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def some(names: Iterable[str], most: int = 3) -> str:
    """List the first few names, and say how many more there are."""
    listed = list(names)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest
