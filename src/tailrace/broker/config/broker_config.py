"""The broker's configuration: checks raw values against the tables of keys, then gives typed access to them.

Owns the one `BrokerConfig` of a broker. The value of a key comes from the first of four layers that has one: set at run
time for this broker, set at run time for all brokers, given at the start, default. Only the first two ever change, as a
whole, and only to valid values; code that reads a key when it needs it sees the change. Environment variables are never
read. This module must not know handlers, logs or sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tailrace.broker.config.endpoints import (
    Endpoint,
    EndpointError,
    advertise,
    check_advertised,
    check_ports_differ,
    parse_endpoints,
    parse_protocol_map,
)
from tailrace.broker.config.keys import ALIASES, BROKER_KEYS, NO_EFFECT, NO_EFFECT_PREFIXES
from tailrace.broker.config.layers import FAMILIES, ConfigLayers, check_together
from tailrace.broker.config.topic_keys import TOPIC_KEYS
from tailrace.broker.config.types import (
    ConfigKey,
    ConfigSource,
    ConfigType,
    Given,
    TopicKey,
    Value,
    as_text,
    value_text,
)
from tailrace.errors import ConfigError
from tailrace.records.compression import Compression
from tailrace.storage.log_config import LogConfig

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS",
    "BrokerConfig",
    "ConfigKey",
    "ConfigSource",
    "ConfigType",
    "Endpoint",
    "Given",
    "TopicDefault",
    "TopicKey",
    "gather_settings",
    "load_config",
]


#: The codec of each value of `compression.type`; None keeps the producer's codec.
_CODECS: Mapping[str, Compression | None] = MappingProxyType(
    {
        "producer": None,
        "uncompressed": Compression.NONE,
        "gzip": Compression.GZIP,
        "snappy": Compression.SNAPPY,
        "lz4": Compression.LZ4,
        "zstd": Compression.ZSTD,
    }
)
#: The key with the level of each codec that has one.
_LEVELS: Mapping[Compression | None, str] = MappingProxyType(
    {
        Compression.GZIP: "compression.gzip.level",
        Compression.LZ4: "compression.lz4.level",
        Compression.ZSTD: "compression.zstd.level",
    }
)
#: The value that makes a broker keep as much of an archived topic as of any other.
_AS_RETENTION = -2
#: The longest value of a key set at run time, as in Kafka; it is stored in the metadata store.
MAX_VALUE_BYTES = 32_767
_SHOWN_CHARACTERS = 100


class TopicDefault(NamedTuple):
    """The value of a topic key that the topic does not override, and the broker key it comes from."""

    value: str
    source: ConfigSource
    broker_key: str


class BrokerConfig:
    """All settings of one broker, checked."""

    __slots__ = (
        "_advertised_listeners",
        "_layers",
        "_listeners",
        "_origins",
        "_raw",
        "_static",
        "_warnings",
    )

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, origins: Mapping[str, str] | None = None
    ) -> None:
        """Check raw settings (text, or typed values from TOML); `origins` says where each was written."""
        self._origins = dict(origins or {})
        warnings: list[str] = []
        effective = self._effective(settings or {}, warnings)
        self._raw: Mapping[str, str] = MappingProxyType(
            {name: as_text(given) or "" for name, given in effective.items()}
        )
        self._static: dict[str, Value] = {
            name: self._parse(BROKER_KEYS[name], given) for name, given in effective.items()
        }
        self._layers = ConfigLayers({ConfigSource.STATIC_BROKER: self._static})
        controllers = _listener_names((settings or {}).get("controller.listener.names"))
        self._listeners, self._advertised_listeners = self._endpoints(controllers, warnings)
        self._warnings = tuple(warnings)

    @property
    def raw(self) -> Mapping[str, str]:
        """The given settings as text, under tailrace's names."""
        return self._raw

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that were accepted although they have no effect here."""
        return self._warnings

    @property
    def listeners(self) -> tuple[Endpoint, ...]:
        """The addresses to listen on."""
        return self._listeners

    @property
    def advertised_listeners(self) -> tuple[Endpoint, ...]:
        """The addresses that clients connect to; port 0 means the port that its listener gets."""
        return self._advertised_listeners

    def get_int(self, name: str) -> int:
        """Return the value of an INT, SHORT or LONG key."""
        value = self._layers.values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no_value(name, "an integer")
        return value

    def get_bool(self, name: str) -> bool:
        """Return the value of a BOOLEAN key."""
        value = self._layers.values[name]
        if not isinstance(value, bool):
            raise _no_value(name, "a boolean")
        return value

    def get_float(self, name: str) -> float:
        """Return the value of a DOUBLE key, or of an integer key as a float."""
        value = self._layers.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _no_value(name, "a number")
        return float(value)

    def get_str(self, name: str) -> str:
        """Return the value of a STRING key."""
        value = self._layers.values[name]
        if not isinstance(value, str):
            raise _no_value(name, "a string")
        return value

    def get_optional_str(self, name: str) -> str | None:
        """Return the value of a STRING key, or None if it has none."""
        return None if self._layers.values[name] is None else self.get_str(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        """Return the items of a LIST key."""
        value = self._layers.values[name]
        if not isinstance(value, tuple):
            raise _no_value(name, "a list")
        return value

    def text(self, name: str) -> str | None:
        """Return the value of any key as Kafka's tools show it; None if it has none or is sensitive."""
        return None if BROKER_KEYS[name].is_sensitive else value_text(self._layers.values[name])

    def source(self, name: str) -> ConfigSource:
        """Return the layer that a key's value comes from."""
        return self._layers.source(name)

    # --- changes at run time

    def check_dynamic(self, settings: Mapping[str, str], *, for_all_brokers: bool) -> None:
        """Raise ConfigError, in Kafka's words, if these settings cannot be set at run time."""
        _check_sizes(settings)
        fixed = [name for name in settings if name in ALIASES or _is_read_only(name)]
        if fixed:
            raise ConfigError(f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
        values = {name: self._dynamic_key(name).parse(given) for name, given in settings.items()}
        own = [name for name in settings if BROKER_KEYS[name].update_mode == "per-broker"]
        if own and for_all_brokers:
            raise ConfigError(
                "Cannot update these configs at default cluster level, broker id must be specified: "
                f"Set({', '.join(own)})"
            )
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER if for_all_brokers else ConfigSource.DYNAMIC_BROKER
        self._layers.replaced(source, values)

    def set_dynamic(self, for_all_brokers: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
        """Apply the settings made at run time; return a message for each one that this version ignores."""
        problems: list[str] = []
        layers = ConfigLayers({ConfigSource.STATIC_BROKER: self._static})
        for source, settings in (
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, for_all_brokers),
            (ConfigSource.DYNAMIC_BROKER, own),
        ):
            try:
                layers = layers.replaced(source, self._sound(settings, problems))
            except ConfigError as refusal:
                problems.append(f"ignoring the settings made at run time: {refusal}")
        self._layers = layers
        return problems

    def _sound(self, settings: Mapping[str, str], problems: list[str]) -> dict[str, Value]:
        """Return the valid settings: a setting that another version stored must not stop a broker from serving."""
        sound: dict[str, Value] = {}
        for name, given in settings.items():
            try:
                if _is_read_only(name):
                    raise ConfigError("it is read only when the broker starts")
                sound[name] = self._dynamic_key(name).parse(given)
            except ConfigError as refusal:
                problems.append(f"ignoring {name}, which was set at run time: {refusal}")
        return sound

    def _dynamic_key(self, name: str) -> ConfigKey:
        key = BROKER_KEYS.get(name)
        if key is None:
            if name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES):
                raise ConfigError(f"{name} has no effect in tailrace")
            raise self._unknown(name)
        return key

    # --- descriptions of values

    def broker_givens(self, name: str) -> list[Given]:
        """Return every value that was given for a key or for the keys that it replaces, in order of precedence."""
        family = next((names for names in FAMILIES if name in names), (name,))
        found = self._layers.givens(family)
        first = next((position for position, given in enumerate(found) if given.name == name), len(found))
        return found[first:]

    def topic_givens(self, name: str, overrides: Mapping[str, str]) -> list[Given]:
        """Return every value given for a topic's key, by the topic and by its broker keys, in Kafka's order."""
        key = _topic_key(name)
        of_broker = self._layers.givens([synonym.name for synonym in key.synonyms])
        if name not in overrides:
            return of_broker
        return [Given(name, value_text(key.parse(overrides[name])), ConfigSource.TOPIC), *of_broker]

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> Given:
        """Return the value of a topic's key, and where it comes from."""
        if name in overrides:
            return Given(name, value_text(_topic_key(name).parse(overrides[name])), ConfigSource.TOPIC)
        default = self.topic_default(name)
        return Given(name, default.value, default.source)

    def topic_values(self, overrides: Mapping[str, str]) -> list[Given]:
        """Return the value of every topic key."""
        return [self.topic_value(name, overrides) for name in TOPIC_KEYS]

    # --- values for topics

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return the configuration of a topic's log."""
        values = {**self._layers.topic_values, **_parsed(overrides)}
        policies = values["cleanup.policy"]
        if not isinstance(policies, tuple):
            raise _no_value("cleanup.policy", "a list")
        codec = _CODECS[str(values["compression.type"])]
        is_archived = values["tailrace.archive.enable"] is True and "compact" not in policies
        return LogConfig(
            segment_bytes=_whole(values, "segment.bytes"),
            segment_ms=_whole(values, "segment.ms"),
            segment_index_bytes=_whole(values, "segment.index.bytes"),
            index_interval_bytes=_whole(values, "index.interval.bytes"),
            retention_ms=_retention(values, "retention.ms", is_archived),
            retention_bytes=_retention(values, "retention.bytes", is_archived),
            file_delete_delay_ms=_whole(values, "file.delete.delay.ms"),
            max_message_bytes=_whole(values, "max.message.bytes"),
            flush_messages=_whole(values, "flush.messages"),
            flush_ms=_whole(values, "flush.ms"),
            log_append_time=values["message.timestamp.type"] == "LogAppendTime",
            timestamp_before_max_ms=_whole(values, "message.timestamp.before.max.ms"),
            timestamp_after_max_ms=_whole(values, "message.timestamp.after.max.ms"),
            delete_expired="delete" in policies,
            compact="compact" in policies,
            min_cleanable_ratio=_number(values, "min.cleanable.dirty.ratio"),
            delete_retention_ms=_whole(values, "delete.retention.ms"),
            min_compaction_lag_ms=_whole(values, "min.compaction.lag.ms"),
            max_compaction_lag_ms=_whole(values, "max.compaction.lag.ms"),
            is_archived=is_archived,
            archive_uri=str(values["tailrace.archive.uri"]) if is_archived else "",
            drops_unarchived=values["tailrace.archive.lag.policy"] == "drop",
            max_producers=self.get_int("tailrace.producer.ids.per.partition"),
            compression=codec,
            compression_level=_whole(values, level) if (level := _LEVELS.get(codec)) is not None else None,
            validates_records=values["tailrace.records.validate"] is True,
        )

    def topic_int(self, name: str, overrides: Mapping[str, str]) -> int:
        """Return the value of an integer topic key, such as min.insync.replicas."""
        given = overrides.get(name)
        return _whole({name: self._layers.topic_values[name] if given is None else TOPIC_KEYS[name].parse(given)}, name)

    def topic_bool(self, name: str, overrides: Mapping[str, str]) -> bool:
        """Return the value of a boolean topic key."""
        given = overrides.get(name)
        return (self._layers.topic_values[name] if given is None else TOPIC_KEYS[name].parse(given)) is True

    def topic_default(self, name: str) -> TopicDefault:
        """Return the value of a topic key that the topic does not override."""
        value, broker_key = self._layers.topic_default(_topic_key(name))
        source = ConfigSource.DEFAULT if broker_key is None else self.source(broker_key)
        return TopicDefault(value_text(value) or "", source, broker_key or name)

    def validate_topic_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raise ConfigError, in Kafka's words, for the first override that is unknown or not allowed."""
        _check_sizes(overrides)
        check_together({**self._layers.topic_values, **_parsed(overrides)})

    def _effective(self, settings: Mapping[str, object], warnings: list[str]) -> dict[str, object]:
        """Return the settings that take effect, under tailrace's names; warn about the others or refuse them."""
        effective: dict[str, object] = {}
        for name, given in settings.items():
            if name in BROKER_KEYS:
                effective[name] = given
            elif name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES):
                warnings.append(f"{name} has no effect in tailrace{self._place(name)}")
            elif name not in ALIASES:
                raise self._unknown(name)
        for alias, name in ALIASES.items():
            if alias not in settings:
                continue
            if name not in settings:
                effective[name] = settings[alias]
                if alias in self._origins:
                    self._origins[name] = self._origins[alias]
            elif name == "node.id" and as_text(settings[name]) != as_text(settings[alias]):
                raise ConfigError(
                    f"node.id is {settings[name]} and {alias} is {settings[alias]}{self._place(alias)}: both name "
                    "the same setting, so give only one"
                )
        return effective

    def _parse(self, key: ConfigKey, given: object) -> Value:
        try:
            return key.parse(given)
        except ConfigError as refusal:
            raise ConfigError(f"{refusal}{self._place(key.name)}") from None

    def _endpoints(
        self, controllers: tuple[str, ...], warnings: list[str]
    ) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
        """Parse the listeners, except those that only Kafka's controllers would use."""
        name = "listener.security.protocol.map"
        try:
            protocols = parse_protocol_map(self.get_list(name))
            name = "listeners"
            listeners = parse_endpoints(self.get_list(name), protocols, left_out=controllers)
            if not listeners:
                raise EndpointError("No listener remains for clients: all of them are controller listeners")
            check_ports_differ(listeners)
            if len(listeners) < len(self.get_list(name)):
                warnings.append(
                    f"listeners: ignoring {', '.join(controllers)}, because tailrace has no controller "
                    f"listeners{self._place(name)}"
                )
            if self._layers.values["advertised.listeners"] is None:
                return listeners, advertise(listeners, _host_name)
            name = "advertised.listeners"
            advertised = parse_endpoints(self.get_list(name), protocols, left_out=controllers)
            check_advertised(advertised, listeners)
        except EndpointError as problem:
            refusal = BROKER_KEYS[name].refusal(self.text(name), str(problem))
            raise ConfigError(f"{refusal}{self._place(name)}") from None
        # A listener that is not advertised explicitly is reachable under its own address.
        named = [endpoint.listener_name for endpoint in advertised]
        rest = [listener for listener in listeners if listener.listener_name not in named]
        return listeners, advertised + advertise(rest, _host_name)

    def _unknown(self, name: str) -> ConfigError:
        from difflib import get_close_matches

        if name.startswith(("ssl.", "sasl.", "listener.name.", "authorizer.")):
            why = "tailrace only supports PLAINTEXT listeners without authentication so far"
        else:
            nearest = get_close_matches(name, [*BROKER_KEYS, *ALIASES], n=1)
            why = f"did you mean {nearest[0]}?" if nearest else "docs/configuration.md lists all keys"
        return ConfigError(f"Unknown configuration {name}{self._place(name)}: {why}")

    def _place(self, name: str) -> str:
        origin = self._origins.get(name)
        return f" ({origin})" if origin else ""


