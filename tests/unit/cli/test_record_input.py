"""What a line of input means, and which lines are refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.consume import message_to_json
from tailrace.cli.main import cli
from tailrace.cli.output import json_line
from tailrace.cli.record_input import (
    InputError,
    InputRecord,
    LineFormat,
    parse_json,
    read_records,
    with_defaults,
)
from tailrace.client import Message


def test_a_line_is_a_value_without_its_end() -> None:
    lines = [b"one\n", b"two\r\n", b"\n", b"\xff last"]
    assert [record.value for record in read_records(lines, LineFormat().parse)] == [b"one", b"two", b"", b"\xff last"]


def test_a_separator_splits_key_and_value_where_it_first_stands() -> None:
    assert LineFormat(key_separator=b"::").parse(b"k::v::w") == InputRecord(b"v::w", b"k")


def test_a_marker_stands_for_null_in_values_and_keys() -> None:
    line_format = LineFormat(key_separator=b":", null_marker=b"NULL")
    assert line_format.parse(b"k:NULL") == InputRecord(None, b"k")
    assert line_format.parse(b"NULL:v") == InputRecord(b"v", None)
    assert line_format.parse(b"k:") == InputRecord(b"", b"k")


def test_a_line_that_is_no_record_is_named_by_its_number() -> None:
    records = read_records([b"a:b\n", b"ab\n"], LineFormat(key_separator=b":").parse)
    assert next(records) == InputRecord(b"b", b"a")
    with pytest.raises(InputError, match="line 2: it has no key separator ':'"):
        next(records)


def test_json_gives_every_part_of_a_record() -> None:
    line = (
        b'{"key": "k", "value": "v", "headers": {"a": "1", "tag": ["x", null, {"base64": "/w=="}]},'
        b' "partition": 2, "timestamp": "2026-01-31T12:00:00Z"}'
    )
    assert parse_json(line) == InputRecord(
        b"v", b"k", (("a", b"1"), ("tag", b"x"), ("tag", None), ("tag", b"\xff")), 2, 1769860800000
    )


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value": null}', None),
        (b'{"value": ""}', b""),
        (b'{"value": {"a": [1, "\xc3\xa4"]}}', '{"a":[1,"ä"]}'.encode()),
        (b'{"value": 1.5}', b"1.5"),
        (b'{"value": false}', b"false"),
        (b'{"value_base64": "/wA="}', b"\xff\x00"),
    ],
)
def test_a_json_value_is_text_null_bytes_or_its_own_json(line: bytes, value: bytes | None) -> None:
    assert parse_json(line) == InputRecord(value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no value"),
        (b'{"vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"value": 1, "value_base64": "AA=="}', "both value and value_base64"),
        (b'{"value_base64": "not base64"}', "not base64"),
        (b'{"value_base64": 5}', "not base64"),
        (b'{"value": "\\ud800"}', "not valid Unicode"),
        (b'{"value": 1, "partition": -1}', "partition -1"),
        (b'{"value": 1, "partition": true}', "partition true"),
        (b'{"value": 1, "timestamp": 0}', "timestamp 0"),
        (b'{"value": 1, "timestamp": "0"}', "timestamp '0'"),
        (b'{"value": 1, "timestamp": "soon"}', "timestamp 'soon'"),
        (b'{"value": 1, "headers": ["a"]}', "headers are not an object"),
    ],
)
def test_json_that_is_no_record_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_json(line)


def test_the_command_line_speaks_where_the_record_is_silent() -> None:
    defaults = InputRecord(None, b"K", (("h", b"1"),), 5, 7)
    assert with_defaults(InputRecord(b"v"), defaults) == InputRecord(b"v", b"K", (("h", b"1"),), 5, 7)
    own = InputRecord(b"v", b"k", (("i", b"2"),), 0, 9)
    assert with_defaults(own, defaults) == InputRecord(b"v", b"k", (("h", b"1"), ("i", b"2")), 0, 9)


_content = st.none() | st.binary(max_size=20)


@given(
    key=_content,
    value=_content,
    headers=st.lists(st.tuples(st.text(max_size=5), _content), max_size=5),
    timestamp_ms=st.integers(1, 2**40),
)
def test_what_consume_prints_as_json_is_the_record_that_produce_reads(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp_ms: int
) -> None:
    message = Message("t", 3, 17, timestamp_ms, key, value, tuple(headers))
    # An object keeps the order of headers of one name, not that among different names.
    grouped = tuple(sorted(headers, key=lambda pair: [name for name, _ in headers].index(pair[0])))
    line = json_line(message_to_json(message)).encode()
    assert parse_json(line) == InputRecord(value, key, grouped, 3, timestamp_ms)
    assert b"\n" not in line
    assert json.loads(line)["offset"] == 17


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--value", "v", "--file", "-"], "--value and --file"),
        (["--key", "k", "--key-separator", ":"], "--key and --key-separator"),
        (["--key-separator", ""], "--key-separator must not be empty"),
        (["--input", "json", "--key-separator", ":"], "need --input lines"),
        (["--input", "json", "--null-marker", "N"], "need --input lines"),
        (["--timestamp", "0"], "out of range"),
        (["--partition", "-1"], "not between"),
        (["--acks", "2"], "'2' is not one of"),
    ],
)
def test_options_of_produce_that_contradict_are_usage_errors(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(cli, ["produce", "orders", *arguments])
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())
