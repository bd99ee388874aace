"""Writes docs/configuration.md out of the configuration tables.

Keeps one invariant: a key, a default or a bound on the page is the one the broker checks. Nothing that serves
requests imports it. Run it with `python -m tailrace.broker.config.docs [file]`.
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
Everything else is a key, named as Kafka names it wherever Kafka has the same one; keys that only tailrace has \
begin with `tailrace.`, save `metrics.host` and `metrics.port`.

## Giving configuration

A file, in the syntax of Kafka's `server.properties`:

```properties
# tailrace serve --config server.properties
listeners=PLAINTEXT://0.0.0.0:9092
advertised.listeners=PLAINTEXT://queue.example.org:9092
log.dirs=/var/lib/tailrace
log.retention.hours=72
```

or in TOML, which its `.toml` suffix says. Dotted keys, tables and quoted keys mean the same; a list may be \
written as one:

```toml
# tailrace serve --config tailrace.toml
listeners = ["PLAINTEXT://0.0.0.0:9092"]
log.dirs = "/var/lib/tailrace"
log.retention.hours = 72
max.connections = 1000
"max.connections.per.ip" = 50  # in quotes, because TOML lets no key continue another
```

Single keys on the command line count more than the file. This holds across names for the same setting too: \
`log.retention.hours` given here sets aside a `log.retention.ms` in the file.

```sh
tailrace serve --config server.properties --set log.retention.hours=24 --set num.partitions=3
```

Files are read as UTF-8. Environment variables are not read. Where a properties file sets a key twice, the last \
one counts. A value that is not allowed, or a key that does not exist, keeps the broker from starting, and the \
message names the key, the value, what would be right, and the file and line (of a TOML file only its name).

The `server.properties` that Kafka ships can be used as it is. Keys that have no meaning here are accepted \
with a warning: {no_effect}, and all that begin with {no_effect_prefixes}. The listeners in \
`controller.listener.names` are left out. Keys for TLS, SASL and authorization are refused rather \
than passed over, because tailrace does not have these yet.

## Changing configuration while the broker runs

Topic keys, and the broker keys whose last column below says so, take effect without a restart and outlive one:

```sh
tailrace config set topic orders retention.ms=86400000         # one topic
tailrace config set broker-default log.retention.ms=604800000  # every broker
tailrace config set broker 1 max.connections=2000              # one broker
tailrace config get topic orders --all                         # values, and where each comes from
```

`kafka-configs` and any admin client do the same. What counts is what was set for the topic, else for the broker, else \
for all brokers, else what the broker was started with, else the default. To look closer for a while, `kafka-configs \
--entity-type broker-loggers` sets the level of a logger, such as `tailrace.broker=DEBUG`, until the broker stops.

## What is durable by default

A record is acknowledged once it has been written to the operating system. It then survives the end of the \
broker process, `kill -9` included, but a power cut or a crash of the machine can take what the disk has not \
yet been made to keep. A sync of the log starts in the background at most {background_ms} ms after a write, or \
as soon as {background_bytes} have been written to it, so that, and what is written until \
the sync ends, is what such a crash can cost.

| to get | set |
|---|---|
| every acknowledged record on disk, at the price of a sync before each answer | `log.flush.interval.messages=1`, \
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
    """The whole page."""
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
        "The last column says whether a change takes a restart or can be made while the broker runs.",
        "",
    ]
    lines += _table(BROKER_KEYS.values())
    lines += [
        "",
        "## Topic keys",
        "",
        "A topic may override these. Where it does not, the first of the broker keys in the last column that has "
        "a value decides.",
        "",
        "| key | type | default | allowed | meaning | broker keys |",
        "|---|---|---|---|---|---|",
    ]
    for key in TOPIC_KEYS.values():
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)
        lines.append(f"{_row(key)} {synonyms} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page to the file named, or to docs/configuration.md under the working directory."""
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
    """A size or duration in its largest whole unit, or None where it is best as it stands."""
    for suffix, units in _UNITS.items():
        if key.name.endswith(suffix) and isinstance(key.default, int) and key.default > 0:
            for size, unit in units:
                if key.default % size == 0:
                    return f"{key.default // size} {unit}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