def load_config(path: str | None, overrides: Mapping[str, str]) -> BrokerConfig:
    """Read a .properties or .toml file, apply the overrides and check the result."""
    settings, origins = gather_settings(path, overrides)
    return BrokerConfig(settings, origins=origins)


def gather_settings(path: str | None, overrides: Mapping[str, str]) -> tuple[dict[str, object], dict[str, str]]:
    """Return the unchecked settings of a file with the overrides applied, and where each was written."""
    from tailrace.broker.config.file import read_settings

    settings: dict[str, object] = {}
    origins: dict[str, str] = {}
    if path is not None:
        replaced = _names_of_same_settings(overrides)
        for entry in read_settings(path):
            if entry.name not in replaced:
                settings[entry.name] = entry.value
                origins[entry.name] = entry.origin
    for name, value in overrides.items():
        settings[name] = value
        origins[name] = "command line"
    return settings, origins


def _names_of_same_settings(names: Collection[str]) -> list[str]:
    """Return all names under which a file may set the same settings as these names.

    Without this, log.retention.hours on the command line would lose against log.retention.ms in the file.
    """
    families = [(key.name, *key.aliases) for key in BROKER_KEYS.values()]
    found = list(names)
    for family in [*families, *FAMILIES]:
        if any(name in family for name in names):
            found.extend(family)
    return found


