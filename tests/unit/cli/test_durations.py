"""Durations as text."""

from __future__ import annotations

import pytest

from tailrace.cli.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2h", 7_200_000),
        ("90m", 5_400_000),
        ("1d12h", 129_600_000),
        ("1d 12h", 129_600_000),
        ("1.5H", 5_400_000),
        ("250ms", 250),
        ("30s", 30_000),
        ("2w", 1_209_600_000),
        ("P1DT2H", 93_600_000),
        ("PT90M", 5_400_000),
        ("PT0.5S", 500),
        ("p1w", 604_800_000),
        ("P0DT0S", 0),
    ],
)
def test_spans_in_both_spellings(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "2", "h", "P", "PT", "P1H", "-2h", "2 hours ago", "1y", "P1M", "PT5D"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90m"):
        parse_duration(text)
