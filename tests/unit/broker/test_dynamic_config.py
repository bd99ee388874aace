"""Settings that change at run time: which keys, their precedence, and how they are described."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.broker.config import broker_config as config_module
from tailrace.broker.config.broker_config import BROKER_KEYS, TOPIC_KEYS, BrokerConfig, ConfigSource, Given
from tailrace.errors import ConfigError

BROKER, ALL, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
    ConfigSource.DEFAULT,
)


def refusal(settings: dict[str, str], *, for_all_brokers: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig().check_dynamic(settings, for_all_brokers=for_all_brokers)
    return str(caught.value)


def test_what_is_set_for_a_broker_goes_before_all_brokers_and_both_before_what_it_was_started_with() -> None:
    config = BrokerConfig({"message.max.bytes": "100"})
    seen = []
    for for_all, own in (
        ({}, {}),
        ({"message.max.bytes": "200"}, {}),
        ({"message.max.bytes": "200"}, {"message.max.bytes": "300"}),
    ):
        assert config.set_dynamic(for_all, own) == []
        seen.append((config.get_int("message.max.bytes"), config.source("message.max.bytes")))
        assert config.topic_config({}).max_message_bytes == config.get_int("message.max.bytes")
    assert seen == [(100, STATIC), (200, ALL), (300, BROKER)]
    config.set_dynamic({}, {})
    assert (config.get_int("message.max.bytes"), config.source("message.max.bytes")) == (100, STATIC)


def test_every_given_value_is_told_in_the_order_in_which_it_counts() -> None:
    config = BrokerConfig({"log.retention.hours": "24", "log.retention.minutes": "30"})
    config.set_dynamic({"log.retention.ms": "2000"}, {"log.retention.ms": "1000"})
    behind = [
        Given("log.retention.ms", "1000", BROKER),
        Given("log.retention.ms", "2000", ALL),
        Given("log.retention.minutes", "30", STATIC),
        Given("log.retention.hours", "24", STATIC),
        Given("log.retention.hours", "336", DEFAULT),
    ]
    assert config.topic_givens("retention.ms", {}) == behind
    assert config.topic_givens("retention.ms", {"retention.ms": " 5 "}) == [
        Given("retention.ms", "5", ConfigSource.TOPIC),
        *behind,
    ]
    assert config.topic_value("retention.ms", {}) == Given("retention.ms", "1000", BROKER)
    assert config.broker_givens("log.retention.ms") == behind
    assert config.broker_givens("log.retention.minutes") == behind[2:]
    assert config.broker_givens("num.partitions") == [Given("num.partitions", "1", DEFAULT)]
    assert config.broker_givens("cluster.id") == []


def test_a_key_that_is_read_at_the_start_cannot_be_set_in_kafkas_words() -> None:
    said = refusal({"log.dirs": "/a", "message.max.bytes": "5", "broker.id": "2"})
    assert said == "Cannot update these configs dynamically: Set(log.dirs, broker.id)"


def test_a_bad_value_or_an_unknown_key_is_refused_and_changes_nothing() -> None:
    assert (
        refusal({"log.retention.ms": "soon"})
        == "Invalid value soon for configuration log.retention.ms: Not a number of type LONG"
    )
    assert refusal({"log.retention.mss": "1"}).startswith("Unknown configuration log.retention.mss: did you mean")
    assert refusal({"num.io.threads": "8"}) == "num.io.threads has no effect in tailrace"


def test_a_key_of_one_broker_only_cannot_be_set_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(BROKER_KEYS["max.connections"], update_mode="per-broker")
    monkeypatch.setattr(config_module, "BROKER_KEYS", {**BROKER_KEYS, "max.connections": own})
    BrokerConfig().check_dynamic({"max.connections": "5"}, for_all_brokers=False)
    assert refusal({"max.connections": "5"}, for_all_brokers=True) == (
        "Cannot update these configs at default cluster level, broker id must be specified: Set(max.connections)"
    )


def test_what_another_version_stored_is_left_out_and_said() -> None:
    config = BrokerConfig()
    problems = config.set_dynamic(
        {"message.max.bytes": "7", "a.newer.key": "1"}, {"log.segment.bytes": "1", "node.id": "9"}
    )
    assert [problem.split(",")[0].removeprefix("ignoring ") for problem in problems] == [
        "a.newer.key",
        "log.segment.bytes",
        "node.id",
    ]
    assert (config.get_int("message.max.bytes"), config.get_int("node.id")) == (7, 1)
    assert config.get_int("log.segment.bytes") == BROKER_KEYS["log.segment.bytes"].default


def test_values_that_do_not_go_together_are_refused_wherever_they_come_from() -> None:
    shortest, longest = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    said = "conflict topic config setting min.compaction.lag.ms (50) > max.compaction.lag.ms (20)"
    with pytest.raises(ConfigError) as started:
        BrokerConfig({shortest: "50", longest: "20"})
    config = BrokerConfig({shortest: "50"})
    with pytest.raises(ConfigError) as over_static:
        config.check_dynamic({longest: "20"}, for_all_brokers=True)
    config.check_dynamic({shortest: "5", longest: "20"}, for_all_brokers=True)
    assert config.set_dynamic({shortest: "5", longest: "20"}, {}) == []
    with pytest.raises(ConfigError) as over_dynamic:
        config.check_dynamic({shortest: "50"}, for_all_brokers=False)
    with pytest.raises(ConfigError) as on_topic:
        config.validate_topic_overrides({"min.compaction.lag.ms": "50"})
    assert {str(caught.value) for caught in (started, over_static, over_dynamic, on_topic)} == {said}
    assert config.set_dynamic({longest: "20"}, {}) == [f"ignoring the settings made at run time: {said}"]
    assert config.topic_config({}).min_compaction_lag_ms == 50


def test_the_broker_key_behind_each_topic_key_can_be_set_while_the_broker_runs_as_in_kafka() -> None:
    # Whether a topic has an archive is its own matter: those that are compacted can have none.
    alone = [key.name for key in TOPIC_KEYS.values() if not key.synonyms]
    assert alone == ["tailrace.archive.enable"]
    for key in TOPIC_KEYS.values():
        if not key.synonyms:
            continue
        first, *others = key.synonyms
        assert BROKER_KEYS[first.name].update_mode == "cluster-wide", first.name
        # Kafka's tools take the coarser units at the start only.
        assert all(BROKER_KEYS[other.name].update_mode == "read-only" for other in others)


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip", "producer.id.expiration.ms"])
def test_other_keys_that_kafka_lets_change_do_so_here(name: str) -> None:
    assert BROKER_KEYS[name].update_mode == "cluster-wide"
