"""What topics may ask of producers, with real clients: a codec of the topic's own, a key for every record."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.records.batch import iterate_batches
from tests.interop.conftest import Broker
from tests.interop.specification import Client
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.records import CODECS, Record, RefusedError, contents
from tests.support.topics import create_topic

INVALID_TIMESTAMP = 32
INVALID_RECORD = 87


def records(count: int = 300) -> list[Record]:
    """Records that are together far larger than what a broker recompresses without a thread."""
    source = random.Random(3)
    return [
        Record(b"%d " % number + source.randbytes(300).hex().encode(), b"key-%d" % (number % 7), (("h", b"x"),))
        for number in range(count)
    ]


def clients(broker: Broker, java_bridge: JavaBridge) -> list[Client]:
    return [
        ConfluentClient(broker.bootstrap),
        KafkaPythonClient(broker.bootstrap),
        AiokafkaClient(broker.bootstrap),
        JavaClient(broker.bootstrap, java_bridge),
    ]


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_what_clients_send_in_any_codec_is_stored_in_the_topics_and_read_by_all(
    target: str, broker: Broker, java_bridge: JavaBridge, data_dir: Path, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), compression_type=target)
    every = clients(broker, java_bridge)
    sent: list[Record] = []
    for number, client in enumerate(every):
        for codec in (CODECS[number], CODECS[-1 - number]):
            offsets = client.produce(topic, records(), compression=codec)
            assert [offset for _, offset in offsets] == list(range(len(sent), len(sent) + len(records())))
            sent += records()
    for client in every:
        received = client.consume(topic, 0, len(sent))
        assert [one.content() for one in received] == contents(sent), client.name
    stored = (data_dir / f"{topic}-0" / f"{0:020}.log").read_bytes()
    wanted = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[target]
    assert {header.compression for _, header in iterate_batches(stored)} == {wanted}


def test_a_compacted_topic_refuses_records_without_a_key(
    broker: Broker, java_bridge: JavaBridge, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), cleanup_policy="compact")
    for client in clients(broker, java_bridge):
        with pytest.raises(RefusedError) as caught:
            client.produce(topic, [Record(b"no key")])
        # aiokafka has no name for this refusal and reports it without its number.
        assert caught.value.code == (None if client.name == "aiokafka" else INVALID_RECORD), client.name
        client.produce(topic, [Record(b"with one", b"key")])


def test_records_from_the_future_are_refused(
    broker: Broker, java_bridge: JavaBridge, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    for client in clients(broker, java_bridge):
        with pytest.raises(RefusedError) as caught:
            client.produce(topic, [Record(b"value", timestamp_ms=4_102_444_800_000)])
        assert caught.value.code == INVALID_TIMESTAMP, client.name
