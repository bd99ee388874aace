"""confluent-kafka (librdkafka) behind the common shape of the client tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tailrace.model import NO_OFFSET
from tests.support.records import Received, Record, RefusedError


def refusal(error: KafkaError) -> RefusedError:
    """librdkafka numbers its own errors below zero and passes the broker's on unchanged."""
    return RefusedError(error.code() if error.code() > 0 else None, error.str())


def place_of(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset of a message; with acks=0 the offset is unknown."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    return topic, partition, NO_OFFSET if offset is None else offset


def value_of(message: Message) -> bytes:
    """The value of a message that is known to have one."""
    value = message.value()
    assert value is not None
    return value


def headers_of(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a received message; the library's type also covers sent ones."""
    pairs: Any = message.headers()
    return tuple(pairs or ())


class ConfluentClient:
    """Produces and consumes by assignment with librdkafka."""

    name = "confluent"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def producer(self, **config: object) -> Producer:
        """A producer that prints no log lines."""
        names = {name.replace("_", "."): value for name, value in config.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, **names})

    def consumer(self, **config: object) -> Consumer:
        """A consumer without group work: librdkafka insists on a group id, but never uses it here."""
        names = {name.replace("_", "."): value for name, value in config.items()}
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **names,
            }
        )

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        patience_ms: int = 60_000,
        partitioner: str = "murmur2_random",
    ) -> list[tuple[int, int]]:
        """Send all, wait for all, and give the partition and offset of each."""
        producer = self.producer(
            compression_type=compression,
            acks=acks,
            partitioner=partitioner,
            linger_ms=20,
            message_max_bytes=10_000_000,
            message_timeout_ms=patience_ms,
            topic_metadata_propagation_max_ms=min(patience_ms, 30_000),
        )
        delivered: dict[int, tuple[int, int]] = {}
        errors: list[KafkaError] = []

        def report(number: int) -> Callable[[KafkaError | None, Message], None]:
            def delivery(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    delivered[number] = place_of(message)[1:]

            return delivery

        for number, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=-1 if record.partition is None else record.partition,
                headers=list(record.headers),
                on_delivery=report(number),
                timestamp=record.timestamp_ms or 0,  # 0 is now
            )
        remaining = producer.flush(120)
        if errors:
            raise refusal(errors[0])
        assert remaining == 0
        return [delivered[number] for number in range(len(records))]

    def consume(
        self,
        topic: str,
        partition: int,
        count: int,
        *,
        start: int = 0,
        max_wait_ms: int = 500,
        after_first: Callable[[], None] | None = None,
        timeout_seconds: int = 120,
    ) -> list[Received]:
        """Read `count` records from an offset on, or fewer when the time is over."""
        consumer = self.consumer(fetch_wait_max_ms=max_wait_ms)
        received: list[Received] = []
        deadline = time.monotonic() + timeout_seconds
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            while len(received) < count and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise refusal(error)
                received.append(_received(message))
                if len(received) == 1 and after_first is not None:
                    after_first()
        finally:
            consumer.close()
        return received

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first and the end offset of each partition."""
        consumer = self.consumer()
        try:
            return {number: _watermarks(consumer, TopicPartition(topic, number)) for number in partitions}
        except KafkaException as error:
            raise refusal(error.args[0]) from error
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, None where all records are older."""
        consumer = self.consumer()
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=60)
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The first and the end offset of a partition; a new leader is given time to learn the high watermark.

    Other clients ask again by themselves; librdkafka passes OFFSET_NOT_AVAILABLE on.
    """
    deadline = time.monotonic() + 60
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _received(message: Message) -> Received:
    kind, timestamp_ms = message.timestamp()
    _, partition, offset = place_of(message)
    return Received(
        partition,
        offset,
        timestamp_ms,
        kind == TIMESTAMP_LOG_APPEND_TIME,
        message.key(),
        message.value(),
        headers_of(message),
    )
