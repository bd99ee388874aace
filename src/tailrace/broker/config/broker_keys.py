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
        "The id of this broker in its cluster; it must be unique.",
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
        "The rack, zone or room of this broker; clients can see it.",
    ),
    key(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "high",
        "The addresses to listen on, as `NAME://host:port`. An empty host or 0.0.0.0 listens on every interface; "
        "port 0 takes any free port; put an IPv6 address in brackets.",
        NonEmpty(),
    ),
    key(
        "advertised.listeners",
        LIST,
        None,
        "high",
        "The addresses that clients connect to. A listener that is missing here is advertised with its address "
        "in `listeners`, or with the machine's host name if it listens on every interface.",
        NonEmpty(),
    ),
    key(
        "listener.security.protocol.map",
        LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "low",
        "The security protocol of each listener name, as `NAME:PROTOCOL`. Only PLAINTEXT is supported so far: a "
        "listener with another protocol is refused.",
    ),
    key(
        "log.dirs",
        LIST,
        ("data",),
        "high",
        "The directories that hold the partition logs. A relative path is relative to the working directory.",
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
        "The HTTP port of `/metrics` (Prometheus), `/healthz` and `/readyz`; -1 opens none, 0 takes any free port.",
        Between(0, 65535, special=-1),
    ),
    key(
        "metrics.host",
        STRING,
        "127.0.0.1",
        "medium",
        "The address on which `metrics.port` listens. There is no authentication: use 0.0.0.0, every interface, "
        "only in a network where everyone may see the metrics.",
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
        "The lowest level of events to log.",
        LOG_LEVELS,
    ),
    key(
        "tailrace.log.repeats.per.minute",
        INT,
        60,
        "low",
        "The number of lines per minute to log for each kind of trouble that clients can cause at will, such as "
        "refused connections and malformed requests; further ones are only counted.",
        AtLeast(1),
    ),
    key(
        "tailrace.loop.slow.step.ms",
        INT,
        100,
        "low",
        "A step of the event loop that takes this much CPU time, while all clients wait, is logged with its "
        "stack and counted in `tailrace_loop_slow_steps_total`. 0 disables this.",
        AtLeast(10, special=0),
    ),
)
