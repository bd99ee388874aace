"""Subscriptions by regular expression: always RE2, never a backtracker, as it takes linear time for any expression."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import INTERNAL_TOPICS

_MOST_BYTES = 1 << 20


def matching_topics(regex: str, names: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches, sorted; internal topics never match."""
    pattern = compile_pattern(regex)
    return sorted(name for name in names if name not in INTERNAL_TOPICS and pattern.fullmatch(name) is not None)


@lru_cache(maxsize=1024)
def compile_pattern(regex: str) -> Any:
    """Compile an expression; refuse an invalid one with INVALID_REGULAR_EXPRESSION and the reason."""
    import re2  # only groups that subscribe by pattern need it

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_BYTES
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}.",
        ) from None
