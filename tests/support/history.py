"""What was sent, acknowledged and read during faults, and whether it is consistent.

Senders and followers run in threads of their own through every failure; the history they leave is checked from
outside: nothing acknowledged is lost, each sender's order is kept, idempotence means once, no offset is missing and
none ever has two values. It must not know why the broker went away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.clients.confluent_client import ConfluentClient, place_of, value_of

#: Records of one sender that are not yet acknowledged; what a kill may catch in flight.
_MAX_OUTSTANDING = 600
#: The errors of clients while the broker is down; any other error is a finding.
_AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
#: Longer than a client tries to send a record, so that its error appears, and not just a timeout.
_DEADLINE_SECONDS = 180.0


@dataclass(frozen=True)
class Load:
    """One sender's topic and settings."""

    name: str
    topic: str
    config: Mapping[str, object]
    is_idempotent: bool
    partitions: int = 3
    value_bytes: int = 100
    #: Without idempotence a client may send a batch while one before it, which was refused, waits to be sent again.
    keeps_order: bool = True
    #: The pause between records to all partitions, to leave the machine time for other things.
    pause_seconds: float = 0.0


@dataclass
class Acknowledged:
    """The acknowledgements of a sender by partition: each record's number and offset, in order of delivery."""

    sent: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, dict[int, int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Sender(threading.Thread):
    """Sends numbered records to the partitions of a topic in turn until told to stop."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        super().__init__(name=load.name, daemon=True)
        self.load = load
        # All of it exists before the thread runs: others ask at once how much was sent.
        partitions = range(load.partitions)
        self.result = Acknowledged(dict.fromkeys(partitions, 0), {partition: {} for partition in partitions})
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._outstanding = 0
        self._ending = threading.Event()
        self._producer: Producer = ConfluentClient(bootstrap).producer(
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            retry_backoff_ms=20,
            message_timeout_ms=120_000,
            linger_ms=2,
            batch_num_messages=50,
            **load.config,
        )

    def run(self) -> None:
        try:
            self._send_until_end()
        except BaseException as error:  # noqa: BLE001  reported to the thread that waits for this one
            self.error = error

    def _send_until_end(self) -> None:
        partition = 0
        while not self._ending.is_set():
            if self._outstanding >= _MAX_OUTSTANDING:
                self._producer.poll(0.05)
                continue
            number = self.result.sent[partition]
            value = f"{self.load.name}:{number}:".encode().ljust(self.load.value_bytes, b".")
            self._producer.produce(self.load.topic, value, partition=partition, on_delivery=self._delivered)
            self._outstanding += 1
            self.result.sent[partition] = number + 1
            partition = (partition + 1) % self.load.partitions
            self._producer.poll(0)
            if partition == 0 and self.load.pause_seconds:
                time.sleep(self.load.pause_seconds)
        remaining = self._producer.flush(_DEADLINE_SECONDS)
        assert remaining == 0, f"{self.name}: {remaining} records found no end within {_DEADLINE_SECONDS} s"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._outstanding -= 1
        number = record_of(value_of(message))[1]
        if error is not None:
            self.result.failed.append(f"{self.name} record {number} of partition {message.partition()}: {error}")
        else:
            _, partition, offset = place_of(message)
            self.result.offsets[partition][number] = offset
            self.acknowledged += 1

    def send_no_more(self) -> None:
        """Only records in flight are still retried."""
        self._ending.set()

    def finish(self) -> Acknowledged:
        """Stop, wait for records in flight, and return all acknowledgements."""
        self.send_no_more()
        self.join(2 * _DEADLINE_SECONDS)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error
        assert not self.result.failed, self.result.failed[:5]
        return self.result


class Follower(threading.Thread):
    """Reads topics from the beginning through every failure and remembers the value at each offset."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        super().__init__(name="follower", daemon=True)
        self.seen: dict[tuple[str, int], list[bytes]] = {
            (topic, partition): [] for topic, count in topics.items() for partition in range(count)
        }
        self.error: BaseException | None = None
        self._ending = threading.Event()
        self._consumer = _consumer(bootstrap)

    def run(self) -> None:
        try:
            self._consumer.assign([TopicPartition(topic, number, 0) for topic, number in self.seen])
            while not self._ending.is_set():
                for message in self._consumer.consume(500, 0.1):
                    if not _is_away(message):
                        _remember(self.seen, message)
        except BaseException as error:  # noqa: BLE001  reported to the thread that waits for this one
            self.error = error
        finally:
            self._consumer.close()

    @property
    def count(self) -> int:
        return sum(len(values) for values in self.seen.values())

    def read_no_more(self) -> None:
        self._ending.set()

    def finish(self) -> dict[tuple[str, int], list[bytes]]:
        """Stop reading, and return what was read."""
        self.read_no_more()
        self.join(_DEADLINE_SECONDS)
        assert not self.is_alive(), "the follower does not end"
        if self.error is not None:
            raise self.error
        return self.seen


def read_everything(bootstrap: str, topics: Mapping[str, int]) -> dict[tuple[str, int], list[bytes]]:
    """Read all topics from their first to their last offset with a new consumer."""
    client = ConfluentClient(bootstrap)
    seen: dict[tuple[str, int], list[bytes]] = {}
    ends: dict[tuple[str, int], int] = {}
    for topic, count in topics.items():
        for partition, (first, end) in client.offsets(topic, range(count)).items():
            assert first == 0, f"{topic}-{partition} starts at {first}"
            seen[topic, partition], ends[topic, partition] = [], end
    consumer = _consumer(bootstrap)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    try:
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in seen])
        while any(len(seen[key]) < end for key, end in ends.items()):
            assert time.monotonic() < deadline, f"read { ({k: len(v) for k, v in seen.items()}) } of {ends}"
            for message in consumer.consume(1000, 0.1):
                if not _is_away(message):
                    _remember(seen, message)
    finally:
        consumer.close()
    return seen


