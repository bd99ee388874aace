"""The `kafka.*` options: the settings of a Kafka consumer, as far as they apply to this source.

Owns which settings are applied, which are accepted because they change nothing that a query could see, and which are
refused because ignoring them would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from tailrace.pipeline.failures import OptionError
from tailrace.protocol_client.errors import UnsupportedSettingError
from tailrace.protocol_client.security import SecuritySettings, is_security_setting, security_settings
from tailrace.protocol_client.settings import Address, ClusterSettings, ConnectionSettings, split_address

DEFAULT_CLIENT_ID = "tailrace-spark"
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
_ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}

#: Applied settings, with their defaults.
_NUMBERS = {
    # Kafka's default of 1 MB would make every response small; tasks should read as much as they can.
    "max.partition.fetch.bytes": 8 << 20,
    "fetch.max.wait.ms": 500,
    "receive.buffer.bytes": -1,
    "request.timeout.ms": 30_000,
    "default.api.timeout.ms": 60_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "retry.backoff.ms": 100,
}
_TEXTS = ("bootstrap.servers", "client.id", "group.id", "isolation.level")
#: Settings of a consumer without an effect here: there is no group to maintain, and fetches are as large as possible.
_WITHOUT_EFFECT = frozenset(
    (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    )
)
#: Refused by Spark's Kafka connector too, and why.
_REFUSED = {
    "auto.offset.reset": "use 'startingOffsets' to say where to begin",
    "enable.auto.commit": "the source never commits by itself; Spark's checkpoint holds the offsets",
    "interceptor.classes": "interceptors may change records unseen",
    "key.deserializer": "keys are always binary; cast them in the query",
    "value.deserializer": "values are always binary; cast them in the query",
    "key.serializer": "it is for writing, and keys are written unchanged",
    "value.serializer": "it is for writing, and values are written unchanged",
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings for connections and requests to brokers."""

    cluster: ClusterSettings
    group_id: str | None
    isolation_level: int
    fetch_bytes: int
    fetch_wait_ms: int


def parse_client_settings(client: Mapping[str, str]) -> ClientSettings:
    """Check the settings of a client, given without their prefix `kafka.`."""
    for name in client:
        _check_name(name)
    security = check_security(client)
    bootstrap = client.get("bootstrap.servers", "")
    if not bootstrap:
        raise OptionError("option 'kafka.bootstrap.servers' is missing; expected addresses such as localhost:9092")
    check_addresses(bootstrap)
    isolation = client.get("isolation.level", "read_uncommitted").lower()
    if isolation not in _ISOLATION_LEVELS:
        raise OptionError(
            f"option 'kafka.isolation.level' is '{isolation}'; expected read_uncommitted or read_committed"
        )
    numbers = {name: _number(name, client.get(name), default) for name, default in _NUMBERS.items()}
    return ClientSettings(
        cluster=ClusterSettings(
            bootstrap,
            ConnectionSettings(
                client_id=client.get("client.id") or DEFAULT_CLIENT_ID,
                connect_timeout_ms=numbers["socket.connection.setup.timeout.ms"],
                request_timeout_ms=numbers["request.timeout.ms"],
                receive_buffer_bytes=numbers["receive.buffer.bytes"],
                security=security,
            ),
            api_timeout_ms=numbers["default.api.timeout.ms"],
            retry_backoff_ms=numbers["retry.backoff.ms"],
            retry_backoff_max_ms=numbers["retry.backoff.ms"],
        ),
        group_id=client.get("group.id") or None,
        isolation_level=_ISOLATION_LEVELS[isolation],
        fetch_bytes=numbers["max.partition.fetch.bytes"],
        fetch_wait_ms=numbers["fetch.max.wait.ms"],
    )


def check_security(client: Mapping[str, str]) -> SecuritySettings:
    """Return the security that a client's settings demand; OptionError if it is more than plaintext."""
    try:
        return security_settings(client)
    except UnsupportedSettingError as error:
        raise OptionError(
            f"option 'kafka.{error.setting}' is not supported yet: the data source tailrace only supports "
            "plaintext connections"
        ) from None


def check_addresses(bootstrap: str) -> list[Address]:
    """Parse the addresses of the option `kafka.bootstrap.servers`."""
    found = []
    for address in bootstrap.split(","):
        try:
            found.append(split_address(address))
        except ValueError:
            raise OptionError(f"option 'kafka.bootstrap.servers' has '{address.strip()}'; expected HOST:PORT") from None
    return found


def _check_name(name: str) -> None:
    if name in _NUMBERS or name in _TEXTS or name in _WITHOUT_EFFECT or is_security_setting(name):
        return
    if name in _REFUSED:
        raise OptionError(f"option 'kafka.{name}' is not supported: {_REFUSED[name]}")
    near = get_close_matches(name, [*_NUMBERS, *_TEXTS, *sorted(_WITHOUT_EFFECT)], n=1)
    hint = f"; did you mean 'kafka.{near[0]}'?" if near else ""
    raise OptionError(f"unknown option 'kafka.{name}'{hint}")


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.lstrip("-").isdigit() or int(text) < min(default, 0):
        raise OptionError(f"option 'kafka.{name}' is '{text}'; expected a whole number")
    return int(text)
