"""The configuration of a topic as DescribeConfigs and CreateTopics tell it: value, source and synonyms."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from tailrace.broker.config import TOPIC_KEYS, BrokerConfig


class ConfigSource(IntEnum):
    """Where a value comes from, as the protocol numbers it."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


def broker_source(source: str) -> ConfigSource:
    return ConfigSource.DEFAULT if source == "default" else ConfigSource.STATIC_BROKER


def topic_value(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> tuple[str | None, ConfigSource]:
    """The value in force for a topic, and where it comes from."""
    if name in overrides:
        return overrides[name], ConfigSource.TOPIC
    default = config.topic_default(name)
    return default.value, broker_source(default.source)


def topic_values(config: BrokerConfig, overrides: Mapping[str, str]) -> list[tuple[str, str | None, ConfigSource]]:
    """Every topic-level key with its value in force."""
    return [(name, *topic_value(config, name, overrides)) for name in TOPIC_KEYS]
