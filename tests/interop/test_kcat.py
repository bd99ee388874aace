"""kcat against a real broker: the common specification, and what it does from a shell."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.interop.conftest import Broker
from tests.interop.specification import ClientSpecification
from tests.support.confluent_client import ConfluentClient
from tests.support.kcat_client import KcatClient
from tests.support.records import Record, RefusedError
from tests.support.topics import create_topic


@pytest.fixture
def kcat(broker: Broker) -> KcatClient:
    return KcatClient(broker.bootstrap)


class TestKcat(ClientSpecification):
    sets_timestamps = False

    @pytest.fixture
    def connect(self) -> Callable[[Broker], KcatClient]:
        return lambda broker: KcatClient(broker.bootstrap)


def test_the_listing_shows_brokers_topics_and_leaders(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    name = create_topic(broker.bootstrap, topic_name(), partitions=3)
    listing = kcat.metadata()
    (node,) = listing["brokers"]
    assert node["name"] == broker.bootstrap
    assert listing["controllerid"] == node["id"]
    (topic,) = [one for one in listing["topics"] if one["topic"] == name]
    alone = [{"id": node["id"]}]
    assert topic["partitions"] == [
        {"partition": number, "leader": node["id"], "replicas": alone, "isrs": alone} for number in range(3)
    ]


def test_consuming_ends_at_the_end_of_every_partition(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=3)
    ConfluentClient(broker.bootstrap).produce(
        topic, [Record(b"%d" % number, partition=number % 3) for number in range(300)]
    )
    output = kcat.run("-C", "-e", "-q", "-o", "beginning", "-t", topic)
    assert sorted(map(int, output.split())) == list(range(300))


def test_the_last_records_are_read_by_a_negative_offset(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    kcat.produce(topic, [Record(b"%d" % number) for number in range(50)])
    assert kcat.run("-C", "-e", "-q", "-o", "-5", "-t", topic).split() == [b"45", b"46", b"47", b"48", b"49"]


def test_records_between_two_times_are_read(kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    start_ms = int(time.time() * 1000) - 1_000_000
    ConfluentClient(broker.bootstrap).produce(
        topic, [Record(b"%d" % number, timestamp_ms=start_ms + number * 1000) for number in range(30)]
    )
    between = ["-o", f"s@{start_ms + 10_000}", "-o", f"e@{start_ms + 13_000}"]
    assert kcat.run("-C", "-q", *between, "-t", topic).split() == [b"10", b"11", b"12"]


def test_consuming_an_unknown_topic_fails_with_its_reason(strict_broker: Broker) -> None:
    with pytest.raises(RefusedError, match="Unknown topic"):
        KcatClient(strict_broker.bootstrap).run("-C", "-e", "-o", "beginning", "-t", "never-created", "-p", "0")
