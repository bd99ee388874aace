"""An idempotent producer of whole record batches over blocking connections.

Invariant: the batches of a partition are in its log in the given order, each once, or the caller gets an error. Up to
five batches of a partition are in flight at a time. If one of them fails, those behind it fail as well; when nothing of
the partition is in flight any more, everything from the first unacknowledged batch on is sent again with the same
sequence numbers, by which the broker recognizes what it already has. This module must not know rows, columns or Spark.
"""

from __future__ import annotations

import itertools
import select
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from tailrace.errors import ErrorCode
from tailrace.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tailrace.pipeline.connections.brokers import source_errors
from tailrace.pipeline.connections.leaders import Leaders, ProducerIdentity
from tailrace.pipeline.connections.record_batches import Batch, halves, new_batch
from tailrace.pipeline.failures import SourceError, UnknownTopicError, UnreachableBrokerError
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.errors import RETRIABLE, ConnectionFailure, NoAnswerInTimeError, error_name
from tailrace.protocol_client.settings import Address, join_address
from tailrace.protocol_client.versions import Versions
from tailrace.records.batch import increment_sequence
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.produce import ProduceRequest, ProduceResponse

#: From 7 on there is zstd, from 8 on the broker's own error messages; 9 has another encoding.
_PRODUCE = Versions(7, 8)
#: The size of a request beyond its first batch, so that a single producer does not block a broker.
_MAX_REQUEST_BYTES = 8 << 20

#: The batch is already in the log.
_HAVE_IT = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
#: The same batch may be accepted a little later, perhaps by another broker.
_RETRIABLE = RETRIABLE | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class DeliveryError(SourceError):
    """The broker did not acknowledge rows; the message names the topic and the reason."""


@dataclass(slots=True, eq=False)
class _Lane:
    """The batches of one partition in order, those in flight first."""

    topic: str
    partition: int
    batches: deque[Batch] = field(default_factory=deque)
    next_sequence: int = 0
    #: The number of batches, from the first on, that were sent, and the number of those without a response.
    sent: int = 0
    unanswered: int = 0
    #: The leader that received them: nothing goes to another one while any of them may still arrive there.
    leader: Address | None = None
    #: Why the rest in flight will fail as well and must be sent again.
    broken_by: str | None = None
    #: Whether everything has been answered since, so that it can be sent again once its leader is known.
    is_stalled: bool = False

    @property
    def name(self) -> str:
        return f"partition {self.partition} of topic '{self.topic}'"

    @property
    def may_send(self) -> bool:
        """True if the next batch may be sent now; a repeated one is sent alone, as Kafka's own producer does.

        The broker remembers five batches. If others followed one that it has but did not acknowledge, it would forget
        that one.
        """
        if self.sent >= len(self.batches) or self.broken_by is not None:
            return False
        return not self.unanswered or not (
            self.batches[self.sent].is_repeated or self.batches[self.sent - 1].is_repeated
        )


@dataclass(frozen=True, slots=True)
class _Request:
    """A request without a response."""

    version: int
    batches: list[tuple[_Lane, Batch]]


