"""Feature levels: which changes are allowed, how they are stored, and how brokers react to what they find."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tailrace.cluster.features import (
    OLDEST,
    SUPPORTED,
    TAILRACE_VERSION,
    FeatureUpdate,
    FinalizedFeatures,
    LevelRange,
    SupportedFeatures,
    UpgradeType,
    newest,
    updated,
)
from tailrace.cluster.image import BrokerImage
from tailrace.cluster.keys import CLUSTER_ID, FINALIZED_FEATURES, topic_key
from tailrace.cluster.store import Unreadable, Write
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tests.unit.cluster.worlds import SESSION_TIMEOUT_MS, World, broker, run, state

UPGRADE, SAFE, UNSAFE = UpgradeType
RANGE = {"a": LevelRange(1, 3)}
BROKERS: Mapping[int, SupportedFeatures] = {1: {**RANGE, "b": LevelRange(1, 1)}, 2: RANGE}


def at(epoch: int, **levels: int) -> FinalizedFeatures:
    return FinalizedFeatures(epoch, MappingProxyType(levels))


@pytest.mark.parametrize("upgrade_type", [SAFE, UNSAFE])
def test_a_level_rises_by_an_upgrade_and_falls_by_a_downgrade(upgrade_type: UpgradeType) -> None:
    assert updated(at(0, a=1), [FeatureUpdate("a", 3, UPGRADE)], BROKERS) == at(1, a=3)
    assert updated(at(4, a=3), [FeatureUpdate("a", 1, upgrade_type)], BROKERS) == at(5, a=1)


@pytest.mark.parametrize("upgrade_type", list(UpgradeType))
def test_a_level_that_is_finalized_already_changes_nothing(upgrade_type: UpgradeType) -> None:
    assert updated(at(4, a=2), [FeatureUpdate("a", 2, upgrade_type)], BROKERS) == at(4, a=2)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate("a", 1, UPGRADE), "Can't downgrade the version of this feature without"),
        (FeatureUpdate("a", 3, SAFE), "Can't downgrade to a newer version."),
        (FeatureUpdate("a", 3, UNSAFE), "Can't downgrade to a newer version."),
        (FeatureUpdate("a", -1, UNSAFE), "A feature version cannot be less than 0."),
        (FeatureUpdate("a", 0, UNSAFE), "Broker 1 only supports versions 1-3."),
        (FeatureUpdate("a", 4, UPGRADE), "Broker 1 only supports versions 1-3."),
        (FeatureUpdate("b", 1, UPGRADE), "Broker 2 does not support this feature."),
    ],
)
def test_a_change_is_refused_as_kafka_refuses_it(update: FeatureUpdate, reason: str) -> None:
    with pytest.raises(KafkaError) as refused:
        updated(at(4, a=2), [FeatureUpdate("a", 2, UPGRADE), update], BROKERS)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert f"Invalid update version {update.level} for feature {update.name}. {reason}" in str(refused.value)


def test_levels_are_stored_with_a_version_and_fields_of_a_newer_release() -> None:
    value = b'{"version":1,"epoch":4,"levels":{"a":2},"set_by":"an operator"}'
    changed = updated(FinalizedFeatures.from_bytes(value), [FeatureUpdate("a", 3, UPGRADE)], BROKERS)
    assert json.loads(changed.to_bytes()) == {"version": 1, "epoch": 5, "levels": {"a": 3}, "set_by": "an operator"}
    assert FinalizedFeatures.from_bytes(changed.to_bytes()) == changed
    for broken in (b'{"version":2}', b'{"version":1,"epoch":0}', b'{"version":1,"epoch":0,"levels":{"a":"x"}}'):
        with pytest.raises(Unreadable, match="the finalized features"):
            FinalizedFeatures.from_bytes(broken)


def test_a_registration_says_what_the_broker_supports_and_one_that_does_not_is_of_the_oldest_release() -> None:
    registered = BrokerImage(1, (), features=SUPPORTED)
    assert BrokerImage.from_bytes(registered.to_bytes()).features == SUPPORTED
    earlier = json.loads(registered.to_bytes())
    del earlier["features"]
    assert BrokerImage.from_bytes(json.dumps(earlier).encode()).features == OLDEST


# --- in the store


async def finalize(world: World, level: int, epoch: int = 7) -> None:
    """Finalize a level as if a broker of some release had done so."""
    features = FinalizedFeatures(epoch, {TAILRACE_VERSION: level})
    assert await world.store.txn([], [Write(FINALIZED_FEATURES, features.to_bytes())]) is not None


def test_a_new_cluster_begins_at_the_newest_level() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        assert one.metadata.image.features == two.metadata.image.features == newest(SUPPORTED)
        assert one.metadata.image.features.epoch == 0

    run(test)


def test_a_cluster_that_was_there_before_stays_at_the_oldest_level() -> None:
    async def test(world: World) -> None:
        await world.store.txn([], [Write(CLUSTER_ID, b"cluster")])
        (one,) = await world.started(1)
        assert one.metadata.image.features == FinalizedFeatures(0, {TAILRACE_VERSION: 1})
        topic = one.metadata.plan_topic("orders", 1, 1, {}, {})
        await one.metadata.create_topic(topic)
        entry = await world.store.get(topic_key(topic.lineage))
        assert entry is not None
        assert json.loads(entry.value)["version"] == 2
        assert await world.store.get(FINALIZED_FEATURES) is None

    run(test)


def test_a_broker_does_not_start_in_a_cluster_whose_levels_it_does_not_support() -> None:
    async def test(world: World) -> None:
        await world.started(1)
        await finalize(world, 4)
        await world.store.txn([], [Write("/topics/no-id", b"a newer release wrote this")])
        with pytest.raises(StorageError, match=r"finalized at tailrace\.version=4, but this release only supports"):
            await world.member(2).start()
        assert await world.store.get("/brokers/2") is None

    run(test)


def test_a_broker_that_meets_a_newer_level_and_newer_values_says_so_and_serves_what_it_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        orders = await world.put_topic("orders", state("21", "21", 2))
        bills = await world.put_topic("bills", state("21", "21", 2))
        one, two = world.member(1), world.member(2)
        for member in (one, two):
            await member.start(stopped_in_epoch=-1)
        known = one.metadata.image.topics["orders"]
        assert known.partitions[0].leader == 2
        await finalize(world, 4)
        newer = b'{"version":5,"name":"orders","rows":"as only a newer release reads them"}'
        await world.put(topic_key(orders.lineage), newer)
        await asyncio.sleep(1)
        assert "finalized at tailrace.version=4, but this release only supports versions 1-3" in caplog.text
        assert "a topic is stored in format 5, but this release supports only up to 4" in caplog.text
        assert one.metadata.image.topics["orders"] == known
        # The controller changes what it can read, and overwrites nothing else.
        assert one.controller.is_active
        two.kill()
        await world.until(lambda: one.metadata.image.topics["bills"].partitions[0].leader == 1)
        assert (await world.stored(bills)).partitions[0].leader == 1
        entry = await world.store.get(topic_key(orders.lineage))
        assert entry is not None
        assert entry.value == newer
        assert "Cannot change a topic: a topic is stored in format 5" in caplog.text

    run(test)


def test_registrations_that_say_nothing_of_features_keep_the_level_low() -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        session = await world.store.open_session(SESSION_TIMEOUT_MS)
        earlier = json.loads(broker(2).to_bytes())
        del earlier["features"]
        await world.store.txn([], [Write("/brokers/2", json.dumps(earlier).encode(), session)])
        await world.until(lambda: 2 in one.metadata.image.brokers)
        assert one.metadata.image.brokers[2].features == OLDEST

    run(test)
