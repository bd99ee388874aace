"""The layers a value may come from, the ones that count first, and what topics get from all of them together.

Immutable: a change makes new layers. It must not know how a layer came to be, nor check single values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.broker.config.keys import BROKER_KEYS
from tailrace.broker.config.topic_keys import TOPIC_KEYS
from tailrace.broker.config.types import ConfigSource, Given, TopicKey, Value, value_text
from tailrace.errors import ConfigError

#: Broker keys that say the same thing in different units, the one that counts first where several are given.
FAMILIES = tuple(tuple(synonym.name for synonym in key.synonyms) for key in TOPIC_KEYS.values())


class ConfigLayers:
    """What each broker key is in each layer, and what it is when all is said."""

    __slots__ = ("_layers", "topic_values", "values")

    def __init__(self, layers: Mapping[ConfigSource, Mapping[str, Value]]) -> None:
        """Layers by source, in any order; the defaults of the keys are added."""
        defaults = {name: key.default for name, key in BROKER_KEYS.items()}
        self._layers = dict(sorted({**layers, ConfigSource.DEFAULT: defaults}.items()))
        values: dict[str, Value] = {}
        for layer in reversed(self._layers.values()):
            values.update(layer)
        self.values: Mapping[str, Value] = values
        #: What topics get where they override nothing.
        self.topic_values: Mapping[str, Value] = {name: self.topic_default(key)[0] for name, key in TOPIC_KEYS.items()}
        check_together(self.topic_values)

    def replaced(self, source: ConfigSource, layer: Mapping[str, Value]) -> ConfigLayers:
        """The same with another layer in the place of one."""
        return ConfigLayers({**self._layers, source: layer})

    def source(self, name: str) -> ConfigSource:
        """Where a key's value comes from."""
        return next(source for source, layer in self._layers.items() if name in layer)

    def givens(self, names: Collection[str]) -> list[Given]:
        """Every value that these keys were given, by layer, and within one in the order of the names."""
        return [
            Given(name, None if BROKER_KEYS[name].is_sensitive else value_text(layer[name]), source)
            for source, layer in self._layers.items()
            for name in names
            if layer.get(name) is not None
        ]

    def topic_default(self, key: TopicKey) -> tuple[Value, str | None]:
        """What a topic key is by default, and the broker key that says so, if there is one."""
        for synonym in key.synonyms:
            value = self.values[synonym.name]
            if value is not None:
                return synonym.convert(value), synonym.name
        return key.default, key.synonyms[-1].name if key.synonyms else None


def check_together(values: Mapping[str, Value]) -> None:
    """Raise ConfigError where values of topic keys that are each allowed do not go together."""
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
                "tailrace.archive.enable needs a place for the archive: set tailrace.archive.uri for the topic, or for "
                "all brokers"
            )
