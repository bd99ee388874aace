"""Reads records from input: one per line, as text or as a JSON object.

Owns the two input formats; must not know how records are sent. A line that is not a record raises an `InputError`
with its number.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tailrace.cli.options import parse_moment
from tailrace.errors import TailraceError

_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
#: What `consume --json` also prints; a copy goes to the topic on the command line and gets a new offset.
_IGNORED_FIELDS = ("topic", "offset")


class InputError(TailraceError):
    """A line of input is not a record."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One record to send; None where the producer decides."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line of text becomes a record."""

    key_separator: bytes | None = None
    null_marker: bytes | None = None

    def parse(self, line: bytes) -> InputRecord:
        """Parse a line without its line ending."""
        key: bytes | None = None
        value = line
        if self.key_separator is not None:
            key, found, value = line.partition(self.key_separator)
            if not found:
                separator = self.key_separator.decode(errors="backslashreplace")
                raise InputError(f"it has no key separator '{separator}'")
        return InputRecord(self._or_null(value), None if key is None else self._or_null(key))

    def _or_null(self, content: bytes) -> bytes | None:
        return None if content == self.null_marker else content


def parse_json(line: bytes) -> InputRecord:
    """Parse a JSON object: text becomes UTF-8, null stays null, any other value becomes its JSON text."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"it is not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"it is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError("it is not a JSON object")
    unknown = [name for name in fields if name not in _FIELDS and name not in _IGNORED_FIELDS]
    if unknown:
        raise InputError(f"unknown field '{unknown[0]}'; the fields are {', '.join(_FIELDS)}")
    if "value" not in fields and "value_base64" not in fields:
        raise InputError("it has no value; for a null value write null")
    return InputRecord(
        value=_content(fields, "value"),
        key=_content(fields, "key"),
        headers=tuple(_headers(fields.get("headers"))),
        partition=_partition(fields.get("partition")),
        timestamp_ms=_timestamp(fields.get("timestamp")),
    )


def _content(fields: dict[str, Any], name: str) -> bytes | None:
    packed = fields.get(f"{name}_base64")
    if packed is None:
        return _encode(fields.get(name))
    if name in fields:
        raise InputError(f"it has both {name} and {name}_base64")
    return _unpack(packed, f"{name}_base64")


def _encode(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        # JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InputError("it has text that is not valid Unicode") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _unpack(packed: Any, name: str) -> bytes:
    try:
        return base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise InputError(f"{name} is not base64") from None


def _headers(headers: Any) -> Iterator[tuple[str, bytes | None]]:
    if headers is None:
        return
    if not isinstance(headers, dict):
        raise InputError("headers are not an object")
    for name, value in headers.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and list(item) == ["base64"]:
                yield name, _unpack(item["base64"], f"header {name}")
            else:
                yield name, _encode(item)


def _partition(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**31):
        return value
    raise InputError(f"partition {json.dumps(value)} is not a whole number from 0 to {2**31 - 1}")


def _timestamp(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is int and 0 < value < 2**63:
        return value
    if isinstance(value, str):
        try:
            return parse_moment(value, earliest_ms=1)
        except ValueError as error:
            raise InputError(f"timestamp {error}") from None
    raise InputError(f"timestamp {json.dumps(value)} is neither milliseconds nor ISO text")


def read_records(lines: Iterable[bytes], parse: Callable[[bytes], InputRecord]) -> Iterator[InputRecord]:
    """Yield the record of each line; raise `InputError` with the number of the first line that is not a record."""
    for number, line in enumerate(lines, 1):
        try:
            yield parse(line.removesuffix(b"\n").removesuffix(b"\r"))
        except InputError as error:
            raise InputError(f"line {number}: {error}") from None


def with_defaults(record: InputRecord, defaults: InputRecord) -> InputRecord:
    """Fill in what a record lacks from the defaults; keep its value, and put the default headers before its own."""
    return InputRecord(
        value=record.value,
        key=defaults.key if record.key is None else record.key,
        headers=defaults.headers + record.headers,
        partition=defaults.partition if record.partition is None else record.partition,
        timestamp_ms=defaults.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
    )
