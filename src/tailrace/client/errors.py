"""Errors between a program and its broker, in words that say what to do about them."""

from __future__ import annotations

from tailrace.errors import TailraceError


class ClientError(TailraceError):
    """The broker, or the client library, refused an operation."""


class UnreachableError(ClientError):
    """No broker responds at any of the given addresses."""


class NoAnswerError(UnreachableError):
    """The connection to a broker was lost before it responded: it may have executed the request."""


class UnknownTopicError(ClientError):
    """The topic, or a requested partition, does not exist."""


class UnknownGroupError(ClientError):
    """The consumer group does not exist."""


class GroupHasMembersError(ClientError):
    """The consumer group has members, and the operation requires a group without any."""


class TopicExistsError(ClientError):
    """The topic to create exists already."""


class OffsetOutOfRangeError(ClientError):
    """The offset to start reading at does not exist in any partition, and is not the next one."""


class ReadTimeoutError(ClientError):
    """The broker sent nothing for longer than the reader was told to wait."""


class DeliveryError(ClientError):
    """No broker acknowledged some of the sent records."""

    def __init__(self, count: int, reason: str) -> None:
        records = "1 record was" if count == 1 else f"{count} records were"
        super().__init__(f"{records} not acknowledged: {reason}")
        self.count = count
        self.reason = reason
