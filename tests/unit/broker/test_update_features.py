"""UpdateFeatures, and what ApiVersions reports, in clusters of real brokers, one of which may be older."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cluster.features import LINEAGES_LEVEL, OLDEST, TRANSACTION_VERSION
from tailrace.cluster.image import TOPIC_FORMAT_WITH_LINEAGE, TopicImage
from tailrace.cluster.keys import CLUSTER_ID, TOPICS, topic_key
from tailrace.cluster.store import Check, Unavailable, Write
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.stores.memory import MemoryStore
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.unit.broker.clusters import Cluster, simulate

NAME = "tailrace.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3


async def update(
    cluster: Cluster,
    level: int,
    upgrade_type: int = UPGRADE,
    *,
    version: int = 1,
    validate_only: bool = False,
    name: str = NAME,
    asked: int = 1,
) -> UpdateFeaturesResponse:
    key = FeatureUpdateKey(
        feature=name, max_version_level=level, upgrade_type=upgrade_type, allow_downgrade=upgrade_type == SAFE
    )
    request = UpdateFeaturesRequest(feature_updates=[key], validate_only=validate_only)
    return await cluster.ask(asked, request, version, UpdateFeaturesResponse)


async def done(cluster: Cluster, level: int, upgrade_type: int = UPGRADE, **options: Any) -> None:
    response = await update(cluster, level, upgrade_type, **options)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)


async def finalized(cluster: Cluster, asked: int = 1) -> tuple[int, int]:
    """The level and the epoch as a client is told."""
    request = ApiVersionsRequest(client_software_name="a-test", client_software_version="1.0")
    response = await cluster.ask(asked, request, 3, ApiVersionsResponse)
    (feature,) = (each for each in response.finalized_features if each.name == NAME)
    assert (feature.name, feature.min_version_level) == (NAME, feature.max_version_level)
    return feature.max_version_level, response.finalized_features_epoch


async def stored(cluster: Cluster, topic: str = "orders") -> dict[str, Any]:
    """A topic as it is in the store."""
    (lineage,) = {each.metadata.image.topics[topic].lineage for each in cluster.brokers.values()}
    entry = await MemoryStore(cluster.space).get(topic_key(lineage))
    assert entry is not None
    value: dict[str, Any] = json.loads(entry.value)
    return value


async def begin_earlier(cluster: Cluster) -> None:
    """Make the store one of a cluster that a release without features has begun."""
    await MemoryStore(cluster.space).txn([Check(CLUSTER_ID, 0)], [Write(CLUSTER_ID, b"an-earlier-cluster")])


def test_a_rolling_upgrade_never_has_an_older_broker_read_what_it_cannot() -> None:
    async def test(cluster: Cluster) -> None:
        await begin_earlier(cluster)
        cluster.supported[2] = OLDEST
        await cluster.start(1, 2)
        await cluster.create("orders", [[1, 2]])
        assert await finalized(cluster) == (1, 0)
        assert (await stored(cluster))["version"] == 2
        refused = await update(cluster, 2)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert refused.error_message is not None
        assert refused.error_message.endswith("Broker 2 only supports versions 1-1.")
        await cluster.move(isr=(1,))
        assert (await stored(cluster))["version"] == 2
        # The last of the older brokers is upgraded; nothing changes until an operator says so.
        await cluster.stop(2)
        del cluster.supported[2]
        await cluster.start(2)
        await cluster.move(leader=2)
        assert (await stored(cluster))["version"] == 2
        await done(cluster, 2)
        await cluster.until(lambda: all(each.metadata.image.features.epoch == 1 for each in cluster.brokers.values()))
        assert await finalized(cluster, 2) == (2, 1)
        await cluster.move(leader=1)
        assert (await stored(cluster))["version"] == 3

    simulate(test, brokers=0)


def test_an_older_broker_does_not_start_in_a_cluster_that_was_upgraded() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.supported[2] = OLDEST
        with pytest.raises(StorageError, match=r"finalized at tailrace\.version=3, but this release only supports"):
            await cluster.start(2)
        del cluster.brokers[2]
        assert await finalized(cluster) == (LINEAGES_LEVEL, 0)
        assert list(cluster.brokers[1].metadata.image.brokers) == [1]

    simulate(test, brokers=1)


def test_a_downgrade_makes_topics_readable_for_older_brokers() -> None:
    async def test(cluster: Cluster) -> None:
        for name in ("orders", "bills"):
            await cluster.create(name, [[1]])
        assert (await stored(cluster))["version"] == 3
        topics = dict(cluster.brokers[1].metadata.image.topics)
        await done(cluster, 0, SAFE, name=TRANSACTION_VERSION)
        await done(cluster, 1, SAFE)
        assert await finalized(cluster) == (1, 2)
        for name, topic in topics.items():
            value = await stored(cluster, name)
            assert value["version"] == 2
            assert TopicImage.from_bytes(json.dumps(value).encode()) == topic
        cluster.supported[2] = OLDEST
        await cluster.start(2)
        assert dict(cluster.brokers[2].metadata.image.topics) == topics

    simulate(test, brokers=1)


def test_a_downgrade_loses_fields_of_newer_releases_only_if_it_is_unsafe() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        known = cluster.brokers[1].metadata.image.topics["orders"]
        value = {**await stored(cluster), "owner": "sales"}
        await MemoryStore(cluster.space).txn([], [Write(topic_key(known.lineage), json.dumps(value).encode())])
        await cluster.until(lambda: bool(cluster.brokers[1].metadata.image.topics["orders"].unknown))
        for validate_only in (True, False):
            refused = await update(cluster, 1, SAFE, validate_only=validate_only)
            assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
            assert "topic orders has fields that older releases do not know" in str(refused.error_message)
            assert await finalized(cluster) == (LINEAGES_LEVEL, 0)
            assert await stored(cluster) == value
        await done(cluster, 1, UNSAFE)
        assert await finalized(cluster) == (1, 1)
        assert (await stored(cluster)).keys() == {"version", "name", "topic_id", "configs", "partitions"}
        assert cluster.brokers[1].metadata.image.topics["orders"] == known

    simulate(test, brokers=1)


def test_no_downgrade_is_made_while_a_topic_has_another_id_than_at_first() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])
        metadata = cluster.brokers[1].metadata
        await metadata.change_topic_id(metadata.image.topics["orders"])
        before = await stored(cluster)
        assert before["version"] == TOPIC_FORMAT_WITH_LINEAGE
        for upgrade_type in (SAFE, UNSAFE):
            refused = await update(cluster, 2, upgrade_type)
            assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
            assert "the id of topic orders has changed" in str(refused.error_message)
        # Nor does one that was begun before the topic got it end without it.
        with pytest.raises(KafkaError, match="older releases would take it for another topic"):
            await _rewritten_below(cluster, 2)
        assert await stored(cluster) == before
        assert await finalized(cluster) == (2, 1)

    simulate(test, brokers=1)


async def _rewritten_below(cluster: Cluster, level: int) -> None:
    metadata = cluster.brokers[1].metadata
    await metadata.alter_features(lambda features: replace(features, epoch=1, levels={NAME: level}))
    await metadata.rewrite_topics(may_lose_fields=True)


def test_a_downgrade_that_was_interrupted_is_finished_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1]])

        class Failing(MemoryStore):
            is_failing = True

            async def list(self, directory: str) -> Any:
                if directory == TOPICS and self.is_failing:
                    raise Unavailable("the store is away")
                return await super().list(directory)

        failing = Failing(cluster.space)
        monkeypatch.setattr(cluster.brokers[1].metadata, "_store", failing)
        refused = await update(cluster, 1, SAFE)
        assert refused.error_code == ErrorCode.FEATURE_UPDATE_FAILED
        assert "repeat the downgrade" in str(refused.error_message)
        assert (await stored(cluster))["version"] == 3
        failing.is_failing = False
        await done(cluster, 1, SAFE)
        assert await finalized(cluster) == (1, 1)
        assert (await stored(cluster))["version"] == 2

    simulate(test, brokers=1)


def test_validation_alone_changes_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        await done(cluster, 1, SAFE, validate_only=True)
        assert (
            await update(cluster, LINEAGES_LEVEL + 1, validate_only=True)
        ).error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert await finalized(cluster) == (LINEAGES_LEVEL, 0)

    simulate(test, brokers=1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_the_request_upgrades_and_downgrades(version: int) -> None:
    async def test(cluster: Cluster) -> None:
        down = await update(cluster, 1, SAFE, version=version)
        assert down.error_code == ErrorCode.NONE
        assert [each.feature for each in down.results] == ([NAME] if version < 2 else [])
        refused = await update(cluster, 0, UPGRADE, version=version)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        await done(cluster, 2, version=version)
        assert await finalized(cluster) == (2, 2)

    simulate(test, brokers=1)


def test_requests_that_make_no_sense_are_refused() -> None:
    async def test(cluster: Cluster) -> None:
        unknown_type = await update(cluster, 1, 9)
        assert unknown_type.error_code == ErrorCode.INVALID_UPDATE_VERSION
        unknown_name = await update(cluster, 1, name="metadata.version")
        assert unknown_name.error_code == ErrorCode.INVALID_UPDATE_VERSION
        twice = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=NAME, max_version_level=2)] * 2)
        response = await cluster.ask(1, twice, 1, UpdateFeaturesResponse)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert await finalized(cluster) == (LINEAGES_LEVEL, 0)

    simulate(test, brokers=1)


def test_clients_of_old_versions_are_told_nothing_of_features() -> None:
    async def test(cluster: Cluster) -> None:
        response = await cluster.ask(1, ApiVersionsRequest(), 2, ApiVersionsResponse)
        assert (response.supported_features, response.finalized_features_epoch) == ([], -1)
        named = ApiVersionsRequest(client_software_name="a-test", client_software_version="1.0")
        response = await cluster.ask(1, named, 4, ApiVersionsResponse)
        supported = [(each.name, each.min_version, each.max_version) for each in response.supported_features]
        assert supported == [(NAME, 1, LINEAGES_LEVEL), (TRANSACTION_VERSION, 0, 2)]

    simulate(test, brokers=1)
