"""What the client tests send and receive, the same for every client library.

Owns the value types and the one way a client says that it was refused. It must not know any client.
"""

from __future__ import annotations

from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")

#: The protocol's numbers for the refusals that the tests provoke.
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC_EXCEPTION = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40


class Record(NamedTuple):
    """A record to be sent; no partition leaves the choice to the client."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = 0


class Received(NamedTuple):
    """A record as a consumer saw it."""

    partition: int
    offset: int
    timestamp_ms: int
    log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def content(self) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        """Key, value and headers, which no broker may change."""
        return self.key, self.value, self.headers


class RefusedError(Exception):
    """A client reported a failure; `code` is the protocol's error number, or None for one of the client's own."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


def contents(records: list[Record]) -> list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    """Key, value and headers of each record sent, to compare with `Received.content`."""
    return [(record.key, record.value, record.headers) for record in records]
