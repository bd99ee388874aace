"""kcat against a real broker: the common specification, and what it does from a shell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.interop.conftest import Broker
from tests.interop.specification import ClientSpecification
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.kcat_client import KcatClient
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


def test_one_topic_is_listed_alone(kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]) -> None:
    name = create_topic(broker.bootstrap, topic_name(), partitions=2)
    create_topic(broker.bootstrap, topic_name())
    (topic,) = json.loads(kcat.run("-L", "-J", "-t", name))["topics"]
    assert (topic["topic"], len(topic["partitions"])) == (name, 2)


def test_a_format_shows_topic_partition_offset_key_headers_and_time(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=3)
    headers = (("trace", b"4bf9"), ("tag", b"a"), ("tag", b"b"))
    kcat.produce(topic, [Record(b"value", b"key", headers, partition=2)], compression="lz4")
    (one,) = ConfluentClient(broker.bootstrap).consume(topic, 2, 1)
    shown = kcat.run("-C", "-e", "-q", "-t", topic, "-p", "2", "-f", "%t %p %o %k %K %s %S %h %T\n")
    assert shown.decode() == f"{topic} 2 0 key 3 value 5 trace=4bf9,tag=a,tag=b {one.timestamp_ms}\n"


def test_times_of_several_partitions_are_asked_at_once(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    start_ms = int(time.time() * 1000) - 1_000_000
    ConfluentClient(broker.bootstrap).produce(
        topic,
        [Record(b"x", timestamp_ms=start_ms + number * 1000, partition=number % 2) for number in range(20)],
    )
    asked = [word for part in (0, 1) for word in ("-t", f"{topic}:{part}:{start_ms + 7000}")]
    answer = json.loads(kcat.run("-Q", "-J", *asked))[topic]
    assert [answer[number]["offset"] for number in ("0", "1")] == [4, 3]


def test_reading_from_the_end_shows_nothing_old(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    kcat.produce(topic, [Record(b"before")])
    assert kcat.run("-C", "-e", "-q", "-o", "end", "-t", topic, "-p", "0") == b""
    assert kcat.run("-C", "-q", "-o", "0", "-c", "1", "-t", topic, "-p", "0") == b"before\n"


def test_a_partition_that_is_not_there_is_named(
    kcat: KcatClient, broker: Broker, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    with pytest.raises(RefusedError, match="partition 7 does not exist"):
        kcat.run("-C", "-e", "-o", "beginning", "-t", topic, "-p", "7")
