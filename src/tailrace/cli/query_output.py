"""Prints the rows of a query: aligned columns for people, JSON lines for programs.

Never truncates values. The first rows set the column widths, so that a result of any length is printed as it arrives.
Must not know Spark: rows are Python values.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from tailrace.cli.output import put_bytes

#: The rows that set the column widths; they are read before the first is printed.
ROWS_FOR_WIDTHS = 1000
_NULL = "NULL"


def table_lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Format rows as lines of aligned columns: numbers right, everything else left."""
    remaining = iter(rows)
    first = list(islice(remaining, ROWS_FOR_WIDTHS))
    cells = [[cell(value) for value in row] for row in first]
    names = [_on_one_line(name) for name in header]
    right = [_is_numeric([row[column] for row in first]) for column in range(len(names))]
    widths = [max(map(width, column)) for column in zip(names, *cells, strict=True)]
    yield _line(names, widths, right)
    for row in chain(cells, ([cell(value) for value in row] for row in remaining)):
        yield _line(row, widths, right)


def json_object(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Convert a row to an object: bytes as text, or as base64 under `<name>_base64`; times as ISO text."""
    result: dict[str, Any] = {}
    for name, value in zip(names, row, strict=True):
        if isinstance(value, bytes):
            put_bytes(result, name, value)
        else:
            result[name] = plain(value)
    return result


def distinct(names: Sequence[str]) -> list[str]:
    """Make the names of an object's members unique: a repeated name gets a number."""
    taken: set[str] = set()
    result = []
    for name in names:
        free, number = name, 2
        while free in taken:
            free, number = f"{name}_{number}", number + 1
        taken.add(free)
        result.append(free)
    return result


def cell(value: Any) -> str:
    """Format a value as a table cell, on one line."""
    if value is None:
        return _NULL
    if isinstance(value, str):
        return _on_one_line(value)
    if isinstance(value, bytes):
        try:
            return _on_one_line(value.decode())
        except UnicodeDecodeError:
            return "0x" + value.hex()
    if isinstance(value, dict | list | tuple):
        return _on_one_line(json.dumps(plain(value), ensure_ascii=False))
    if isinstance(value, bool):
        return "true" if value else "false"
    # Without the exponent that Python uses for small and large numbers.
    return f"{value:f}" if isinstance(value, Decimal) else str(plain(value))


def plain(value: Any) -> Any:
    """Convert a value to JSON types."""
    if isinstance(value, dict):
        return {str(plain(name)): plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        # Maps arrive as lists of pairs, arrays as lists of anything else.
        if value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return {str(plain(name)): plain(inner) for name, inner in value}
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


def _number(value: Decimal) -> int | float | str:
    """Return a number if JSON readers get the same value from it, else text."""
    if value == value.to_integral_value() and abs(value) < 2**53:
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else f"{value:f}"


def _moment(value: datetime) -> str:
    """Format a time as ISO text, in UTC if it has a zone, with 3 fractional digits or, if needed, 6."""
    zoned = value.tzinfo is not None
    try:
        shown = value.astimezone(UTC).replace(tzinfo=None) if zoned else value
    except OverflowError:  # the first or last hours of the calendar, in a zone that is not UTC
        return value.isoformat()
    precision = "milliseconds" if shown.microsecond % 1000 == 0 else "microseconds"
    return shown.isoformat(timespec=precision) + ("Z" if zoned else "")


def _is_numeric(column: Sequence[Any]) -> bool:
    values = [value for value in column if value is not None]
    return bool(values) and all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values
    )


def _on_one_line(text: str) -> str:
    if text.isprintable():
        return text
    shown = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(shown.get(one, one if one.isprintable() else one.encode("unicode_escape").decode()) for one in text)


def width(text: str) -> int:
    """Return how many terminal columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        " " * (wanted - width(text)) + text if to_right else text + " " * (wanted - width(text))
        for text, wanted, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()
