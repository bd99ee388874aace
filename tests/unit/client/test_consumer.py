"""An invalid start is refused before any broker is asked."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tailrace.client import Timestamp, read


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (-1, "not be negative"),
        (Timestamp(-5), "not be negative"),
        (datetime(2026, 1, 31, 12), "no time zone"),
        ("middle", "'earliest', 'latest'"),
    ],
)
def test_an_impossible_start_is_refused(start: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read("orders", bootstrap="127.0.0.1:1", start=start)
