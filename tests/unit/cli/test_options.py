"""The values that text on the command line may have."""

from __future__ import annotations

import click
import pytest

from tailrace.cli.options import MomentType, PairType, WholeNumber, pairs_without_repeats, parse_moment


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1769860800123", 1769860800123),
        ("2026-01-31T12:00:00Z", 1769860800000),
        ("2026-01-31T12:00:00", 1769860800000),
        ("2026-01-31T12:00:00.123", 1769860800123),
        ("2026-01-31 13:00:00+01:00", 1769860800000),
        ("2026-01-31", 1769817600000),
    ],
)
def test_a_moment_is_milliseconds_or_iso_text_in_utc(text: str, milliseconds: int) -> None:
    assert parse_moment(text) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1.5", "1969-12-31", "2026-13-01", str(2**63)])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text)


def test_a_moment_may_have_a_lowest_value() -> None:
    with pytest.raises(click.BadParameter, match="0 ms is not between 1 and"):
        MomentType(earliest_ms=1).convert("0", None, None)


@pytest.mark.parametrize(
    ("text", "pair"), [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c")), ("a= b ", ("a", " b "))]
)
def test_a_pair_is_split_at_its_first_equal_sign(text: str, pair: tuple[str, str]) -> None:
    assert PairType().convert(text, None, None) == pair


@pytest.mark.parametrize("text", ["a", "=b", " =b", ""])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        PairType().convert(text, None, None)


def test_a_name_given_twice_is_a_mistake() -> None:
    with pytest.raises(click.UsageError, match="--set gives 'a' twice"):
        pairs_without_repeats((("a", "1"), ("a", "1")), "--set")


@pytest.mark.parametrize("text", ["x", "1.5", "-1", "11", ""])
def test_a_number_outside_its_bounds_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        WholeNumber(0, 10).convert(text, None, None)


def test_the_bounds_of_a_number_belong_to_it() -> None:
    assert [WholeNumber(0, 10).convert(text, None, None) for text in ("0", "10")] == [0, 10]
