"""What every client of a broker needs: settings that keep librdkafka quiet, and a quick check of the connection.

librdkafka retries an unreachable broker for ever and logs to the terminal. Here its messages go to the Python logger
`tailrace.client`, and an address where nothing listens is an `UnreachableError` at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException

from tailrace.client.errors import ClientError, UnknownTopicError, UnreachableError
from tailrace.model import topic_name_problem
from tailrace.protocol_client.cluster import first_of
from tailrace.protocol_client.errors import ProtocolClientError
from tailrace.protocol_client.handshake import open_socket
from tailrace.protocol_client.settings import split_addresses

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
#: How long an address may take to accept a connection, to respond for the first time, and to respond later.
CONNECT_TIMEOUT = 4.0
FIRST_ANSWER_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
#: How long a new producer waits for a broker to accept its connection.
DEFAULT_CONNECT_TIMEOUT = 5.0

#: Receives a text that says what delays a client while it retries.
Warn: TypeAlias = Callable[[str], None]

#: The errors that brokers return while a topic is being created or a leader changes.
_PASSING = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
_PAUSE = 0.1


class MetadataClient(Protocol):
    """What producers, consumers and admin clients have in common."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any: ...


_logger = logging.getLogger("tailrace.client")
_logger.addHandler(logging.NullHandler())


def log_warning(text: str) -> None:
    """Log what delays a client."""
    _logger.warning("%s", text)


def check_topic_name(topic: str) -> None:
    """Raise `ClientError` for an invalid topic name; librdkafka only says that something is invalid."""
    if (problem := topic_name_problem(topic)) is not None:
        raise ClientError(problem[0].lower() + problem[1:])


def check_reachable(bootstrap: str, timeout: float = CONNECT_TIMEOUT) -> None:
    """Raise `UnreachableError`, with the attempts, unless one of the addresses accepts a connection in time."""
    try:
        first_of(bootstrap, split_addresses(bootstrap), open_socket, timeout).close()
    except ProtocolClientError as error:
        raise UnreachableError(str(error)) from error


def wait_until_reachable(bootstrap: str, timeout: float) -> None:
    """Do the same for an address where a broker may just be starting: retry until the time is over."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return check_reachable(bootstrap, max(_PAUSE, deadline - time.monotonic()))
        except UnreachableError as error:
            if time.monotonic() + _PAUSE >= deadline:
                at = f"at {bootstrap} "
                raise UnreachableError(str(error).replace(at, f"{at}within {timeout:g} s ", 1)) from error
        time.sleep(_PAUSE)


def check_answers(client: MetadataClient, bootstrap: str) -> None:
    """Raise `UnreachableError` unless the server also responds like a broker, in time."""
    try:
        client.list_topics(timeout=FIRST_ANSWER_TIMEOUT)
    except KafkaException as error:
        raise UnreachableError(
            f"the server at {bootstrap} does not answer like a Kafka broker ({plain(error_of(error)).lower()})"
        ) from error


def client_settings(bootstrap: str, defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka settings: defaults, then the caller's, whose names may have `_` instead of librdkafka's `.`."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "logger": _logger, **defaults}
    settings.update((setting_name(name), value) for name, value in overrides.items())
    return settings


def setting_name(name: str) -> str:
    """Return the librdkafka name of a setting given as a Python keyword."""
    if "." in name or name == "log_level" or name.endswith("_cb"):
        return name
    return name.replace("_", ".")


def error_of(exception: KafkaException) -> KafkaError:
    """Return the Kafka error inside confluent-kafka's exception."""
    error = exception.args[0]
    if not isinstance(error, KafkaError):
        raise TypeError(f"expected a KafkaError in {exception!r}")
    return error


def patiently(look: Callable[[], T], timeout: float) -> T:
    """Retry while the error only means that the cluster has not settled, until the time is over."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return look()
        except KafkaException as error:
            if error_of(error).code() not in _PASSING or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)


def client_error(error: KafkaError, *, doing: str, bootstrap: str, topic: str | None = None) -> ClientError:
    """Return the error to raise for what the broker or librdkafka reported while doing something."""
    code = error.code()
    if topic is not None and code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return UnknownTopicError(f"topic '{topic}' does not exist; list all topics with: tailrace topic list")
    if code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        return UnreachableError(f"lost the broker at {bootstrap} while {doing}: {plain(error)}")
    if code in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
        return UnreachableError(f"the broker at {bootstrap} did not answer in time while {doing}")
    return ClientError(f"{doing} failed: {plain(error)}")


def plain(error: KafkaError) -> str:
    """Return an error's text without librdkafka's prefixes that say where it was raised."""
    return error.str().rpartition("Broker: ")[2].rpartition("Local: ")[2]
