"""Log lines have a stable shape, tell no lies about their length, and never flood."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.cli.log_output import RepeatLimit, set_up_logging
from tailrace.errors import StorageError
from tailrace.model import TopicPartition

logger = logging.getLogger("tailrace.test_log_output")


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Logging as it was, after a test has set it up."""
    root = logging.getLogger()
    ours = logging.getLogger("tailrace")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.fixture
def stream(restored_logging: None) -> io.StringIO:
    return io.StringIO()


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_text_line_has_time_level_logger_and_message(stream: io.StringIO) -> None:
    set_up_logging("text", "INFO", 60, stream)
    logger.warning("connection from %s refused", "10.0.0.1:5", extra={"peer": "10.0.0.1:5"})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING tailrace\.test_log_output: "
        r"connection from 10\.0\.0\.1:5 refused\n",
        stream.getvalue(),
    )


def test_a_json_line_has_the_fields_of_its_event(stream: io.StringIO) -> None:
    set_up_logging("json", "INFO", 60, stream)
    logger.info("topic %s created", "orders", extra={"topic": "orders", "partitions": 3, "repeats": "kind"})
    (line,) = json_lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "INFO",
        "logger": "tailrace.test_log_output",
        "message": "topic orders created",
        "topic": "orders",
        "partitions": 3,
    }


def test_a_partition_and_an_error_in_the_message_are_fields(stream: io.StringIO) -> None:
    set_up_logging("json", "INFO", 60, stream)
    logger.error("retention of %s failed: %s; retrying", TopicPartition("orders", 3), StorageError("the disk is full"))
    (line,) = json_lines(stream)
    assert line["message"] == "retention of orders-3 failed: the disk is full; retrying"
    assert (line["topic"], line["partition"]) == ("orders", 3)
    assert (line["error"], line["error_type"]) == ("the disk is full", "StorageError")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_a_client_sent_stays_on_its_line(stream: io.StringIO, log_format: str) -> None:
    set_up_logging(log_format, "INFO", 60, stream)
    logger.info("client id %s", "x\n2026-01-01 CRITICAL forged\r\x1b[2J\x9b")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "\x9b" not in line


def test_an_exception_is_kept_with_its_event(stream: io.StringIO) -> None:
    set_up_logging("json", "INFO", 60, stream)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed", extra={"odd": object})
    (line,) = json_lines(stream)
    assert line["message"] == "it failed"
    assert "ValueError: why" in line["exception"]
    assert line["odd"] == str(object)


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 4), ("INFO", 3), ("WARNING", 2), ("ERROR", 1)])
def test_the_level_decides_what_is_written(stream: io.StringIO, level: str, count: int) -> None:
    set_up_logging("text", level, 60, stream)
    for write in (logger.debug, logger.info, logger.warning, logger.error):
        write("an event")
    logging.getLogger("asyncio").info("libraries are heard only when they warn")
    assert len(stream.getvalue().splitlines()) == count


class Minutes(RepeatLimit):
    """A limit whose clock is set by hand."""

    now = 1000.0

    def _now(self) -> float:
        return self.now


def passes(limit: RepeatLimit, kind: str | None) -> logging.LogRecord | None:
    record = logging.makeLogRecord({} if kind is None else {"repeats": kind})
    return record if limit.filter(record) else None


def test_of_each_kind_only_so_many_a_minute_are_written_and_the_rest_is_counted() -> None:
    limit = Minutes(3)
    assert [passes(limit, "refused") is not None for _ in range(10)] == [True] * 3 + [False] * 7
    assert passes(limit, "malformed") is not None, "another kind has a limit of its own"
    assert all(passes(limit, None) is not None for _ in range(100)), "what clients cannot cause has no limit"
    limit.now += 59.9
    assert passes(limit, "refused") is None
    limit.now += 0.1
    record = passes(limit, "refused")
    assert record is not None
    assert record.suppressed == 8  # type: ignore[attr-defined]
    record = passes(limit, "refused")
    assert record is not None
    assert not hasattr(record, "suppressed")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_says_how_many_like_it_were_left_out(stream: io.StringIO, log_format: str) -> None:
    set_up_logging(log_format, "INFO", 1, stream)
    (handler,) = logging.getLogger().handlers
    limit = Minutes(1)
    handler.filters[:] = [limit]
    for _ in range(41):
        logger.warning("refused", extra={"repeats": "refused"})
    limit.now += 61
    logger.warning("refused", extra={"repeats": "refused"})
    first, second = stream.getvalue().splitlines()
    assert "more like this" not in first
    assert "suppressed" not in first
    if log_format == "json":
        assert json.loads(second)["suppressed"] == 40
    else:
        assert second.endswith("refused (40 more like this were not logged)")
