"""Every store: the broker refuses a request whose metadata would be too large for the store, and continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ErrorCode
from tailrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.support.brokers.cluster_process import STORES, coordination_store
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.clients.raw_client import RawClient

#: 600 KB on the wire, and three times as much in the store.
_PLACE = "file:///" + "é" * 300_000


@pytest.mark.parametrize("kind", STORES)
def test_a_topic_that_is_larger_than_the_store_takes_is_refused_and_the_broker_goes_on(
    kind: str, tmp_path: Path
) -> None:
    config = [CreatableTopicConfig(name="tailrace.archive.uri", value=_PLACE)]
    large = CreatableTopic(name="large", num_partitions=1, replication_factor=1, configs=config)
    with coordination_store(kind, tmp_path / "store") as address:
        settings = {"tailrace.coordination": address, "offsets.topic.num.partitions": "1"}
        with WatchedBroker(tmp_path / "data", config=settings) as broker:
            pid = broker.pid
            for _ in range(2):  # as a client that retries
                with RawClient(broker.port) as client:
                    answer = client.ask(CreateTopicsRequest(topics=[large], timeout_ms=30_000), 7, CreateTopicsResponse)
                (result,) = answer.topics
                assert result.error_code == ErrorCode.INVALID_CONFIG
                assert "exceeds the maximum value size" in (result.error_message or "")
            broker.create_topic("small")
            broker.serve_once("small")
            assert broker.pid == pid
