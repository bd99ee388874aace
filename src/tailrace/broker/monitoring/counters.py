"""What is counted of requests where they are answered: plain numbers, turned into text only when somebody looks.

A counter costs the hot path an addition; it must not know how it will be shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import Any

from tailrace.runtime.histogram import Histogram
from tailrace.wire.codec import Message, Struct

#: Bounds of the time that a request takes, in milliseconds as they are shown.
REQUEST_TIME_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)
_BOUNDS_SECONDS = tuple(bound / 1000 for bound in REQUEST_TIME_BOUNDS_MS)


class VersionCounter:
    """The requests of one version of an API."""

    __slots__ = ("requests", "times")

    def __init__(self, times: Histogram) -> None:
        self.requests = 0
        #: Of all versions of the API.
        self.times = times

    def answered(self, requests: int, seconds: float) -> None:
        """Count requests that took that long each."""
        self.requests += requests
        # As Histogram.observe does, without the call: this is done for every read of every connection.
        times = self.times
        times.counts[bisect_left(_BOUNDS_SECONDS, seconds)] += requests
        times.total += seconds * requests


class RequestCounters:
    """The requests of one API."""

    __slots__ = ("errors", "times", "versions")

    def __init__(self, max_version: int) -> None:
        #: Seconds from when a request had been received until its answer was handed to the connection.
        self.times = Histogram(_BOUNDS_SECONDS)
        #: How many came, by version.
        self.versions = [VersionCounter(self.times) for _ in range(max_version + 1)]
        #: How often an answer carried an error, by its code; a request for many partitions may carry many.
        self.errors: dict[int, int] = {}

    def refused(self, code: int, times: int = 1) -> None:
        """An answer carries an error."""
        self.errors[code] = self.errors.get(code, 0) + times


class Counters:
    """The requests of a broker, by API key."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests: dict[int, RequestCounters] = {}

    def of_api(self, api_key: int, max_version: int) -> RequestCounters:
        """The counters of an API, made when they are first asked for."""
        counters = self.requests.get(api_key)
        if counters is None:
            counters = self.requests[api_key] = RequestCounters(max_version)
        return counters

    def refused(self, api_key: int, code: int) -> None:
        """An answer of an API carries an error that its handler knows best."""
        counters = self.requests.get(api_key)
        if counters is not None:
            counters.refused(code)


def count_errors(counters: RequestCounters, response: Message) -> None:
    """Count every error code that a response carries, at its top or in anything that it lists."""
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
    """How to find error codes in a struct; None where its description has no place for them."""
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
