"""The broker's configuration: raw values checked once against the tables, then read without surprises.

Owns the one immutable `BrokerConfig`. A value that passed the constructor is valid for as long as the broker
runs; the environment is never read. It must not know handlers, logs or sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from tailrace.broker.config_endpoints import (
    Endpoint,
    EndpointError,
    advertise,
    check_advertised,
    check_ports_differ,
    parse_endpoints,
    parse_protocol_map,
)
from tailrace.broker.config_keys import ALIASES, BROKER_KEYS, NO_EFFECT, NO_EFFECT_PREFIXES
from tailrace.broker.config_topic_keys import TOPIC_KEYS
from tailrace.broker.config_types import ConfigKey, ConfigType, TopicKey, Value, as_text, value_text
from tailrace.errors import ConfigError
from tailrace.storage.log_config import LogConfig

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS",
    "BrokerConfig",
    "ConfigKey",
    "ConfigType",
    "Endpoint",
    "Source",
    "TopicDefault",
    "TopicKey",
    "load_config",
]

Source = Literal["default", "static"]


class TopicDefault(NamedTuple):
    """What a topic key is where the topic does not override it, and which broker key says so."""

    value: str
    source: Source
    broker_key: str


class BrokerConfig:
    """Every setting of one broker, checked and immutable."""

    __slots__ = ("_advertised_listeners", "_listeners", "_origins", "_raw", "_topic_values", "_values", "_warnings")

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
        self._values: dict[str, Value] = {name: key.default for name, key in BROKER_KEYS.items()}
        for name, given in effective.items():
            self._values[name] = self._parse(BROKER_KEYS[name], given)
        controllers = _listener_names((settings or {}).get("controller.listener.names"))
        self._listeners, self._advertised_listeners = self._endpoints(controllers, warnings)
        self._warnings = tuple(warnings)
        self._topic_values = {name: self._topic_default(key)[0] for name, key in TOPIC_KEYS.items()}

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
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no_value(name, "an integer")
        return value

    def get_bool(self, name: str) -> bool:
        """The value of a BOOLEAN key."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise _no_value(name, "a boolean")
        return value

    def get_float(self, name: str) -> float:
        """The value of a DOUBLE key, or of a whole number as a float."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _no_value(name, "a number")
        return float(value)

    def get_str(self, name: str) -> str:
        """The value of a STRING key."""
        value = self._values[name]
        if not isinstance(value, str):
            raise _no_value(name, "a string")
        return value

    def get_optional_str(self, name: str) -> str | None:
        """The value of a STRING key, or None where it has none."""
        return None if self._values[name] is None else self.get_str(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        """The items of a LIST key."""
        value = self._values[name]
        if not isinstance(value, tuple):
            raise _no_value(name, "a list")
        return value

    def text(self, name: str) -> str | None:
        """The value of any key as Kafka's tools show it, None where it has none or must not be shown."""
        return None if BROKER_KEYS[name].is_sensitive else value_text(self._values[name])

    def source(self, name: str) -> Source:
        """Whether a key's value was given ("static") or is the default."""
        return "static" if name in self._raw else "default"

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """What a log of a topic with these overrides goes by."""
        values = self._topic_values | {name: _topic_key(name).parse(given) for name, given in overrides.items()}
        policies = values["cleanup.policy"]
        if not isinstance(policies, tuple):
            raise _no_value("cleanup.policy", "a list")
        return LogConfig(
            segment_bytes=_whole(values, "segment.bytes"),
            segment_ms=_whole(values, "segment.ms"),
            segment_index_bytes=_whole(values, "segment.index.bytes"),
            index_interval_bytes=_whole(values, "index.interval.bytes"),
            retention_ms=_whole(values, "retention.ms"),
            retention_bytes=_whole(values, "retention.bytes"),
            file_delete_delay_ms=_whole(values, "file.delete.delay.ms"),
            max_message_bytes=_whole(values, "max.message.bytes"),
            flush_messages=_whole(values, "flush.messages"),
            flush_ms=_whole(values, "flush.ms"),
            log_append_time=values["message.timestamp.type"] == "LogAppendTime",
            timestamp_before_max_ms=_whole(values, "message.timestamp.before.max.ms"),
            timestamp_after_max_ms=_whole(values, "message.timestamp.after.max.ms"),
            delete_expired="delete" in policies,
            compact="compact" in policies,
        )

    def topic_int(self, name: str, overrides: Mapping[str, str]) -> int:
        """The value of one whole-numbered topic key, such as min.insync.replicas."""
        given = overrides.get(name)
        return _whole({name: self._topic_values[name] if given is None else TOPIC_KEYS[name].parse(given)}, name)

    def topic_default(self, name: str) -> TopicDefault:
        """What a topic key is where the topic does not override it."""
        value, broker_key = self._topic_default(_topic_key(name))
        return TopicDefault(value_text(value) or "", self.source(broker_key), broker_key)

    def validate_topic_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raise ConfigError, in Kafka's words, at the first override that is unknown or not allowed."""
        for name, given in overrides.items():
            _topic_key(name).parse(given)

    def _topic_default(self, key: TopicKey) -> tuple[Value, str]:
        for synonym in key.synonyms:
            value = self._values[synonym.name]
            if value is not None:
                return synonym.convert(value), synonym.name
        return key.default, key.synonyms[-1].name

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
            if self._values["advertised.listeners"] is None:
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
    from tailrace.broker.config_file import read_settings

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
    return BrokerConfig(settings, origins=origins)


def _names_of_same_settings(names: Collection[str]) -> list[str]:
    """All names under which a file may set what these names set.

    Without this, log.retention.hours on the command line would lose against log.retention.ms in the file.
    """
    families = [(key.name, *key.aliases) for key in BROKER_KEYS.values()]
    families += [tuple(synonym.name for synonym in key.synonyms) for key in TOPIC_KEYS.values()]
    found = list(names)
    for family in families:
        if any(name in family for name in names):
            found.extend(family)
    return found


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


def _whole(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise _no_value(name, "an integer")
    return value


def _no_value(name: str, kind: str) -> ConfigError:
    return ConfigError(f"Configuration {name} does not hold {kind}")


def _host_name() -> str:
    import socket

    return socket.gethostname()
