"""Errors between a client and brokers.

There are two kinds. A `ConnectionFailure` is about one connection and its text is only the reason: the caller knows the
address and what it was doing. Every other error is a whole sentence for a user.
"""

from __future__ import annotations

from tailrace.errors import ErrorCode, TailraceError
from tailrace.model import TopicPartition


class ProtocolClientError(TailraceError):
    """A request to brokers failed."""


class ConnectionFailure(ProtocolClientError):
    """A connection failed and must be closed; the text is the reason."""


class ConnectFailedError(ConnectionFailure):
    """The connection could not be opened, so the broker received nothing."""


class ConnectionLostError(ConnectionFailure):
    """The connection ended before the response arrived: the broker may have executed the request."""


class NoAnswerInTimeError(ConnectionLostError):
    """The broker did not respond in time: it may still execute the request."""


class MalformedAnswerError(ConnectionFailure):
    """The received bytes are not a Kafka broker's response in plaintext."""


class RetriableError(ProtocolClientError):
    """The cluster cannot answer yet, but a retry may succeed."""

    def __init__(self, message: str, code: int = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(message)
        self.code = code


class UnreachableClusterError(ProtocolClientError):
    """No address of the cluster responds."""


class NotABrokerError(ProtocolClientError):
    """The servers that respond are not Kafka brokers in plaintext."""


class UnsupportedVersionError(ProtocolClientError):
    """The broker has no version of an API that the client can use."""


class UnsupportedSettingError(ProtocolClientError):
    """The client does not support a setting."""

    def __init__(self, setting: str) -> None:
        super().__init__(f"setting '{setting}' is not supported yet: connections to brokers are plaintext only")
        self.setting = setting


class UnknownPartitionError(ProtocolClientError):
    """A partition does not exist."""

    def __init__(self, name: TopicPartition) -> None:
        super().__init__(f"partition {name.partition} of topic '{name.topic}' does not exist")
        self.name = name


class RefusedError(ProtocolClientError):
    """A broker refused a request, and would refuse it again."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


#: Refusals that end by themselves: a leader moves, a broker starts or loads.
RETRIABLE = frozenset(
    (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def refusal(code: int, what: str) -> RetriableError | RefusedError:
    """Return the error for a code that a broker returned for something."""
    message = f"the broker returned {error_name(code)} for {what}"
    return RetriableError(message, code) if code in RETRIABLE else RefusedError(message, code)


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or its number if this client does not know it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
