"""The layers of configuration values, in order of precedence, and the topic defaults that result from them.

Immutable: a change makes new layers. This module must not know how a layer came to be, nor check single values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.broker.config.keys import BROKER_KEYS
from tailrace.broker.config.topic_keys import TOPIC_KEYS
from tailrace.broker.config.types import ConfigSource, Given, TopicKey, Value, value_text
from tailrace.errors import ConfigError

#: Broker keys for the same setting in different units, in order of precedence.
FAMILIES = tuple(tuple(synonym.name for synonym in key.synonyms) for key in TOPIC_KEYS.values())


class ConfigLayers:
    """The values of each broker key by layer, and the effective ones."""

    __slots__ = ("_layers", "topic_values", "values")

    def __init__(self, layers: Mapping[ConfigSource, Mapping[str, Value]]) -> None:
        """Take layers by source, in any order, and add the defaults."""
        defaults = {name: key.default for name, key in BROKER_KEYS.items()}
        self._layers = dict(sorted({**layers, ConfigSource.DEFAULT: defaults}.items()))
        values: dict[str, Value] = {}
        for layer in reversed(self._layers.values()):
            values.update(layer)
        self.values: Mapping[str, Value] = values
        #: The values of topics without overrides.
        self.topic_values: Mapping[str, Value] = {name: self.topic_default(key)[0] for name, key in TOPIC_KEYS.items()}
        check_together(self.topic_values)

    def replaced(self, source: ConfigSource, layer: Mapping[str, Value]) -> ConfigLayers:
        """Return these layers with one of them replaced."""
        return ConfigLayers({**self._layers, source: layer})

    def source(self, name: str) -> ConfigSource:
        """Return the layer that a key's value comes from."""
        return next(source for source, layer in self._layers.items() if name in layer)

    def givens(self, names: Collection[str]) -> list[Given]:
        """Return every value of these keys, by layer, then in the order of the names."""
        return [
            Given(name, None if BROKER_KEYS[name].is_sensitive else value_text(layer[name]), source)
            for source, layer in self._layers.items()
            for name in names
            if layer.get(name) is not None
        ]

    def topic_default(self, key: TopicKey) -> tuple[Value, str | None]:
        """Return the default of a topic key, and the broker key that it comes from, if any."""
        for synonym in key.synonyms:
            value = self.values[synonym.name]
            if value is not None:
                return synonym.convert(value), synonym.name
        return key.default, key.synonyms[-1].name if key.synonyms else None


def check_together(values: Mapping[str, Value]) -> None:
    """Raise ConfigError if values of topic keys conflict that are each allowed."""
    shortest, longest = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )
    if values.get("tailrace.archive.enable") is True:
        policies = values.get("cleanup.policy")
        if isinstance(policies, tuple) and "compact" in policies:
            raise ConfigError(
                "conflict topic config setting tailrace.archive.enable (true) and cleanup.policy (compact): an archive "
                "keeps what compaction would remove"
            )
        if not values.get("tailrace.archive.uri"):
            raise ConfigError(
                "tailrace.archive.enable needs a location for the archive: set tailrace.archive.uri for the "
                "topic or for all brokers"
            )
