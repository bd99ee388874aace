"""kafka-python behind the common shape of the client tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from tests.support.records import Received, Record, RefusedError


def refusal(error: KafkaError) -> RefusedError:
    """kafka-python gives the broker's number as errno and its own errors a negative one or none."""
    number = getattr(error, "errno", None)
    return RefusedError(number if number is not None and number > 0 else None, repr(error))


class KafkaPythonClient:
    """Produces and consumes by assignment with kafka-python."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def producer(self, **config: Any) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self.bootstrap, **config)

    def consumer(self, **config: Any) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            **config,
        )

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        patience_ms: int = 60_000,
    ) -> list[tuple[int, int]]:
        """Send all, wait for all, and give the partition and offset of each."""
        producer = self.producer(
            compression_type=None if compression == "none" else compression,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=acks == "all",
            linger_ms=20,
            max_request_size=10_000_000,
            max_block_ms=patience_ms,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(timeout=120)
            answers = [future.get(timeout=60) for future in sent]
            return [(answer.partition, answer.offset) for answer in answers]
        except KafkaError as error:
            raise refusal(error) from error
        finally:
            producer.close(timeout=10)

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
        consumer = self.consumer(fetch_max_wait_ms=max_wait_ms)
        received: list[Received] = []
        deadline = time.monotonic() + timeout_seconds
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, start)
            while len(received) < count and time.monotonic() < deadline:
                for message in consumer.poll(timeout_ms=200).get(assigned, []):
                    received.append(_received(message))
                    if len(received) == 1 and after_first is not None:
                        after_first()
        except KafkaError as error:
            raise refusal(error) from error
        finally:
            consumer.close()
        return received

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first and the end offset of each partition."""
        consumer = self.consumer()
        try:
            asked = [TopicPartition(topic, number) for number in partitions]
            first, last = consumer.beginning_offsets(asked), consumer.end_offsets(asked)
        finally:
            consumer.close()
        return {one.partition: (first[one], last[one]) for one in asked}

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, None where all records are older."""
        consumer = self.consumer()
        try:
            asked = TopicPartition(topic, partition)
            found = consumer.offsets_for_times({asked: timestamp_ms})[asked]
        finally:
            consumer.close()
        return None if found is None else int(found.offset)


def _received(message: Any) -> Received:
    return Received(
        message.partition,
        message.offset,
        message.timestamp,
        message.timestamp_type == 1,
        message.key,
        message.value,
        tuple((name, value) for name, value in message.headers),
    )
