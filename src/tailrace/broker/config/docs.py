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

A broker starts without any configuration: it listens on {listeners} and keeps its data in `./{log_dirs}`. \
Everything else is a key. A key that Kafka has too has Kafka's name; keys that only tailrace has begin with \
`tailrace.`, except `metrics.host` and `metrics.port`.

## Giving configuration

A file, in the syntax of Kafka's `server.properties`:

```properties
# tailrace serve --config server.properties
listeners=PLAINTEXT://0.0.0.0:9092
advertised.listeners=PLAINTEXT://queue.example.org:9092
log.dirs=/var/lib/tailrace
log.retention.hours=72
```

or in TOML, if its name ends in `.toml`. Dotted keys, tables and quoted keys mean the same; a list may be a \
TOML array:

```toml
# tailrace serve --config tailrace.toml
listeners = ["PLAINTEXT://0.0.0.0:9092"]
log.dirs = "/var/lib/tailrace"
log.retention.hours = 72
max.connections = 1000
"max.connections.per.ip" = 50  # in quotes, because in TOML no key can be the prefix of another
```

Single keys on the command line override the file, also if the file sets the same thing under another name: \
`log.retention.hours` on the command line overrides `log.retention.ms` in the file.

```sh
tailrace serve --config server.properties --set log.retention.hours=24 --set num.partitions=3
```

Files must be UTF-8. Environment variables are not read. If a properties file sets a key twice, the last value \
applies. With an invalid value or an unknown key, the broker does not start; the message names the key, the value, \
what is allowed, and the file and line (for a TOML file, only the file).

The `server.properties` that Kafka ships works unchanged. Keys without an effect here are accepted \
with a warning: {no_effect}, and all that begin with {no_effect_prefixes}. The listeners in \
`controller.listener.names` are ignored. Keys for TLS, SASL and authorization are refused, not ignored, \
because tailrace does not have these yet.

## Changing configuration while the broker runs

Topic keys, and the broker keys whose last column below says so, take effect without a restart, and survive one:

```sh
tailrace config set topic orders retention.ms=86400000         # one topic
tailrace config set broker-default log.retention.ms=604800000  # every broker
tailrace config set broker 1 max.connections=2000              # one broker
tailrace config get topic orders --all                         # values, and where each comes from
```

`kafka-configs` and any admin client do the same. A value set for the topic takes precedence, then one set for the \
broker, then one set for all brokers, then one given at the start, then the default. For debugging, `kafka-configs \
--entity-type broker-loggers` sets the level of a logger, such as `tailrace.broker=DEBUG`, until the broker stops.

## What is durable by default

A record is acknowledged once it has been written to the operating system. It then survives the end of the \
broker process, also by `kill -9`. A power failure or a crash of the machine can lose what is not synced to disk \
yet. A sync of the log starts in the background at most {background_ms} ms after a write, or \
once {background_bytes} have been written. Such a crash can lose that much, and what is written until the sync ends.

| to get | set |
|---|---|
| every acknowledged record on disk, at the cost of a sync before each response | `log.flush.interval.messages=1`, \
or `flush.messages=1` for a topic |
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
        "The last column says whether a change requires a restart.",
        "",
    ]
    lines += _table(BROKER_KEYS.values())
    lines += [
        "",
        "## Topic keys",
        "",
        "A topic may override these keys. If it does not, the first of the broker keys in the last column that "
        "has a value applies.",
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
