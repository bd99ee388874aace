"""Configuration keys of a broker's identity, its addresses and its monitoring."""

from __future__ import annotations

from tailrace.broker.config.declaration import INT, LIST, LOG_FORMATS, LOG_LEVELS, STRING, key
from tailrace.broker.config.types import AtLeast, Between, ConfigKey, NonEmpty

#: The broker's identity and addresses.
IDENTITY_KEYS: tuple[ConfigKey, ...] = (
    key(
        "node.id",
        INT,
        1,
        "high",
        "The id of this broker. Every broker of a cluster needs its own.",
        AtLeast(0),
        aliases=("broker.id",),
    ),
    key(
        "cluster.id",
        STRING,
        None,
        "medium",
        "The id of the cluster. If it is not set, the first start generates one and stores it with the data.",
        NonEmpty(),
    ),
    key(
        "broker.rack",
        STRING,
        None,
        "medium",
        "The rack or availability zone of this broker. Clients see it, and replicas are spread over racks.",
    ),
    key(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "high",
        "The addresses to listen on, as `NAME://host:port`. An empty host or 0.0.0.0 means every interface, "
        "port 0 any free port. Put an IPv6 address in brackets.",
        NonEmpty(),
    ),
    key(
        "advertised.listeners",
        LIST,
        None,
        "high",
        "The addresses that clients connect to. A listener that is not named here is advertised as in "
        "`listeners`, with the machine's host name if it listens on every interface.",
        NonEmpty(),
    ),
    key(
        "listener.security.protocol.map",
        LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "low",
        "The security protocol of each listener name, as `NAME:PROTOCOL`. Only PLAINTEXT is served so far: a "
        "listener with any other protocol is refused.",
    ),
    key(
        "log.dirs",
        LIST,
        ("data",),
        "high",
        "The directories of the partition logs. A relative path starts at the working directory.",
        NonEmpty(),
        aliases=("log.dir",),
    ),
)

#: Monitoring.
OBSERVATION_KEYS: tuple[ConfigKey, ...] = (
    key(
        "metrics.port",
        INT,
        -1,
        "medium",
        "The HTTP port of `/metrics` (Prometheus), `/healthz` and `/readyz`; -1 means none, 0 any free port.",
        Between(0, 65535, special=-1),
    ),
    key(
        "metrics.host",
        STRING,
        "127.0.0.1",
        "medium",
        "The address that `metrics.port` listens on. There is no password: use 0.0.0.0 (every interface) only "
        "in networks where everybody may read the metrics.",
        NonEmpty(),
    ),
    key(
        "tailrace.log.format",
        STRING,
        "text",
        "low",
        "The format of the broker's log on standard error: lines of `text`, or one `json` object per line.",
        LOG_FORMATS,
    ),
    key(
        "tailrace.log.level",
        STRING,
        "INFO",
        "low",
        "The lowest level of events that are logged.",
        LOG_LEVELS,
    ),
    key(
        "tailrace.log.repeats.per.minute",
        INT,
        60,
        "low",
        "How many lines per minute are logged of each kind of event that clients can cause at will, such as "
        "refused connections and malformed requests. Further events are only counted.",
        AtLeast(1),
    ),
    key(
        "tailrace.loop.slow.step.ms",
        INT,
        100,
        "low",
        "A step of the event loop that takes this much CPU time is logged with its stack and counted in "
        "`tailrace_loop_slow_steps_total`, because all clients wait for it. 0 turns this off.",
        AtLeast(10, special=0),
    ),
)
