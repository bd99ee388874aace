"""What one client writes, every other reads; and all of them agree on the partition of a key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.client.murmur2 import partition_for_key
from tests.interop.conftest import Broker
from tests.interop.specification import Client, sample
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.clients.kcat_client import KcatClient
from tests.support.clients.node_client import NodeBridge, NodeClient
from tests.support.records import CODECS, Record, contents
from tests.support.topics import create_topic

CLIENTS = ("confluent", "kafka-python", "aiokafka", "kcat", "java", "kafkajs", "platformatic")

#: The position of the attributes in a batch on disk: after base offset, length, leader epoch, magic and CRC.
ATTRIBUTES_POSITION = 21


@pytest.fixture(scope="module")
def clients(
    broker: Broker, java_bridge: JavaBridge, kafkajs_bridge: NodeBridge, platformatic_bridge: NodeBridge
) -> dict[str, Any]:
    every: list[Client] = [
        ConfluentClient(broker.bootstrap),
        KafkaPythonClient(broker.bootstrap),
        AiokafkaClient(broker.bootstrap),
        KcatClient(broker.bootstrap),
        JavaClient(broker.bootstrap, java_bridge),
        NodeClient(broker.bootstrap, kafkajs_bridge),
        NodeClient(broker.bootstrap, platformatic_bridge),
    ]
    return {client.name: client for client in every}


@pytest.fixture(scope="module")
def written(clients: dict[str, Any], broker: Broker) -> dict[tuple[str, str], str]:
    """A topic for each writer and codec, filled by that writer."""
    topics = {}
    for writer in CLIENTS:
        for codec in CODECS:
            topic = create_topic(broker.bootstrap, f"matrix-{os.getpid()}-{writer}-{codec}")
            clients[writer].produce(topic, sample(), compression=codec)
            topics[writer, codec] = topic
    return topics


@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_every_reader_understands_every_codec_of_every_writer(
    clients: dict[str, Any], written: dict[tuple[str, str], str], writer: str, reader: str
) -> None:
    for codec in CODECS:
        received = clients[reader].consume(written[writer, codec], 0, len(sample()))
        assert [one.content() for one in received] == contents(sample()), codec
        assert [one.offset for one in received] == list(range(len(sample()))), codec


@pytest.mark.parametrize("writer", CLIENTS)
def test_the_log_holds_the_codec_the_writer_chose(
    written: dict[tuple[str, str], str], data_dir: Path, writer: str
) -> None:
    for number, codec in enumerate(CODECS):
        batch = (data_dir / f"{written[writer, codec]}-0" / f"{0:020}.log").read_bytes()
        attributes = int.from_bytes(batch[ATTRIBUTES_POSITION : ATTRIBUTES_POSITION + 2], "big")
        assert attributes & 7 == number, codec


def test_all_clients_choose_the_same_partition_for_a_key(
    clients: dict[str, Any], broker: Broker, topic_name: Callable[[], str]
) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"order-1", "größe".encode(), b"x" * 100, b"key:7"]
    keys += [b"user-%d" % number for number in range(40)]
    partitions = 12
    expected = {key: partition_for_key(key, partitions) for key in keys}
    assert len(set(expected.values())) > 6
    for client in clients.values():
        # kcat sends an empty key as null, and librdkafka sends an empty key to any partition.
        usable = keys[1:] if client.name in ("kcat", "confluent") else keys
        topic = create_topic(broker.bootstrap, topic_name(), partitions=partitions)
        client.produce(topic, [Record(b"v", key, partition=None) for key in usable])
        chosen = {}
        for number, (_, end) in clients["confluent"].offsets(topic, range(partitions)).items():
            for one in clients["confluent"].consume(topic, number, end):
                chosen[one.key] = number
        assert chosen == {key: expected[key] for key in usable}, client.name
