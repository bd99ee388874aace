"""How records and tables look."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from tailrace.cli.consume import message_to_json, text_line
from tailrace.cli.main import cli
from tailrace.cli.output import headers_to_json, in_plain_words, iso, print_table, put_bytes, shown
from tailrace.client import Message

MESSAGE = Message("orders", 2, 17, 1769860800123, b"k\xff", None, (("a", b"1"), ("tag", None)))


def test_columns_are_aligned_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("TOPIC", "COUNT", "LEADER"), [("a", 5, 1), ("longer name", 1000, None)])
    assert capsys.readouterr().out == (
        "TOPIC        COUNT  LEADER\na                5       1\nlonger name   1000       -\n"
    )


def test_bytes_that_are_not_text_become_base64_under_a_name_that_says_so() -> None:
    target: dict[str, Any] = {}
    put_bytes(target, "key", b"\xff\x00")
    put_bytes(target, "value", "ä".encode())
    put_bytes(target, "nothing", None)
    assert target == {"key_base64": "/wA=", "value": "ä", "nothing": None}


def test_a_header_that_occurs_twice_has_both_values() -> None:
    pairs = [("tag", b"x"), ("a", b"\xff"), ("tag", b"y"), ("b", None)]
    assert headers_to_json(pairs) == {"tag": ["x", "y"], "a": {"base64": "/w=="}, "b": None}


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1769860800123, "2026-01-31T12:00:00.123Z"),
        (-1, "-"),
        (2**63 - 1, str(2**63 - 1)),
    ],
)
def test_a_timestamp_is_iso_text_in_utc(timestamp_ms: int, text: str) -> None:
    assert iso(timestamp_ms) == text


def test_a_message_as_text_is_its_value_alone() -> None:
    message = Message("orders", 0, 0, 1, b"k", b"raw \xff bytes", ())
    assert text_line(message, timestamps=False, offsets=False, keys=False, headers=False) == b"raw \xff bytes"


def test_a_message_as_text_has_what_was_asked_for_before_its_value() -> None:
    line = text_line(MESSAGE, timestamps=True, offsets=True, keys=True, headers=True)
    assert line == b"2026-01-31T12:00:00.123Z\t2:17\tk\xff\ta=1,tag=null\tnull"


def test_a_message_as_json_has_all_of_it() -> None:
    assert message_to_json(MESSAGE) == {
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "timestamp": 1769860800123,
        "key_base64": "a/8=",
        "value": None,
        "headers": {"a": "1", "tag": None},
    }


def test_only_one_start_can_be_given() -> None:
    result = CliRunner().invoke(cli, ["consume", "orders", "--from-end", "--offset", "3"])
    assert result.exit_code == 2
    assert "Give only one of --from-beginning, --from-end, --offset and --from-timestamp." in result.stderr


def test_numbers_that_are_none_are_spoken_of_in_plain_words() -> None:
    said = in_plain_words("no: Invalid value soon for configuration retention.ms: Not a number of type LONG")
    assert said == "no: retention.ms takes a whole number from -9223372036854775808 to 9223372036854775807, not 'soon'"
    said = in_plain_words("Invalid value  for configuration a.ratio: Not a number of type DOUBLE (command line)")
    assert said == "a.ratio takes a number, not '' (command line)"
    said = in_plain_words(f"Invalid value {'9' * 5000} for configuration n: Not a number of type INT")
    assert len(said) < 200


def test_what_somebody_gave_is_shown_with_its_bytes() -> None:
    assert shown("a\udcffb") == "'a\\xffb'"
