"""Counters of requests: plain numbers, turned into text only when someone reads them.

A counter costs the hot path one addition. This module must not know how counters are shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import Any

from tailrace.runtime.histogram import Histogram
from tailrace.wire.codec import Message, Struct

#: The buckets of request times, in milliseconds as shown.
REQUEST_TIME_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)
_BOUNDS_SECONDS = tuple(bound / 1000 for bound in REQUEST_TIME_BOUNDS_MS)


class VersionCounter:
    """Requests of one version of an API."""

    __slots__ = ("requests", "times")

    def __init__(self, times: Histogram) -> None:
        self.requests = 0
        #: Shared by all versions of the API.
        self.times = times

    def answered(self, requests: int, seconds: float) -> None:
        """Count requests that each took this long."""
        self.requests += requests
        # Histogram.observe without the call: this runs for every read of every connection.
        times = self.times
        times.counts[bisect_left(_BOUNDS_SECONDS, seconds)] += requests
        times.total += seconds * requests


class RequestCounters:
    """Requests of one API."""

    __slots__ = ("errors", "times", "versions")

    def __init__(self, max_version: int) -> None:
        #: Seconds from when a request was received until its response was handed to the connection.
        self.times = Histogram(_BOUNDS_SECONDS)
        #: Requests by version.
        self.versions = [VersionCounter(self.times) for _ in range(max_version + 1)]
        #: Responses with an error, by error code; the response to a request for many partitions may have many errors.
        self.errors: dict[int, int] = {}

    def refused(self, code: int, times: int = 1) -> None:
        """Count a response with an error."""
        self.errors[code] = self.errors.get(code, 0) + times


class Counters:
    """Requests of a broker, by API key."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests: dict[int, RequestCounters] = {}

    def of_api(self, api_key: int, max_version: int) -> RequestCounters:
        """Return the counters of an API; the first call creates them."""
        counters = self.requests.get(api_key)
        if counters is None:
            counters = self.requests[api_key] = RequestCounters(max_version)
        return counters

    def refused(self, api_key: int, code: int) -> None:
        """Count an error that only the handler sees."""
        counters = self.requests.get(api_key)
        if counters is not None:
            counters.refused(code)


def count_errors(counters: RequestCounters, response: Message) -> None:
    """Count every error code in a response, at its top level and in all its lists."""
    search = _search(type(response))
    if search is None:
        return
    found: dict[int, int] = {}
    search(response, found)
    if found:
        for code, times in found.items():
            counters.refused(code, times)


@cache
def _search(kind: type[Struct]) -> Callable[[Any, dict[int, int]], None] | None:
    """Return a function that finds the error codes in a struct; None if its description has none."""
    has_code = "error_code" in kind.FIELDS
    inner = [
        (name, search_inner)
        for name, field in kind.FIELDS.items()
        if field.struct is not None and (search_inner := _search(field.struct)) is not None
    ]
    if not has_code and not inner:
        return None

    def search(struct: Any, found: dict[int, int]) -> None:
        if has_code and struct.error_code:
            found[struct.error_code] = found.get(struct.error_code, 0) + 1
        for name, search_inner in inner:
            value = getattr(struct, name)
            if isinstance(value, list):
                for element in value:
                    search_inner(element, found)
            elif value is not None:
                search_inner(value, found)

    return search
