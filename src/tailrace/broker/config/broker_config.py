"""The broker's configuration: raw values checked against the tables, then read without surprises.

Owns the one `BrokerConfig` of a broker. What a key is comes from the first of four layers that gives it a value:
what was set at run time for this broker, what was set at run time for all brokers, what the broker was started
with, and the default. Only the first two ever change, as a whole, and only to valid values; whoever reads a key
when it is needed sees the change. The environment is never read. It must not know handlers, logs or sockets.
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


#: What `compression.type` stands for; None is the producer's own choice.
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
#: Where the level of a codec is configured, for those that have one.
_LEVELS: Mapping[Compression | None, str] = MappingProxyType(
    {
        Compression.GZIP: "compression.gzip.level",
        Compression.LZ4: "compression.lz4.level",
        Compression.ZSTD: "compression.zstd.level",
    }
)
#: What a broker keeps of an archived topic where that is not set: as much as of any other.
_AS_RETENTION = -2
#: The longest value of a key that is set at run time, as in Kafka; it goes into the metadata store.
MAX_VALUE_BYTES = 32_767
_SHOWN_CHARACTERS = 100


class TopicDefault(NamedTuple):
    """What a topic key is where the topic does not override it, and which broker key says so."""

    value: str
    source: ConfigSource
    broker_key: str


class BrokerConfig:
    """Every setting of one broker, checked."""

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
        """Check raw settings (text, or values as TOML types them); `origins` says where each was written."""
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
        """The settings that were given, as text, under the names used here."""
        return self._raw

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was accepted although it changes nothing here."""
        return self._warnings

    @property
    def listeners(self) -> tuple[Endpoint, ...]:
        """Where to listen."""
        return self._listeners

    @property
    def advertised_listeners(self) -> tuple[Endpoint, ...]:
        """Where clients are told to connect; a port 0 stands for the port its listener was given."""
        return self._advertised_listeners

    def get_int(self, name: str) -> int:
        """The value of an INT, SHORT or LONG key."""
        value = self._layers.values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no_value(name, "an integer")
        return value

    def get_bool(self, name: str) -> bool:
        """The value of a BOOLEAN key."""
        value = self._layers.values[name]
        if not isinstance(value, bool):
            raise _no_value(name, "a boolean")
        return value

    def get_float(self, name: str) -> float:
        """The value of a DOUBLE key, or of a whole number as a float."""
        value = self._layers.values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _no_value(name, "a number")
        return float(value)

    def get_str(self, name: str) -> str:
        """The value of a STRING key."""
        value = self._layers.values[name]
        if not isinstance(value, str):
            raise _no_value(name, "a string")
        return value

    def get_optional_str(self, name: str) -> str | None:
        """The value of a STRING key, or None where it has none."""
        return None if self._layers.values[name] is None else self.get_str(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        """The items of a LIST key."""
        value = self._layers.values[name]
        if not isinstance(value, tuple):
            raise _no_value(name, "a list")
        return value

    def text(self, name: str) -> str | None:
        """The value of any key as Kafka's tools show it, None where it has none or must not be shown."""
        return None if BROKER_KEYS[name].is_sensitive else value_text(self._layers.values[name])

    def source(self, name: str) -> ConfigSource:
        """Where a key's value comes from."""
        return self._layers.source(name)

    # --- what is set while the broker runs

    def check_dynamic(self, settings: Mapping[str, str], *, for_all_brokers: bool) -> None:
        """Raise ConfigError, in Kafka's words, where these cannot be what is set at run time."""
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
        """Go by what is set at run time from now on; what this version does not take is left out and said."""
        problems: list[str] = []
        layers = ConfigLayers({ConfigSource.STATIC_BROKER: self._static})
        for source, settings in (
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, for_all_brokers),
            (ConfigSource.DYNAMIC_BROKER, own),
        ):
            try:
                layers = layers.replaced(source, self._sound(settings, problems))
            except ConfigError as refusal:
                problems.append(f"what is set at run time is left out: {refusal}")
        self._layers = layers
        return problems

    def _sound(self, settings: Mapping[str, str], problems: list[str]) -> dict[str, Value]:
        """The settings that are valid here: what another version stored must not keep a broker from serving."""
        sound: dict[str, Value] = {}
        for name, given in settings.items():
            try:
                if _is_read_only(name):
                    raise ConfigError("it is read when the broker starts")
                sound[name] = self._dynamic_key(name).parse(given)
            except ConfigError as refusal:
                problems.append(f"{name}, set at run time, is left out: {refusal}")
        return sound

    def _dynamic_key(self, name: str) -> ConfigKey:
        key = BROKER_KEYS.get(name)
        if key is None:
            if name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES):
                raise ConfigError(f"{name} has no effect in tailrace")
            raise self._unknown(name)
        return key

    # --- what is told of values

    def broker_givens(self, name: str) -> list[Given]:
        """Every value that a key was given, the one that counts first, and those of the keys it stands in for."""
        family = next((names for names in FAMILIES if name in names), (name,))
        found = self._layers.givens(family)
        first = next((position for position, given in enumerate(found) if given.name == name), len(found))
        return found[first:]

    def topic_givens(self, name: str, overrides: Mapping[str, str]) -> list[Given]:
        """Every value that a topic's key was given, by the topic and by the broker keys behind it, in Kafka's order."""
        key = _topic_key(name)
        of_broker = self._layers.givens([synonym.name for synonym in key.synonyms])
        if name not in overrides:
            return of_broker
        return [Given(name, value_text(key.parse(overrides[name])), ConfigSource.TOPIC), *of_broker]

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> Given:
        """The value of a topic's key, and where it comes from."""
        if name in overrides:
            return Given(name, value_text(_topic_key(name).parse(overrides[name])), ConfigSource.TOPIC)
        default = self.topic_default(name)
        return Given(name, default.value, default.source)

    def topic_values(self, overrides: Mapping[str, str]) -> list[Given]:
        """The value of every topic key."""
        return [self.topic_value(name, overrides) for name in TOPIC_KEYS]

    # --- what topics get

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """What a log of a topic with these overrides goes by."""
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
        """The value of one whole-numbered topic key, such as min.insync.replicas."""
        given = overrides.get(name)
        return _whole({name: self._layers.topic_values[name] if given is None else TOPIC_KEYS[name].parse(given)}, name)

    def topic_bool(self, name: str, overrides: Mapping[str, str]) -> bool:
        """The value of one topic key that is a yes or no."""
        given = overrides.get(name)
        return (self._layers.topic_values[name] if given is None else TOPIC_KEYS[name].parse(given)) is True

    def topic_default(self, name: str) -> TopicDefault:
        """What a topic key is where the topic does not override it."""
        value, broker_key = self._layers.topic_default(_topic_key(name))
        source = ConfigSource.DEFAULT if broker_key is None else self.source(broker_key)
        return TopicDefault(value_text(value) or "", source, broker_key or name)

    def validate_topic_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raise ConfigError, in Kafka's words, at the first override that is unknown or not allowed."""
        _check_sizes(overrides)
        check_together({**self._layers.topic_values, **_parsed(overrides)})

    def _effective(self, settings: Mapping[str, object], warnings: list[str]) -> dict[str, object]:
        """The settings that count, under their names here; the rest is warned about or refused."""
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
                    f"node.id is {settings[name]} and {alias} is {settings[alias]}{self._place(alias)}: "
                    "they name the same number, so give only one"
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
        """Parse the listeners, without those that only Kafka's controllers would use."""
        name = "listener.security.protocol.map"
        try:
            protocols = parse_protocol_map(self.get_list(name))
            name = "listeners"
            listeners = parse_endpoints(self.get_list(name), protocols, left_out=controllers)
            if not listeners:
                raise EndpointError("No listener is left for clients once those of controllers are taken away")
            check_ports_differ(listeners)
            if len(listeners) < len(self.get_list(name)):
                warnings.append(
                    f"listeners: {', '.join(controllers)} is left out, no controller listens in tailrace"
                    f"{self._place(name)}"
                )
            if self._layers.values["advertised.listeners"] is None:
                return listeners, advertise(listeners, _host_name)
            name = "advertised.listeners"
            advertised = parse_endpoints(self.get_list(name), protocols, left_out=controllers)
            check_advertised(advertised, listeners)
        except EndpointError as problem:
            refusal = BROKER_KEYS[name].refusal(self.text(name), str(problem))
            raise ConfigError(f"{refusal}{self._place(name)}") from None
        # A listener that is not advertised explicitly is still reachable under its own address.
        named = [endpoint.listener_name for endpoint in advertised]
        rest = [listener for listener in listeners if listener.listener_name not in named]
        return listeners, advertised + advertise(rest, _host_name)

    def _unknown(self, name: str) -> ConfigError:
        from difflib import get_close_matches

        if name.startswith(("ssl.", "sasl.", "listener.name.", "authorizer.")):
            why = "tailrace serves PLAINTEXT listeners without authentication so far"
        else:
            nearest = get_close_matches(name, [*BROKER_KEYS, *ALIASES], n=1)
            why = f"did you mean {nearest[0]}?" if nearest else "docs/configuration.md lists those there are"
        return ConfigError(f"Unknown configuration {name}{self._place(name)}: {why}")

    def _place(self, name: str) -> str:
        origin = self._origins.get(name)
        return f" ({origin})" if origin else ""


def load_config(path: str | None, overrides: Mapping[str, str]) -> BrokerConfig:
    """Read a .properties or .toml file, put the overrides over it and check the whole."""
    settings, origins = gather_settings(path, overrides)
    return BrokerConfig(settings, origins=origins)


def gather_settings(path: str | None, overrides: Mapping[str, str]) -> tuple[dict[str, object], dict[str, str]]:
    """The settings of a file with the overrides over them, unchecked, and where each was written."""
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
    """All names under which a file may set what these names set.

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
    """Refuse values that Kafka refuses, in its words, before anybody looks into them."""
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
    """How long, or how much, a broker itself keeps of a log."""
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
