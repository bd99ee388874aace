"""How the rows of a query look, in a table and as JSON."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from tailrace.cli.query_output import ROWS_FOR_WIDTHS, cell, distinct, json_object, plain, table_lines

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=UTC)


def test_numbers_stand_to_the_right_and_all_else_to_the_left() -> None:
    rows = [[1, "new", 2.5, True], [1000, "returned", None, None]]
    assert list(table_lines(["id", "status", "total", "late"], rows)) == [
        "  id  status    total  late",
        "   1  new         2.5  true",
        "1000  returned   NULL  NULL",
    ]


def test_a_column_of_nulls_stands_to_the_left() -> None:
    assert list(table_lines(["_corrupt", "n"], [[None, 1]])) == ["_corrupt  n", "NULL      1"]


def test_a_table_without_rows_is_its_header() -> None:
    assert list(table_lines(["id", "status"], [])) == ["id  status"]


def test_nothing_is_cut_off() -> None:
    text = "x" * 5000
    assert list(table_lines(["text", "n"], [[text, 1]]))[1] == text + "  1"


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    lines = list(table_lines(["name", "n"], [["日本", 1], ["e\u0301a", 2], ["abcd", 3]]))
    assert lines == ["name  n", "日本  1", "e\u0301a    2", "abcd  3"]


def test_rows_are_printed_before_the_last_is_known() -> None:
    def rows() -> Any:
        for number in range(ROWS_FOR_WIDTHS + 1):
            yield [number]
        raise RuntimeError("more was asked for")

    lines = table_lines(["n"], rows())
    assert [next(lines) for _ in range(ROWS_FOR_WIDTHS + 2)][-1] == str(ROWS_FOR_WIDTHS)
    with pytest.raises(RuntimeError):
        next(lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "NULL"),
        ("two\nlines\tand\x1b[0m", "two\\nlines\\tand\\x1b[0m"),
        (b"text", "text"),
        (b"\xff\x00", "0xff00"),
        (MOMENT, "2026-01-31T12:00:00.005Z"),
        ([{"sku": "ä", "n": 1}], '[{"sku": "ä", "n": 1}]'),
        ([("a", 1)], '{"a": 1}'),
        (Decimal("1E+3"), "1000"),
        (Decimal("0.10"), "0.10"),
        (1e20, "1e+20"),
        (float("nan"), "NaN"),
        (False, "false"),
    ],
)
def test_every_value_is_a_cell_on_one_line(value: Any, shown: str) -> None:
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (MOMENT.astimezone(timezone(timedelta(hours=2))), "2026-01-31T12:00:00.005Z"),
        (MOMENT.replace(microsecond=123456), "2026-01-31T12:00:00.123456Z"),
        (MOMENT.replace(tzinfo=None), "2026-01-31T12:00:00.005"),
        (date(2026, 1, 31), "2026-01-31"),
        (Decimal("12"), 12),
        (Decimal("1.25"), 1.25),
        (Decimal("12345678901234567890.123456789"), "12345678901234567890.123456789"),
        (float("-inf"), "-Infinity"),
        ([], []),
        ([("k", b"\xff")], {"k": {"base64": "/w=="}}),
        ({"at": MOMENT}, {"at": "2026-01-31T12:00:00.005Z"}),
    ],
)
def test_values_become_what_json_has(value: Any, shown: Any) -> None:
    assert plain(value) == shown


def test_bytes_are_text_in_json_or_base64_under_a_name_that_says_so() -> None:
    assert json_object(["_key", "_value", "n"], [b"k", b"\xff", None]) == {
        "_key": "k",
        "_value_base64": "/w==",
        "n": None,
    }


def test_members_of_one_name_are_numbered() -> None:
    assert distinct(["a", "a", "a_2", "b"]) == ["a", "a_2", "a_2_2", "b"]