def _is_read_only(name: str) -> bool:
    key = BROKER_KEYS.get(name)
    return key is not None and key.update_mode == "read-only"


def _listener_names(given: object) -> tuple[str, ...]:
    return tuple(name.strip().upper() for name in (as_text(given) or "").split(",") if name.strip())


def _topic_key(name: str) -> TopicKey:
    key = TOPIC_KEYS.get(name)
    if key is None:
        from difflib import get_close_matches

        nearest = get_close_matches(name, TOPIC_KEYS, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"Unknown topic config name: {name}{hint}")
    return key


def _check_sizes(settings: Mapping[str, str]) -> None:
    """Refuse values that are too long for Kafka, in its words, before anything parses them."""
    for name, value in settings.items():
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise ConfigError(
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_BYTES} bytes: {name[:_SHOWN_CHARACTERS]}"
            )


def _parsed(overrides: Mapping[str, str]) -> dict[str, Value]:
    return {name: _topic_key(name).parse(given) for name, given in overrides.items()}


def _whole(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise _no_value(name, "an integer")
    return value


def _retention(values: Mapping[str, Value], name: str, is_archived: bool) -> int:
    """Return how long, or how much of, a log a broker keeps on its own disk."""
    local = _whole(values, f"local.{name}") if is_archived else _AS_RETENTION
    return _whole(values, name) if local == _AS_RETENTION else local


def _number(values: Mapping[str, Value], name: str) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _no_value(name, "a number")
    return float(value)


def _no_value(name: str, kind: str) -> ConfigError:
    return ConfigError(f"Configuration {name} does not hold {kind}")


def _host_name() -> str:
    import socket

    return socket.gethostname()
