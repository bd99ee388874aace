"""Writes a broker's log to standard error: one line per event, as text for people or as JSON for programs.

A JSON line has `ts`, `level`, `logger` and `message`, then the fields of the event (topic, partition, peer, …), then
`exception` with a stack trace if there is one. A partition or an error that a message names also becomes a field.
Events that clients can cause at will carry a field `repeats`, the name of their kind. Each kind has a limit per minute;
the next line of the kind says how many were suppressed.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from tailrace.model import TopicPartition

JSON = "json"
#: The field with the kind of an event that clients can cause at will; never shown.
REPEATS = "repeats"
#: The field with the number of events of the kind that were suppressed before this one.
SUPPRESSED = "suppressed"

_WINDOW_SECONDS = 60.0
#: Attributes that every record has; they are shown under other names or not at all.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", REPEATS}
#: Escapes for control characters, which could end a line or control a terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))} | {9: "\\t", 10: "\\n", 13: "\\r"}


class RepeatLimit(logging.Filter):
    """Limits the events of each repeatable kind per minute."""

    def __init__(self, per_minute: int) -> None:
        super().__init__()
        self._per_minute = per_minute
        # By kind: when its minute began, how many passed in it, how many were suppressed since the last one passed.
        self._windows: dict[str, tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = getattr(record, REPEATS, None)
        if kind is None:
            return True
        now = self._now()
        began, passed, suppressed = self._windows.get(kind, (now, 0, 0))
        if now - began >= _WINDOW_SECONDS:
            began, passed = now, 0
        if passed >= self._per_minute:
            self._windows[kind] = (began, passed, suppressed + 1)
            return False
        self._windows[kind] = (began, passed + 1, 0)
        if suppressed:
            setattr(record, SUPPRESSED, suppressed)
        return True

    def _now(self) -> float:
        return time.monotonic()


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """Formats an event as one line for people; only a stack trace takes more lines."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_ESCAPES)
        suppressed = getattr(record, SUPPRESSED, 0)
        if suppressed:
            message += f" ({suppressed} more like this were not logged)"
        line = f"{_timestamp(record)} {record.levelname} {record.name}: {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Formats an event as a JSON object on one line, with its fields."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= _named_in_message(record)
        content |= {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def _named_in_message(record: logging.LogRecord) -> dict[str, Any]:
    """Return the partition and the error in a message as fields, so that nobody has to parse its text."""
    found: dict[str, Any] = {}
    for argument in record.args if isinstance(record.args, tuple) else ():
        if isinstance(argument, TopicPartition):
            found |= {"topic": argument.topic, "partition": argument.partition}
        elif isinstance(argument, BaseException):
            found |= {"error": str(argument), "error_type": type(argument).__name__}
    return found


def set_up_logging(log_format: str, level: str, repeats_per_minute: int, stream: TextIO | None = None) -> None:
    """Log events of a level and above, as text or JSON; events of libraries only from warnings on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    handler.addFilter(RepeatLimit(repeats_per_minute))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tailrace").setLevel(level)
