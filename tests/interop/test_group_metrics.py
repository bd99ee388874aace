"""Lag and group metrics of a real broker are what a client works out for itself, for both rebalance protocols."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.interop.conftest import MakeBroker
from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.brokers.scrape import Scrape
from tests.support.topics import create_topic, eventually

LAG = "kafka_consumergroup_lag"
OFFSET = "kafka_consumergroup_current_offset"
MEMBERS = "kafka_consumergroup_members"
COORDINATOR = "kafka_server_group_coordinator_metrics"
#: The time limit on a busy machine.
PATIENCE_SECONDS = 120


def lags_by_client(bootstrap: str, group: str) -> dict[int, tuple[int, int]]:
    """Committed offset and lag by partition, computed with librdkafka's admin client."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_SECONDS)
    places = [place for place in asked.topic_partitions if place.offset >= 0]
    query = {TopicPartition(place.topic, place.partition): OffsetSpec.latest() for place in places}
    ends = {
        place.partition: future.result(PATIENCE_SECONDS).offset for place, future in admin.list_offsets(query).items()
    }
    return {place.partition: (place.offset, ends[place.partition] - place.offset) for place in places}


def lags_by_broker(scrape: Scrape, group: str, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
    labels = [{"consumergroup": group, "topic": topic, "partition": str(number)} for number in range(partitions)]
    return {
        number: (int(scrape.value(OFFSET, **each)), int(scrape.value(LAG, **each)))
        for number, each in enumerate(labels)
    }


def produce(bootstrap: str, topic: str, *counts: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_and_members_are_what_a_client_finds(
    make_broker: MakeBroker, topic_name: Callable[[], str], protocol: str
) -> None:
    port = free_port()
    broker: BrokerProcess = make_broker(metrics_port=str(port), group_initial_rebalance_delay_ms="0")
    topic = create_topic(broker.bootstrap, topic_name(), partitions=3)
    produce(broker.bootstrap, topic, 10, 20, 30)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "log_level": 0,
            "group.id": "billing",
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_SECONDS
        read = 0
        while read < 60:
            assert time.monotonic() < deadline
            message = consumer.poll(0.2)
            read += message is not None and message.error() is None
        consumer.commit(asynchronous=False)
        produce(broker.bootstrap, topic, 1, 0, 5)
        scrape = Scrape(port)
        expected = {0: (10, 1), 1: (20, 0), 2: (30, 5)}
        assert lags_by_broker(scrape, "billing", topic, 3) == lags_by_client(broker.bootstrap, "billing") == expected
        assert scrape.value(MEMBERS, consumergroup="billing") == 1
        assert scrape.value(f"{COORDINATOR}_group_count", protocol=protocol) == 1
        assert scrape.value(f"{COORDINATOR}_offset_commit_count_total") == 3
        if protocol == "classic":
            assert scrape.value("kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 1
            assert scrape.value(f"{COORDINATOR}_group_completed_rebalance_count_total") == 1
        else:
            assert scrape.value(f"{COORDINATOR}_consumer_group_count", state="stable") == 1
            assert scrape.value(f"{COORDINATOR}_consumer_group_rebalance_count_total") >= 1
    finally:
        consumer.close()
    assert eventually(lambda: Scrape(port).value(MEMBERS, consumergroup="billing") == 0)
    broker.restart()
    # A broker may be ready before it has read what its groups committed.
    assert eventually(lambda: lags_by_broker(Scrape(port), "billing", topic, 3) == expected)
    assert lags_by_client(broker.bootstrap, "billing") == expected
    # Counters belong to the process: Prometheus handles their restart.
    assert Scrape(port).value(f"{COORDINATOR}_offset_commit_count_total") == 0
