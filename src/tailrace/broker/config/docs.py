"""Writes docs/configuration.md from the tables of keys.

Invariant: the page shows exactly the keys, defaults and bounds that the broker checks. Nothing that serves requests
imports this module. Run it with `python -m tailrace.broker.config.docs [file]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tailrace.broker.config.broker_config import BROKER_KEYS, TOPIC_KEYS, ConfigKey, ConfigType
from tailrace.broker.config.keys import NO_EFFECT, NO_EFFECT_PREFIXES
from tailrace.broker.config.types import INT_MAX, LONG_MAX, OneOf, value_text

_INTRODUCTION = """\
<!-- Written by `python -m tailrace.broker.config.docs`; change the tables in src/tailrace/broker, not this page. -->
# Configuration

A broker needs no configuration: by default it listens on {listeners} and keeps its data in `./{log_dirs}`. \
Keys have Kafka's names where Kafka has the same key. Keys that only tailrace has begin with `tailrace.`, except \
`metrics.host` and `metrics.port`.

## Giving configuration

In a file, in the syntax of Kafka's `server.properties`:

```properties
# tailrace serve --config server.properties
listeners=PLAINTEXT://0.0.0.0:9092
advertised.listeners=PLAINTEXT://queue.example.org:9092
log.dirs=/var/lib/tailrace
log.retention.hours=72
```

or in a TOML file, whose name ends in `.toml`. Dotted keys, tables and quoted keys mean the same, and lists may be \
TOML lists:

```toml
# tailrace serve --config tailrace.toml
listeners = ["PLAINTEXT://0.0.0.0:9092"]
log.dirs = "/var/lib/tailrace"
log.retention.hours = 72
max.connections = 1000
"max.connections.per.ip" = 50  # quoted: in TOML, a key that has a value cannot also be a table
```

On the command line, `--set` overrides the file, even if the two use different keys for one setting: \
`--set log.retention.hours=24` overrides `log.retention.ms` in the file.

```sh
tailrace serve --config server.properties --set log.retention.hours=24 --set num.partitions=3
```

Files are UTF-8. Environment variables set no keys. If a properties file sets a key twice, the last one counts. The \
broker does not start with an unknown key or a value that is not allowed; the error names the key, the value, what is \
allowed, the file, and its line (for TOML only the file).

You can use the `server.properties` that Kafka ships as it is. The broker accepts keys that have no meaning here, with \
a warning: {no_effect}, and all that begin with {no_effect_prefixes}. It leaves out the listeners that \
`controller.listener.names` names. It refuses keys for TLS, SASL and authorization: tailrace does not have these yet, \
and must not ignore a key that protects something.

## Changing configuration while the broker runs

Changes to topic keys, and to broker keys marked *running* below, take effect without a restart and survive restarts:

```sh
tailrace config set topic orders retention.ms=86400000         # one topic
tailrace config set broker-default log.retention.ms=604800000  # every broker
tailrace config set broker 1 max.connections=2000              # one broker
tailrace config get topic orders --all                         # values, and where each comes from
```

`kafka-configs` and any admin client do the same. The first of these that has a value applies: the topic, this broker, \
all brokers, the file or command line of the broker, the default. To log more for a while, `kafka-configs \
--entity-type broker-loggers` sets the level of a logger, such as `tailrace.broker=DEBUG`, until the broker stops.

## What is durable by default

A record is acknowledged when it has been written to the operating system. It then survives the end of the \
broker process, `kill -9` included. A power cut or a crash of the machine loses what is not on disk yet. A background \
sync of the log starts at most {background_ms} ms after a write, or as soon as {background_bytes} were written. Such a \
crash can therefore lose what was written in that time, and while the sync was running.

| to get | set |
|---|---|
| every acknowledged record on disk, at the price of a sync before each acknowledgement | \
`log.flush.interval.messages=1`, or `flush.messages=1` for a topic |
| fewer than N unsynced records of a log whenever an acknowledgement is sent | `log.flush.interval.messages=N`, \
or `flush.messages=N` for a topic |
| an earlier sync in the background | `tailrace.flush.background.ms`, `log.flush.interval.ms`, \
or `flush.ms` for a topic |
| no timed sync in the background | `tailrace.flush.background.ms=-1` |
"""

_CHANGES = {"read-only": "restart", "per-broker": "running, each broker on its own", "cluster-wide": "running"}

_UNITS = {
    ".bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    ".ms": ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")),
}


def render() -> str:
    """Return the whole page."""
    introduction = _INTRODUCTION.format(
        listeners=f"`{value_text(BROKER_KEYS['listeners'].default)}`",
        log_dirs=value_text(BROKER_KEYS["log.dirs"].default),
        no_effect=", ".join(f"`{name}`" for name in NO_EFFECT),
        no_effect_prefixes=", ".join(f"`{prefix}`" for prefix in NO_EFFECT_PREFIXES),
        background_ms=BROKER_KEYS["tailrace.flush.background.ms"].default,
        background_bytes=_in_units("tailrace.flush.background.bytes"),
    )
    lines = [
        introduction,
        "## Broker keys",
        "",
        "The last column says whether you can change a key while the broker is running, or need a restart.",
        "",
    ]
    lines += _table(BROKER_KEYS.values())
    lines += [
        "",
        "## Topic keys",
        "",
        "Each topic can set these. If it does not, the first broker key in the last column that has a value applies.",
        "",
        "| key | type | default | allowed | meaning | broker keys |",
        "|---|---|---|---|---|---|",
    ]
    for key in TOPIC_KEYS.values():
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)
        lines.append(f"{_row(key)} {synonyms} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page to the given file, or to docs/configuration.md."""
    path = Path(arguments[0] if arguments else "docs/configuration.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(), encoding="utf-8")
    return 0


def _table(keys: Iterable[ConfigKey]) -> list[str]:
    rows = [f"{_row(key)} {_CHANGES[key.update_mode]} |" for key in keys]
    return ["| key | type | default | allowed | meaning | change |", "|---|---|---|---|---|---|", *rows]


def _row(key: ConfigKey) -> str:
    name = " ".join([f"`{key.name}`", *(f"(also `{alias}`)" for alias in key.aliases)])
    return f"| {name} | {key.type.name.lower()} | {_default(key)} | {_allowed(key)} | {key.documentation} |"


def _allowed(key: ConfigKey) -> str:
    if key.type is ConfigType.BOOLEAN:
        return "`true`, `false`"
    if isinstance(key.valid, OneOf):
        return ", ".join(f"`{choice}`" for choice in key.valid.choices)
    return "" if key.valid is None else str(key.valid)


def _default(key: ConfigKey) -> str:
    text = value_text(key.default)
    if text is None:
        return "none"
    if key.default in (INT_MAX, LONG_MAX) and not isinstance(key.default, bool):
        return f"`{text}` (no limit)"
    readable = _readable(key)
    return f"`{text}`" if readable is None else f"`{text}` ({readable})"


def _in_units(name: str) -> str:
    return _readable(BROKER_KEYS[name]) or f"{value_text(BROKER_KEYS[name].default)} bytes"


def _readable(key: ConfigKey) -> str | None:
    """Return a size or duration in its largest whole unit, or None if its number is the most readable form."""
    for suffix, units in _UNITS.items():
        if key.name.endswith(suffix) and isinstance(key.default, int) and key.default > 0:
            for size, unit in units:
                if key.default % size == 0:
                    return f"{key.default // size} {unit}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
