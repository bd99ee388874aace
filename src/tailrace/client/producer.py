"""A producer whose failures cannot be overlooked.

Keeps one invariant: every record handed to `send` is either acknowledged by the time `flush` or the `with`
block ends, or a `DeliveryError` says how many were not and why. Batching, retries and the order of
records are librdkafka's; this module must not know them.
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

#: librdkafka's blocking calls hold back Ctrl-C until they return, so none of ours lasts longer than this.
_SLICE = 0.2
_INTERRUPTED_TIMEOUT = 1.0
#: Without any acknowledgement for so long, somebody is told why.
_STALL_SECONDS = 3.0
#: The most that librdkafka can be told.
_MOST_MESSAGE_BYTES = 1_000_000_000


def encode(value: Text | None) -> bytes | None:
    """Text as UTF-8; bytes and None as they are."""
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
        """Connect to a broker: `UnreachableError` where none accepts a connection within `connect_timeout` seconds.

        With None nothing is tried yet, and records wait until they time out. `warn` is told while acknowledgements
        do not come; other keywords are settings of librdkafka.
        """
        if connect_timeout is not None:
            wait_until_reachable(bootstrap, connect_timeout)
        defaults: dict[str, Any] = {
            "partitioner": "murmur2_random",
            "acks": "all",
            # The topic's max.message.bytes decides, not a limit of the library's own.
            "message.max.bytes": _MOST_MESSAGE_BYTES,
            "error_cb": self._broker_failed,
        }
        names = {setting_name(name): value for name, value in overrides.items()}
        acks = names.get("acks", names.get("request.required.acks", "all"))
        # librdkafka refuses idempotence with weaker acknowledgements: who asks for those gives it up.
        if str(acks) in ("all", "-1"):
            defaults["enable.idempotence"] = True
        self._producer = confluent_kafka.Producer(client_settings(bootstrap, defaults, overrides))
        self._bootstrap = bootstrap
        self._acknowledged = 0
        self._failed = 0
        self._first_reason: str | None = None
        self._broker_reason: str | None = None
        self._warn = warn
        #: What was sent to last, and what is wrong with it as far as that was looked up.
        self._topic: str | None = None
        self._problem: str | None = None
        self._is_timed_out = False

    @property
    def acknowledged(self) -> int:
        """How many records have been acknowledged so far."""
        return self._acknowledged

    @property
    def unacknowledged(self) -> int:
        """How many records are still on their way."""
        return len(self._producer)

    def check_connection(self) -> None:
        """Raise `UnreachableError` at once where no broker answers, rather than when the first record times out."""
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
        """Queue one record; waits while the queue is full, `DeliveryError` where it is refused at once."""
        if timestamp_ms is not None and timestamp_ms < 1:
            raise ValueError(f"a timestamp is a positive number of milliseconds, not {timestamp_ms}")
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
        """Wait until everything sent is acknowledged; `DeliveryError` for what failed or is not in time."""
        remaining = self._wait(None if timeout is None else time.monotonic() + timeout)
        failed, reason = self._failed, self._first_reason
        if self._is_timed_out and reason is not None and self._find_problem() is not None:
            reason = f"{reason}: {self._problem}"
        # Reported once: a later flush speaks only of what was sent after this one, and of what still waits.
        self._failed, self._first_reason = 0, None
        self._is_timed_out, self._problem = False, None
        if failed or remaining:
            waiting = f"no answer within {timeout} s"
            if self._broker_reason is not None:
                waiting = f"{waiting} ({self._broker_reason})"
            raise DeliveryError(failed + remaining, reason or waiting)

    def _wait(self, deadline: float | None) -> int:
        """Wait until nothing is on its way or the time is up; how many records still are."""
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
        """Look up why acknowledgements do not come, once; None where all looks well."""
        if self._problem is None and self._topic is not None:
            try:
                self._problem = write_problem(self._bootstrap, self._topic)
            except UnreachableError as error:
                self._problem = str(error)
            except ClientError:
                pass  # what is asked here may fail for reasons of its own
        return self._problem

    def close(self, timeout: float | None = None) -> None:
        """Flush, then drop whatever did not make it in time."""
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
        # Who was interrupted wants to leave soon; after an ordinary error what was sent still counts.
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
        # "All brokers down" follows the error that says why, and would hide it.
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
