"""The errors of transactions that older versions of requests do not know, and what their clients get instead."""

from __future__ import annotations

from tailrace.errors import ErrorCode


def producer_error(code: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """The error of a producer that was replaced: before KIP-588 clients knew only INVALID_PRODUCER_EPOCH."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
