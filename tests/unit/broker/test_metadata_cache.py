"""An encoded Metadata response is kept while the image stands, and never outlives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tailrace.broker.metadata_cache import _MAX_RESPONSES, MetadataCache
from tailrace.cluster.image import ClusterImage
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.unit.broker.brokers import TestedBroker, with_broker

IMAGE = ClusterImage("c", 1)


def test_a_response_is_found_under_its_own_image_only() -> None:
    cache = MetadataCache()
    cache.keep(IMAGE, "q", b"answer")
    assert cache.find(IMAGE, "q") == b"answer"
    assert cache.find(ClusterImage("c", 1), "q") is None
    cache.keep(ClusterImage("c", 1), "other", b"new")
    assert cache.find(IMAGE, "q") is None


def test_the_number_of_responses_is_bounded() -> None:
    cache = MetadataCache()
    for number in range(_MAX_RESPONSES + 5):
        cache.keep(IMAGE, number, b"answer")
    assert cache.find(IMAGE, 4) is None
    assert cache.find(IMAGE, 5) == b"answer"


def test_what_clients_see_follows_every_change(tmp_path: Path) -> None:
    async def names(broker: TestedBroker) -> list[str | None]:
        response = await broker.ask(MetadataRequest(topics=None), 12, MetadataResponse)
        return [topic.name for topic in response.topics]

    async def test(broker: TestedBroker) -> None:
        assert await names(broker) == await names(broker) == []
        await broker.create("orders")
        assert await names(broker) == await names(broker) == ["orders"]
        for _ in range(2):
            request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
            response = await broker.ask(request, 12, MetadataResponse)
            assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("new", 1)]
        assert await names(broker) == ["orders", "new"]
        await broker.ask(DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000), 5, DeleteTopicsResponse)
        assert await names(broker) == await names(broker) == ["new"]

    with_broker(tmp_path, test)


def test_the_answer_in_each_version_is_its_own(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        for version in [*range(1, 14), *range(1, 14)]:
            response = await broker.ask(MetadataRequest(topics=None), version, MetadataResponse)
            assert [topic.name for topic in response.topics] == ["orders"]

    with_broker(tmp_path, test)


def test_nobody_is_told_of_a_cluster_without_brokers(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        metadata = broker.broker.services.metadata
        before, metadata.image = metadata.image, IMAGE
        asked = asyncio.create_task(broker.ask(MetadataRequest(topics=None), 12, MetadataResponse))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        metadata.image = before
        assert [each.node_id for each in (await asked).brokers] == list(before.brokers)

    with_broker(tmp_path, test)
