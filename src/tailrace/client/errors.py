"""What can go wrong between a program and its broker, in words that say what to do about it."""

from __future__ import annotations

from tailrace.errors import TailraceError


class ClientError(TailraceError):
    """The broker, or the library that talks to it, refused an operation."""


class UnreachableError(ClientError):
    """No broker answers at any of the given addresses."""


class NoAnswerError(UnreachableError):
    """A broker was asked and lost before it answered: it may have done what it was asked to do."""


class UnknownTopicError(ClientError):
    """The topic, or a partition asked for, does not exist."""


class UnknownGroupError(ClientError):
    """The consumer group does not exist."""


class GroupHasMembersError(ClientError):
    """The consumer group is in use, and what was asked is for groups that are not."""


class TopicExistsError(ClientError):
    """The topic to create is already there."""


class OffsetOutOfRangeError(ClientError):
    """No partition has, or is about to get, the offset that reading was to begin at."""


class ReadTimeoutError(ClientError):
    """The broker sent nothing for longer than the reader was told to wait."""


class DeliveryError(ClientError):
    """Records were sent that no broker acknowledged."""

    def __init__(self, count: int, reason: str) -> None:
        records = "1 record was" if count == 1 else f"{count} records were"
        super().__init__(f"{records} not acknowledged: {reason}")
        self.count = count
        self.reason = reason