def _consumer(bootstrap: str) -> Consumer:
    return ConfluentClient(bootstrap).consumer(
        reconnect_backoff_ms=20, reconnect_backoff_max_ms=100, fetch_wait_max_ms=100, retry_backoff_ms=20
    )


def _is_away(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    assert error.code() in _AWAY, f"the consumer was told {error}"
    return True


def _remember(seen: dict[tuple[str, int], list[bytes]], message: Message) -> None:
    """Check that offsets are consecutive."""
    topic, partition, offset = place_of(message)
    values = seen[topic, partition]
    assert offset == len(values), f"{topic}-{partition}: offset {offset} after {len(values) - 1}"
    values.append(value_of(message))


def record_of(value: bytes) -> tuple[str, int]:
    """The sender of a record and its number."""
    name, number, _ = value.split(b":", 2)
    return name.decode(), int(number)


def _numbers(values: list[bytes], sender: str) -> Iterator[int]:
    for value in values:
        name, number = record_of(value)
        if name == sender:
            yield number


def check_sender(load: Load, promised: Acknowledged, logs: Mapping[tuple[str, int], list[bytes]]) -> None:
    """Check that every acknowledged record is at its offset, in the order of sending if that is promised."""
    for partition, offsets in promised.offsets.items():
        values = logs[load.topic, partition]
        where = f"{load.topic}-{partition}"
        for number, offset in offsets.items():
            assert 0 <= offset < len(values), f"{where}: acknowledged offset {offset} is lost, the end is {len(values)}"
            assert record_of(values[offset]) == (load.name, number), (
                f"{where}: offset {offset} was acknowledged for {load.name} {number} and holds {values[offset][:40]!r}"
            )
        found = list(_numbers(values, load.name))
        assert sorted(offsets) == list(range(promised.sent[partition])), f"{where}: some records have no answer"
        if load.is_idempotent:
            assert found == list(range(promised.sent[partition])), f"{where}: {first_oddity(found)}"
        elif load.keeps_order:
            # A batch may be there twice if its acknowledgement was lost; first occurrences are in order.
            firsts = list(dict.fromkeys(found))
            assert firsts == list(range(promised.sent[partition])), f"{where}: {first_oddity(firsts)}"


def first_oddity(numbers: list[int]) -> str:
    """Where numbers stop being 0, 1, 2 and so on."""
    for index, number in enumerate(numbers):
        if number != index:
            return f"record {number} stands where {index} belongs (after {numbers[max(0, index - 3) : index]})"
    return f"it ends after {len(numbers)} records"


def check_unchanged(
    earlier: Mapping[tuple[str, int], list[bytes]], later: Mapping[tuple[str, int], list[bytes]]
) -> None:
    """Check that an offset always has the same value."""
    for key, values in earlier.items():
        assert later[key][: len(values)] == values, f"{key}: an offset has two values, or was read and is gone"
