"""A producer that reports every failure.

Invariant: every record passed to `send` is acknowledged by the end of `flush` or of the `with` block, or a
`DeliveryError` says how many were not and why. librdkafka owns batching, retries and the order of records; this module
must not know them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from tailrace.client.cluster import write_problem
from tailrace.client.connection import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_CONNECT_TIMEOUT,
    Warn,
    check_answers,
    check_reachable,
    check_topic_name,
    client_settings,
    error_of,
    log_warning,
    plain,
    setting_name,
    wait_until_reachable,
)
from tailrace.client.errors import ClientError, DeliveryError, UnreachableError

Text: TypeAlias = str | bytes
Headers: TypeAlias = Mapping[str, Text | None] | Sequence[tuple[str, Text | None]]

#: librdkafka's blocking calls delay Ctrl-C until they return, so none of them lasts longer than this.
_SLICE = 0.2
_INTERRUPTED_TIMEOUT = 1.0
#: After this long without an acknowledgement, the caller is warned why.
_STALL_SECONDS = 3.0
#: librdkafka's upper limit.
_MOST_MESSAGE_BYTES = 1_000_000_000


def encode(value: Text | None) -> bytes | None:
    """Encode text as UTF-8; return bytes and None unchanged."""
    return value.encode() if isinstance(value, str) else value


class Producer:
    """Sends records to topics; use it in a `with` block, which ends when all of them are acknowledged."""

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        *,
        connect_timeout: float | None = DEFAULT_CONNECT_TIMEOUT,
        warn: Warn = log_warning,
        **overrides: Any,
    ) -> None:
        """Connect to a broker: `UnreachableError` if none accepts a connection within `connect_timeout` seconds.

        If it is None, nothing is tried yet, and records wait until they time out. `warn` is called while
        acknowledgements are missing; other keywords are settings of librdkafka.
        """
        if connect_timeout is not None:
            wait_until_reachable(bootstrap, connect_timeout)
        defaults: dict[str, Any] = {
            "partitioner": "murmur2_random",
            "acks": "all",
            # The topic's max.message.bytes decides, not a limit of the library.
            "message.max.bytes": _MOST_MESSAGE_BYTES,
            "error_cb": self._broker_failed,
        }
        names = {setting_name(name): value for name, value in overrides.items()}
        acks = names.get("acks", names.get("request.required.acks", "all"))
        # librdkafka refuses idempotence with weaker acks, so a caller that sets those gives it up.
        if str(acks) in ("all", "-1"):
            defaults["enable.idempotence"] = True
        self._producer = confluent_kafka.Producer(client_settings(bootstrap, defaults, overrides))
        self._bootstrap = bootstrap
        self._acknowledged = 0
        self._failed = 0
        self._first_reason: str | None = None
        self._broker_reason: str | None = None
        self._warn = warn
        #: The last topic that was sent to, and its problem, if that was looked up.
        self._topic: str | None = None
        self._problem: str | None = None
        self._is_timed_out = False

    @property
    def acknowledged(self) -> int:
        """The number of records acknowledged so far."""
        return self._acknowledged

    @property
    def unacknowledged(self) -> int:
        """The number of records without an acknowledgement yet."""
        return len(self._producer)

    def check_connection(self) -> None:
        """Raise `UnreachableError` now if no broker responds, not when the first record times out."""
        check_reachable(self._bootstrap)
        check_answers(self._producer, self._bootstrap)

    def send(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Queue one record; waits while the queue is full, raises `DeliveryError` if it is refused at once."""
        if timestamp_ms is not None and timestamp_ms < 1:
            raise ValueError(f"a timestamp must be a positive number of milliseconds, not {timestamp_ms}")
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        arguments: dict[str, Any] = {
            "key": encode(key),
            "on_delivery": self._delivered,
            "partition": -1 if partition is None else partition,
            "timestamp": timestamp_ms or 0,
        }
        if encoded := [(name, encode(content)) for name, content in pairs]:
            arguments["headers"] = encoded
        payload = encode(value)
        if topic != self._topic:
            check_topic_name(topic)
            self._topic = topic
        while True:
            try:
                self._producer.produce(topic, payload, **arguments)
            except BufferError:
                self._producer.poll(_SLICE)
            except KafkaException as error:
                raise DeliveryError(1, self._reason(error_of(error), topic)) from error
            else:
                break
        self._producer.poll(0)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; `DeliveryError` for records that failed or are late."""
        remaining = self._wait(None if timeout is None else time.monotonic() + timeout)
        failed, reason = self._failed, self._first_reason
        if self._is_timed_out and reason is not None:
            problem = self._find_problem()
            reason = f"{reason}; see the log of the broker" if problem is None else f"{reason}: {problem}"
        # Report each failure once: a later flush is only about records sent after this one, and those that still wait.
        self._failed, self._first_reason = 0, None
        self._is_timed_out, self._problem = False, None
        if failed or remaining:
            waiting = f"no response within {timeout} s"
            if self._broker_reason is not None:
                waiting = f"{waiting} ({self._broker_reason})"
            raise DeliveryError(failed + remaining, reason or waiting)

    def _wait(self, deadline: float | None) -> int:
        """Wait until no record is in flight or the time is over; return how many still are."""
        acknowledged, stalled_at = self._acknowledged, time.monotonic()
        while True:
            now = time.monotonic()
            left = _SLICE if deadline is None else deadline - now
            remaining = self._producer.flush(max(0.0, min(_SLICE, left)))
            if not remaining or left <= 0:
                return remaining
            if self._acknowledged > acknowledged:
                acknowledged, stalled_at = self._acknowledged, now
            elif now - stalled_at >= _STALL_SECONDS and left >= _SLICE and self._problem is None:
                stalled_at = now
                if self._find_problem() is not None:
                    self._warn(f"{remaining} not acknowledged yet: {self._problem}; still trying")

    def _find_problem(self) -> str | None:
        """Look up once why acknowledgements are missing; None if all looks good."""
        if self._problem is None and self._topic is not None:
            try:
                self._problem = write_problem(self._bootstrap, self._topic)
            except UnreachableError as error:
                self._problem = str(error)
            except ClientError:
                pass  # this request may fail for its own reasons
        return self._problem

    def close(self, timeout: float | None = None) -> None:
        """Flush, then drop the records that are late."""
        try:
            self.flush(timeout)
        finally:
            self._producer.purge()
            self._producer.poll(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An interrupted user wants to leave soon; after an ordinary error, the sent records still count.
        timeout = None if error is None or isinstance(error, Exception) else _INTERRUPTED_TIMEOUT
        try:
            self.close(timeout)
        except DeliveryError as undelivered:
            if error is None:
                raise
            error.add_note(str(undelivered))

    def _delivered(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self._acknowledged += 1
            return
        self._failed += 1
        if self._first_reason is None:
            self._is_timed_out = error.code() == KafkaError._MSG_TIMED_OUT
            self._first_reason = self._reason(error, message.topic() or "")

    def _broker_failed(self, error: KafkaError) -> None:
        # "All brokers down" follows the error with the reason, and would hide it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._broker_reason = plain(error)

    def _reason(self, error: KafkaError, topic: str) -> str:
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return f"topic '{topic}' does not exist; create it with: tailrace topic create {topic}"
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return (
                f"Message size too large for topic '{topic}'; allow more with: "
                f"tailrace config set topic {topic} max.message.bytes=BYTES"
            )
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            return f"topic '{topic}' has no such partition"
        if error.code() == KafkaError._MSG_TIMED_OUT and self._broker_reason is not None:
            return f"{plain(error)} ({self._broker_reason})"
        return plain(error)