class _Link:
    """The connection to one leader, and its requests."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.requests: deque[_Request] = deque()


class BatchProducer:
    """Takes record batches for partitions; they are in their logs when `flush` returns."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings
        self._identity = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self.leaders = Leaders(settings)
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._links: dict[Address, _Link] = {}
        self._waiting_bytes = 0
        self._backoff_ms = settings.retry_backoff_ms
        #: Smaller if a broker refused a batch of that topic because of its size.
        self._max_batch_bytes: dict[str, int] = {}

    def max_batch_bytes(self, topic: str) -> int:
        """Return the maximum size of a batch for a topic."""
        return self._max_batch_bytes.get(topic, self._settings.max_batch_bytes)

    def send(
        self,
        topic: str,
        partition: int,
        section: memoryview,
        count: int,
        timestamp_ms: int,
        max_timestamp_ms: int | None = None,
    ) -> None:
        """Take the records of a batch; waits while too much is in flight.

        Give the latest time of its records if they have their own times.
        """
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = _Lane(topic, partition)
        latest_ms = timestamp_ms if max_timestamp_ms is None else max_timestamp_ms
        self._add(lane, section, count, (timestamp_ms, latest_ms))
        self._receive_ready(0)
        self._send_ready()
        while self._waiting_bytes > self._settings.buffer_bytes:
            self._advance()

    def flush(self) -> None:
        """Wait until everything is acknowledged; DeliveryError if that takes too long."""
        while self._waiting_bytes:
            self._send_ready()
            self._advance()

    def close(self) -> None:
        """Close all connections; batches in flight may or may not arrive."""
        for link in self._links.values():
            link.connection.close()
        self._links.clear()
        self.leaders.close()

    def _add(self, lane: _Lane, section: memoryview, count: int, times_ms: tuple[int, int]) -> None:
        sequence = NO_SEQUENCE
        if self._settings.is_idempotent:
            if self._identity.producer_id == NO_PRODUCER_ID:
                self._identity = self.leaders.identify(self._settings.max_block_ms / 1000)
            sequence = lane.next_sequence
            lane.next_sequence = increment_sequence(sequence, count)
        batch = new_batch(section, count, times_ms, self._identity, sequence, self._settings)
        lane.batches.append(batch)
        self._waiting_bytes += batch.size

    # --- sending

    def _send_ready(self) -> None:
        """Send every batch that may be in flight now, with as few requests as possible."""
        by_leader: dict[Address, list[_Lane]] = {}
        for lane in self._lanes.values():
            if not lane.may_send:
                continue
            if not lane.unanswered:
                lane.leader = self.leaders.leader(lane.topic, lane.partition)
            if lane.leader is None:
                self._stall(lane, f"{lane.name} has no leader")
            else:
                by_leader.setdefault(lane.leader, []).append(lane)
        for leader, lanes in by_leader.items():
            while any(lane.may_send for lane in lanes):
                if not self._send_request(leader, lanes):
                    break

    def _send_request(self, leader: Address, lanes: list[_Lane]) -> bool:
        """Send the next batch of each of a leader's lanes; return False if the connection has no room for more."""
        link = self._links.get(leader)
        if link is not None and len(link.requests) >= self._settings.max_in_flight:
            return False
        chosen: list[tuple[_Lane, Batch]] = []
        size = 0
        for lane in lanes:
            if not lane.may_send:
                continue
            batch = lane.batches[lane.sent]
            if chosen and size + batch.size > _MAX_REQUEST_BYTES:
                break
            chosen.append((lane, batch))
            size += batch.size
        for lane, _ in chosen:
            lane.sent += 1
            lane.unanswered += 1
        try:
            if link is None:
                link = self._links[leader] = _Link(BrokerConnection(leader, self._settings.cluster.connection))
            with source_errors():
                version = link.connection.version_of(ProduceRequest, _PRODUCE)
            pieces = _encode(chosen, self._settings.acks, self._settings.request_timeout_ms)
            link.connection.send_pieces(ApiKey.PRODUCE, version, pieces)
        except ConnectionFailure as error:
            self._fail(chosen, _lost(leader, error))
            self._drop(leader, error)
            return False
        link.requests.append(_Request(version, chosen))
        return True

    # --- responses

    def _advance(self) -> None:
        """Wait for a response and use the freed capacity, or repair failed lanes."""
        if not self._receive_ready(self._settings.request_timeout_ms):
            self._mend()
        self._send_ready()

    def _receive_ready(self, timeout_ms: int) -> bool:
        """Process the responses that are there or arrive in time; return False if none is expected."""
        waiting = {link.connection.fileno(): leader for leader, link in self._links.items() if link.requests}
        if not waiting:
            return False
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(timeout_ms)
        for descriptor, _ in ready:
            self._receive(waiting[descriptor])
        if not ready and timeout_ms:
            for leader in waiting.values():
                self._drop(leader, NoAnswerInTimeError(f"no response within {timeout_ms / 1000:g} s"))
        return True

    def _receive(self, leader: Address) -> None:
        link = self._links[leader]
        request = link.requests[0]
        try:
            answer = link.connection.receive_as(ProduceResponse, request.version)
        except ConnectionFailure as error:
            self._drop(leader, error)
            return
        link.requests.popleft()
        results = {
            (topic.name, partition.index): (partition.error_code, partition.error_message)
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        for lane, batch in request.batches:
            code, message = results.get((lane.topic, lane.partition), (ErrorCode.UNKNOWN_SERVER_ERROR, None))
            self._answered(lane, batch, code, message)

    def _answered(self, lane: _Lane, batch: Batch, code: int, message: str | None) -> None:
        lane.unanswered -= 1
        if code in _HAVE_IT:
            batch.is_acknowledged = True
            self._backoff_ms = self._settings.retry_backoff_ms
            while lane.batches and lane.batches[0].is_acknowledged:
                self._waiting_bytes -= lane.batches.popleft().size
                lane.sent -= 1
        elif code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lane.broken_by is not None:
            pass  # The batch before it has failed; both are sent again.
        elif code in _RETRIABLE:
            lane.broken_by = lane.broken_by or f"{lane.name}: {_words(code, message)}"
        elif code in _TOO_LARGE and batch.count > 1:
            self._split(lane, batch)
            lane.broken_by = lane.broken_by or ""
        elif code in _TOO_LARGE:
            raise DeliveryError(
                f"a row of {batch.size:,} bytes is larger than topic '{lane.topic}' accepts; raise its "
                "max.message.bytes, or write smaller rows"
            )
        else:
            raise DeliveryError(f"the broker refused rows for {lane.name}: {_words(code, message)}")
        self._settle(lane)

    def _split(self, lane: _Lane, batch: Batch) -> None:
        """Replace a batch by two halves with the same sequence numbers."""
        place = lane.batches.index(batch)
        parts = halves(batch, self._identity, self._settings)
        del lane.batches[place]
        for part in reversed(parts):
            lane.batches.insert(place, part)
        lane.sent += 1
        self._waiting_bytes += sum(part.size for part in parts) - batch.size
        limit = max(part.size for part in parts)
        self._max_batch_bytes[lane.topic] = min(self.max_batch_bytes(lane.topic), limit)

    def _settle(self, lane: _Lane) -> None:
        """When no batch of a broken lane is in flight any more, start again with its first batch."""
        if lane.broken_by is None or lane.unanswered:
            return
        for batch in itertools.islice(lane.batches, lane.sent):
            batch.is_repeated = True
        lane.sent = 0
        # Batches behind one that was appended but refused may be in the log already: these are not sent again.
        self._waiting_bytes -= sum(batch.size for batch in lane.batches if batch.is_acknowledged)
        lane.batches = deque(batch for batch in lane.batches if not batch.is_acknowledged)
        if lane.broken_by:
            self._stall(lane, lane.broken_by)
        else:
            lane.broken_by = None

    def _stall(self, lane: _Lane, reason: str) -> None:
        lane.broken_by = reason
        lane.is_stalled = True

    # --- failures

    def _drop(self, leader: Address, error: ConnectionFailure) -> None:
        """Close a connection: it is unknown whether its requests were executed."""
        link = self._links.pop(leader, None)
        if link is None:
            return
        link.connection.close()
        reason = _lost(leader, error)
        for request in link.requests:
            self._fail(request.batches, reason)

    def _fail(self, batches: list[tuple[_Lane, Batch]], reason: str) -> None:
        for lane, _ in batches:
            lane.unanswered -= 1
            lane.broken_by = lane.broken_by or reason
            self._settle(lane)

    def _mend(self) -> None:
        """Wait a little, look up the leaders of failed lanes, and let them send again."""
        stalled = [lane for lane in self._lanes.values() if lane.is_stalled]
        if not stalled:
            return
        now = time.monotonic()
        for lane in stalled:
            if now - lane.batches[0].queued_at > self._settings.delivery_timeout_ms / 1000:
                seconds = self._settings.delivery_timeout_ms / 1000
                rows = sum(batch.count for batch in lane.batches)
                raise DeliveryError(f"{rows} rows were not acknowledged within {seconds:g} s: {lane.broken_by}")
        time.sleep(self._backoff_ms / 1000)
        self._backoff_ms = min(self._backoff_ms * 2, self._settings.retry_backoff_max_ms)
        try:
            self.leaders.refresh(dict.fromkeys(lane.topic for lane in stalled), 0)
        except (UnreachableBrokerError, UnknownTopicError) as error:
            for lane in stalled:
                lane.broken_by = str(error)
            return
        for lane in stalled:
            lane.is_stalled = False
            lane.broken_by = None


def _encode(chosen: list[tuple[_Lane, Batch]], acks: int, timeout_ms: int) -> list[bytes | memoryview]:
    """Encode a Produce request in pieces, so that no batch is copied."""
    by_topic: dict[str, list[tuple[int, Batch]]] = {}
    for lane, batch in chosen:
        by_topic.setdefault(lane.topic, []).append((lane.partition, batch))
    head = struct.pack(">hhii", -1, acks, timeout_ms, len(by_topic))
    pieces: list[bytes | memoryview] = []
    for topic, batches in by_topic.items():
        name = topic.encode()
        head += struct.pack(">h", len(name)) + name + struct.pack(">i", len(batches))
        for partition, batch in batches:
            head += struct.pack(">ii", partition, batch.size)
            pieces += [head + batch.header, batch.section]
            head = b""
    return pieces


def _words(code: int, message: str | None) -> str:
    name = error_name(code)
    return f"{message} ({name})" if message else name


def _lost(address: Address, error: ConnectionFailure) -> str:
    return f"lost the broker at {join_address(address)} ({error})"
