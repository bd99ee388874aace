"""Prints results: aligned columns for people, JSON lines for programs.

In JSON, bytes that are not UTF-8 become base64 under a name that says so, never replacement characters.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import click

HeaderPairs: TypeAlias = Iterable[tuple[str, bytes | None]]


_NOT_A_NUMBER = re.compile(r"Invalid value (.*?) for configuration (\S+): Not a number of type ([A-Z]+)", re.DOTALL)
_RANGES = {"INT": (-(2**31), 2**31 - 1), "LONG": (-(2**63), 2**63 - 1), "SHORT": (-(2**15), 2**15 - 1)}
_MOST_SHOWN = 60


def shown(text: str) -> str:
    """Quote text that a user gave: cut it if it is long, and escape bytes that are not UTF-8."""
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    return "'" + cut.encode(errors="surrogateescape").decode(errors="backslashreplace") + "'"


def in_plain_words(message: str) -> str:
    """Reword what a broker says, in Java's terms, about an invalid number."""

    def reworded(match: re.Match[str]) -> str:
        value, key, kind = match.groups()
        if kind not in _RANGES:
            return f"{key} takes a number, not {shown(value)}"
        lowest, highest = _RANGES[kind]
        return f"{key} takes a whole number from {lowest} to {highest}, not {shown(value)}"

    return _NOT_A_NUMBER.sub(reworded, message)


def warn(text: str) -> None:
    """Print a warning; the command continues."""
    click.echo(f"Warning: {text}", err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    click.echo(json_line(value))


def json_line(value: Mapping[str, Any]) -> str:
    """Format one object as a line of JSON, without a line ending."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in aligned columns: numbers right, text left, None as a dash."""
    body = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    numeric = [
        bool(body) and all(row[column].lstrip("-").isdigit() or row[column] == "-" for row in body)
        for column in range(len(header))
    ]
    widths = [max(len(row[column]) for row in (list(header), *body)) for column in range(len(header))]
    for row in (header, *body):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def put_bytes(target: dict[str, Any], name: str, content: bytes | None) -> None:
    """Add bytes to a JSON object: as text if they are UTF-8, else as base64 under `<name>_base64`."""
    try:
        target[name] = None if content is None else content.decode()
    except UnicodeDecodeError:
        assert content is not None
        target[f"{name}_base64"] = base64.b64encode(content).decode()


def headers_to_json(headers: HeaderPairs) -> dict[str, Any]:
    """Convert headers to an object: a repeated name has a list, bytes that are not UTF-8 are `{"base64": …}`."""
    collected: dict[str, list[Any]] = {}
    for name, content in headers:
        collected.setdefault(name, []).append(_header_value(content))
    return {name: values[0] if len(values) == 1 else values for name, values in collected.items()}


def _header_value(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def iso(timestamp_ms: int) -> str:
    """Format a timestamp as ISO text in UTC; negative ones are `-`, those that no calendar has stay numbers."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def count_of(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
