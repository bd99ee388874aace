"""How a broker's log reaches standard error: one line per event, as text for people or as JSON for programs.

JSON lines have `ts`, `level`, `logger` and `message`, then whatever fields the event has (topic, partition, peer, …),
then `exception`, a stack trace, where there is one. A partition or an error that a message names is a field, too.
Events that clients can cause at will say so with a field `repeats`, the name of their kind; of each kind only so many
a minute are written, and the next line of the kind says how many were not.
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
#: Names the kind of an event that may be repeated at will; never shown.
REPEATS = "repeats"
#: How many events of the kind were left out before this one.
SUPPRESSED = "suppressed"

_WINDOW_SECONDS = 60.0
#: What every record has, which is shown under other names or not at all.
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", REPEATS}
#: Control characters, which could end a line or steer a terminal, as escapes.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))} | {9: "\\t", 10: "\\n", 13: "\\r"}


class RepeatLimit(logging.Filter):
    """Lets so many events of each repeatable kind through in a minute."""

    def __init__(self, per_minute: int) -> None:
        super().__init__()
        self._per_minute = per_minute
        # By kind: when its minute began, how many were let through in it, how many were not since the last one was.
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
    """A line for people; only a stack trace takes more."""

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
    """An object on a line, with the fields of the event."""

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
    """The partition and the error that a message tells of, which nobody should have to find in its text."""
    found: dict[str, Any] = {}
    for argument in record.args if isinstance(record.args, tuple) else ():
        if isinstance(argument, TopicPartition):
            found |= {"topic": argument.topic, "partition": argument.partition}
        elif isinstance(argument, BaseException):
            found |= {"error": str(argument), "error_type": type(argument).__name__}
    return found


def set_up_logging(log_format: str, level: str, repeats_per_minute: int, stream: TextIO | None = None) -> None:
    """Log events of at least a level, as text or JSON; those of libraries only if they warn."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    handler.addFilter(RepeatLimit(repeats_per_minute))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tailrace").setLevel(level)
