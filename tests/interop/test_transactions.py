"""Transactions of clients that we did not write: librdkafka speaks the older protocol, Java the newer one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.interop.conftest import Broker
from tests.support.topics import create_topic

SECONDS = 30.0


def producer(broker: Broker, transactional_id: str, **settings: Any) -> Producer:
    made = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "linger.ms": 5, **settings}
    )
    made.init_transactions(SECONDS)
    return made


@contextmanager
def consumer(broker: Broker, group: str, *topics: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.subscribe(list(topics))
    try:
        yield reader
    finally:
        reader.close()


def until_the_end(reader: Consumer, partitions: int = 1) -> list[confluent_kafka.Message]:
    """Everything that a consumer may read now."""
    found: list[confluent_kafka.Message] = []
    ended: dict[int | None, None] = {}
    while len(ended) < partitions:
        message = reader.poll(SECONDS)
        assert message is not None, "the consumer waits for something"
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended[message.partition()] = None
    return found


def values(broker: Broker, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[bytes | None]:
    with consumer(broker, f"reader-of-{topic}-{isolation}", topic, isolation=isolation) as reader:
        return sorted(message.value() or b"" for message in until_the_end(reader, partitions))


def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=3)
    writer = producer(broker, topic)
    for number in range(6):
        writer.begin_transaction()
        for partition in range(3):
            writer.produce(topic, b"%d" % number, partition=partition)
        if number % 2:
            writer.abort_transaction(SECONDS)
        else:
            writer.commit_transaction(SECONDS)
    assert values(broker, topic, 3) == [b"0"] * 3 + [b"2"] * 3 + [b"4"] * 3


def test_an_empty_transaction_is_committed_and_aborted(broker: Broker, topic_name: Callable[[], str]) -> None:
    writer = producer(broker, topic_name())
    for _ in range(2):
        writer.begin_transaction()
        writer.commit_transaction(SECONDS)
        writer.begin_transaction()
        writer.abort_transaction(SECONDS)


def test_a_second_producer_fences_the_first_and_aborts_its_transaction(
    broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    first = producer(broker, topic)
    first.begin_transaction()
    first.produce(topic, b"first")
    first.flush(SECONDS)
    second = producer(broker, topic)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(SECONDS)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"second")
    second.commit_transaction(SECONDS)
    assert values(broker, topic) == [b"second"]
    assert values(broker, topic, isolation="read_uncommitted") == [b"first", b"second"]


def test_a_transaction_with_large_batches_and_many_of_them_stays_in_order(
    broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    writer = producer(broker, topic, **{"batch.num.messages": 10})
    writer.begin_transaction()
    for number in range(2_000):
        writer.produce(topic, b"%06d" % number, partition=0)
        writer.poll(0)
    writer.commit_transaction(SECONDS)
    with consumer(broker, f"reader-of-{topic}", topic) as reader:
        assert [message.value() for message in until_the_end(reader)] == [b"%06d" % number for number in range(2_000)]


def test_records_are_moved_with_the_offsets_of_their_group(broker: Broker, topic_name: Callable[[], str]) -> None:
    source = create_topic(broker.bootstrap, topic_name())
    target = create_topic(broker.bootstrap, topic_name())
    feeding = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        feeding.produce(source, b"%02d" % number)
    feeding.flush(SECONDS)
    writer = producer(broker, f"move-{source}")
    group = f"group-of-{source}"

    def move(count: int, *, is_commit: bool) -> None:
        """Move the next records, in one transaction."""
        with consumer(broker, group, source) as reader:
            writer.begin_transaction()
            moved = []
            while len(moved) < count:
                message = reader.poll(SECONDS)
                assert message is not None
                if message.error() is None:
                    moved.append(message)
                    writer.produce(target, message.value())
            position = TopicPartition(source, 0, (moved[-1].offset() or 0) + 1)
            writer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), SECONDS)
            if is_commit:
                writer.commit_transaction(SECONDS)
            else:
                writer.abort_transaction(SECONDS)

    move(5, is_commit=True)
    move(7, is_commit=False)
    move(15, is_commit=True)
    assert values(broker, target) == [b"%02d" % number for number in range(20)]
