"""Reads topics without a consumer group: given partitions, a given start, and an end or none.

Invariant: a reader that does not follow yields exactly the messages between its start and the end at the time it was
opened, and then ends, even if the last offsets hold no record (markers, compacted logs). It commits nothing and must
not know groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException

from tailrace.client.connection import (
    DEFAULT_BOOTSTRAP,
    FIRST_ANSWER_TIMEOUT,
    REQUEST_TIMEOUT,
    Warn,
    check_reachable,
    check_topic_name,
    client_error,
    client_settings,
    error_of,
    log_warning,
    patiently,
    plain,
)
from tailrace.client.errors import OffsetOutOfRangeError, ReadTimeoutError, UnknownTopicError, UnreachableError
from tailrace.model import NO_TIMESTAMP

#: librdkafka's blocking calls delay Ctrl-C until they return, so none of them lasts longer than this.
_SLICE = 0.2
_BATCH = 500
_BOUNDED_TIMEOUT = 30.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time to start reading at, in milliseconds since the Unix epoch."""

    ms: int


Start: TypeAlias = Literal["earliest", "latest"] | int | datetime | Timestamp


@dataclass(frozen=True, slots=True)
class Message:
    """One record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class _Span:
    """What to read of one partition: from `start`, up to `end` if there is one."""

    start: int
    end: int | None


class Consumer:
    """An iterator over the messages of a topic; its start and its end are fixed at creation."""

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        start: Start = "earliest",
        partitions: Iterable[int] | None = None,
        follow: bool = False,
        timeout: float | None = None,
        warn: Warn = log_warning,
        **overrides: Any,
    ) -> None:
        self._warn = warn
        #: Whether librdkafka has reported a problem, what the problem is, and when it was last looked up.
        self._is_troubled = False
        self._problem: str | None = None
        self._looked_at = 0.0
        self._topic = topic
        self._bootstrap = bootstrap
        self._follow = follow
        self._timeout = _BOUNDED_TIMEOUT if timeout is None and not follow else timeout
        checked_start = _checked_start(start)
        check_topic_name(topic)
        check_reachable(bootstrap)
        defaults = {
            # librdkafka demands a group name; with assigned partitions and no commits, the consumer never joins it.
            "group.id": "tailrace-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "error_cb": self._broker_failed,
            # Applies only if retention deleted the start between looking it up and reading it.
            "auto.offset.reset": "earliest",
        }
        self._consumer = confluent_kafka.Consumer(client_settings(bootstrap, defaults, overrides))
        self._messages: Iterator[Message] = iter(())
        self._spans: dict[int, _Span] = {}
        self._closed = False
        try:
            self._spans = self._plan(checked_start, partitions)
        except BaseException:
            self.close()
            raise
        self._messages = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return next(self._messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; iterating afterwards ends at once."""
        if not self._closed:
            self._closed = True
            self._spans.clear()
            self._consumer.close()

    def _plan(
        self, start: Literal["earliest", "latest"] | int | Timestamp, partitions: Iterable[int] | None
    ) -> dict[int, _Span]:
        numbers = self._partition_numbers(partitions)
        log_starts = self._offsets_at(numbers, OFFSET_BEGINNING)
        log_ends = self._offsets_at(numbers, OFFSET_END)
        if start == "latest":
            starts = log_ends
        elif isinstance(start, int):
            if not self._follow and all(start > log_ends[number] for number in numbers):
                furthest = max(log_ends.values())
                raise OffsetOutOfRangeError(
                    f"topic '{self._topic}' has no offset {start}: its longest partition ends at offset {furthest}"
                )
            starts = {number: max(start, log_starts[number]) for number in numbers}
        elif isinstance(start, Timestamp):
            found = self._offsets_at(numbers, start.ms)
            starts = {n: found[n] if found[n] >= 0 else log_ends[n] for n in numbers}
        else:
            starts = log_starts
        spans = {n: _Span(starts[n], None if self._follow else log_ends[n]) for n in numbers}
        to_read = {n: span for n, span in spans.items() if span.end is None or span.start < span.end}
        # A start beyond the end is out of range for the broker: follow from the end and skip up to the start.
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(self._topic, n, min(span.start, log_ends[n]))
                for n, span in to_read.items()
            ]
        )
        return to_read

    def _partition_numbers(self, wanted: Iterable[int] | None) -> Sequence[int]:
        def look() -> Any:
            found = self._consumer.list_topics(self._topic, timeout=FIRST_ANSWER_TIMEOUT).topics[self._topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return found

        try:
            metadata = patiently(look, REQUEST_TIMEOUT)
        except KafkaException as error:
            raise self._client_error(error_of(error), "looking up the partitions") from error
        existing = sorted(metadata.partitions)
        if not existing:
            raise UnknownTopicError(f"topic '{self._topic}' has no partitions")
        if wanted is None:
            return existing
        chosen = sorted(dict.fromkeys(wanted))
        for number in chosen:
            if number not in metadata.partitions:
                raise UnknownTopicError(
                    f"topic '{self._topic}' has no partition {number}; it has {existing[0]} to {existing[-1]}"
                )
        return chosen

    def _offsets_at(self, partitions: Sequence[int], moment: int) -> dict[int, int]:
        """Return the first offset at or after a timestamp in each partition; -2 means its start, -1 its end."""
        query = [confluent_kafka.TopicPartition(self._topic, number, moment) for number in partitions]

        def look() -> dict[int, int]:
            answer = self._consumer.offsets_for_times(query, timeout=REQUEST_TIMEOUT)
            for partition in answer:
                if partition.error is not None:
                    raise KafkaException(partition.error)
            return {partition.partition: partition.offset for partition in answer}

        try:
            return patiently(look, REQUEST_TIMEOUT)
        except KafkaException as error:
            raise self._client_error(error_of(error), "looking up the offsets") from error

    def _run(self) -> Iterator[Message]:
        spans = self._spans
        heard = time.monotonic()
        while spans:
            batch = self._next_batch()
            if not batch and self._timeout is not None and time.monotonic() - heard >= self._timeout:
                if self._follow:
                    break
                why = "" if self._problem is None else f": {self._problem}"
                raise ReadTimeoutError(f"the broker at {self._bootstrap} sent nothing for {self._timeout:g} s{why}")
            if self._is_troubled and not batch:
                self._look_around()
            for raw in batch:
                if (message := self._accept(raw)) is not None:
                    yield message
                    # The time that a caller takes for a message does not count as the broker's silence.
                    heard = time.monotonic()
        self.close()

    def _broker_failed(self, error: KafkaError) -> None:
        self._is_troubled = True

    def _look_around(self) -> None:
        """Warn why no messages arrive, and when that is over."""
        if time.monotonic() < self._looked_at + _LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        problem = self._current_problem()
        if problem is not None and self._problem is None:
            self._warn(f"{problem}; waiting for it to come back")
        elif problem is None and self._problem is not None:
            self._warn(f"resumed reading '{self._topic}'")
        self._problem = problem
        self._is_troubled = problem is not None

    def _current_problem(self) -> str | None:
        try:
            check_reachable(self._bootstrap, _LOOK_SECONDS)
            found = self._consumer.list_topics(self._topic, timeout=_LOOK_SECONDS).topics[self._topic]
        except UnreachableError as error:
            return f"lost the broker: {error}"
        except KafkaException as error:
            return f"the broker at {self._bootstrap} does not answer: {plain(error_of(error))}"
        leaderless = [str(number) for number in self._spans if found.partitions[number].leader < 0]
        return f"partition {', '.join(leaderless)} of '{self._topic}' has no leader" if leaderless else None

    def _next_batch(self) -> Sequence[confluent_kafka.Message]:
        """Return what has arrived, after a short wait for the first message; `consume` waits for a full batch."""
        first = self._consumer.poll(_SLICE)
        return [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]

    def _accept(self, raw: confluent_kafka.Message) -> Message | None:
        if not self._spans:
            return None
        partition, offset = raw.partition(), raw.offset()
        error = raw.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                return None
            raise self._client_error(error, "reading")
        if partition is None or offset is None or (span := self._spans.get(partition)) is None:
            return None
        if error is not None:
            if span.end is not None:
                self._finish(partition)
            return None
        if span.end is not None and offset >= span.end - 1:
            self._finish(partition)
            if offset >= span.end:
                return None
        return self._message(raw, partition, offset) if offset >= span.start else None

    def _finish(self, partition: int) -> None:
        del self._spans[partition]
        self._consumer.incremental_unassign([confluent_kafka.TopicPartition(self._topic, partition)])

    def _message(self, raw: confluent_kafka.Message, partition: int, offset: int) -> Message:
        kind, timestamp_ms = raw.timestamp()
        return Message(
            topic=self._topic,
            partition=partition,
            offset=offset,
            timestamp_ms=NO_TIMESTAMP if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
            key=raw.key(),
            value=raw.value(),
            headers=_headers(raw),
        )

    def _client_error(self, error: KafkaError, doing: str) -> Exception:
        return client_error(error, doing=f"{doing} of '{self._topic}'", bootstrap=self._bootstrap, topic=self._topic)


def _headers(raw: confluent_kafka.Message) -> tuple[tuple[str, bytes | None], ...]:
    # Headers of a received message are always a list of pairs with bytes; the library's type also covers sent ones.
    pairs: Any = raw.headers()
    return tuple(pairs or ())


def _checked_start(start: Start) -> Literal["earliest", "latest"] | int | Timestamp:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"the start {start.isoformat()} has no time zone; give one")
        return Timestamp(int(start.timestamp() * 1000))
    if isinstance(start, Timestamp):
        if start.ms < 0:
            raise ValueError(f"a timestamp must not be negative: {start.ms}")
    elif isinstance(start, int):
        if start < 0:
            raise ValueError(f"an offset must not be negative: {start}")
    elif start not in ("earliest", "latest"):
        raise ValueError(f"a start must be 'earliest', 'latest', an offset or a time, not {start!r}")
    return start


def read(
    topic: str,
    *,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    start: Start = "earliest",
    partitions: Iterable[int] | None = None,
    follow: bool = False,
    timeout: float | None = None,
    warn: Warn = log_warning,
    **overrides: Any,
) -> Consumer:
    """Open a topic for iteration: up to its present end, or for ever with `follow`.

    `timeout` is the longest silence in seconds. A reader that follows ends after it (never, if it is None); another one
    raises `ReadTimeoutError` (after 30 s, if it is None). `warn` is called when brokers are lost and when they are
    back; by default it logs to `tailrace.client`.
    """
    return Consumer(
        topic,
        bootstrap=bootstrap,
        start=start,
        partitions=partitions,
        follow=follow,
        timeout=timeout,
        warn=warn,
        **overrides,
    )
