"""aiokafka behind the common shape of the client tests; each call runs its own event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.support.records import Received, Record, RefusedError


def refusal(error: KafkaError) -> RefusedError:
    """aiokafka gives the broker's number as errno and its own errors a negative one or none."""
    number = getattr(error, "errno", None)
    return RefusedError(number if number is not None and number > 0 else None, repr(error))


class AiokafkaClient:
    """Produces and consumes by assignment with aiokafka."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def producer(self, **config: Any) -> AIOKafkaProducer:
        return AIOKafkaProducer(bootstrap_servers=self.bootstrap, **config)

    def consumer(self, **config: Any) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
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
        return asyncio.run(self._produce(topic, records, compression, acks, patience_ms))

    async def _produce(
        self, topic: str, records: Sequence[Record], compression: str, acks: str, patience_ms: int
    ) -> list[tuple[int, int]]:
        producer = self.producer(
            compression_type=None if compression == "none" else compression,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=acks == "all",
            linger_ms=20,
            max_request_size=10_000_000,
            request_timeout_ms=patience_ms,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            await producer.flush()
            answers = [await future for future in sent]
        except KafkaError as error:
            raise refusal(error) from error
        finally:
            await producer.stop()
        # Without acknowledgements there is no answer that could name an offset.
        return [(answer.partition, answer.offset) if answer else (-1, -1) for answer in answers]

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
        return asyncio.run(self._consume(topic, partition, count, start, max_wait_ms, after_first, timeout_seconds))

    async def _consume(
        self,
        topic: str,
        partition: int,
        count: int,
        start: int,
        max_wait_ms: int,
        after_first: Callable[[], None] | None,
        timeout_seconds: int,
    ) -> list[Received]:
        consumer = self.consumer(fetch_max_wait_ms=max_wait_ms)
        received: list[Received] = []
        deadline = time.monotonic() + timeout_seconds
        await consumer.start()
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, start)
            while len(received) < count and time.monotonic() < deadline:
                for message in (await consumer.getmany(assigned, timeout_ms=200)).get(assigned, []):
                    received.append(_received(message))
                    if len(received) == 1 and after_first is not None:
                        await asyncio.to_thread(after_first)
        except KafkaError as error:
            raise refusal(error) from error
        finally:
            await consumer.stop()
        return received

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first and the end offset of each partition."""

        async def ask() -> dict[int, tuple[int, int]]:
            consumer = self.consumer()
            await consumer.start()
            try:
                asked = [TopicPartition(topic, number) for number in partitions]
                first, last = await consumer.beginning_offsets(asked), await consumer.end_offsets(asked)
            finally:
                await consumer.stop()
            return {one.partition: (first[one], last[one]) for one in asked}

        return asyncio.run(ask())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, None where all records are older."""

        async def ask() -> int | None:
            consumer = self.consumer()
            await consumer.start()
            try:
                asked = TopicPartition(topic, partition)
                found = (await consumer.offsets_for_times({asked: timestamp_ms}))[asked]
            finally:
                await consumer.stop()
            return None if found is None else int(found.offset)

        return asyncio.run(ask())


def _received(message: Any) -> Received:
    return Received(
        message.partition,
        message.offset,
        message.timestamp,
        message.timestamp_type == 1,
        message.key,
        message.value,
        tuple(message.headers),
    )
