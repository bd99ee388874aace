"""Keys that say who a broker is, where it is reached, and what is seen of it from outside."""

from __future__ import annotations

from tailrace.broker.config.declaration import INT, LIST, LOG_FORMATS, LOG_LEVELS, STRING, key
from tailrace.broker.config.types import AtLeast, Between, ConfigKey, NonEmpty

#: Who this broker is, and where it is reached.
IDENTITY_KEYS: tuple[ConfigKey, ...] = (
    key(
        "node.id",
        INT,
        1,
        "high",
        "The number of this broker in its cluster; no two brokers may share one.",
        AtLeast(0),
        aliases=("broker.id",),
    ),
    key(
        "cluster.id",
        STRING,
        None,
        "medium",
        "The id of the cluster. Without it the first start makes one up and keeps it with the data.",
        NonEmpty(),
    ),
    key(
        "broker.rack",
        STRING,
        None,
        "medium",
        "The rack, zone or room this broker stands in, as clients are told it.",
    ),
    key(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "high",
        "Where to listen, as `NAME://host:port`. An empty host or 0.0.0.0 listens on every interface, port 0 "
        "takes any free port; an IPv6 address stands in brackets.",
        NonEmpty(),
    ),
    key(
        "advertised.listeners",
        LIST,
        None,
        "high",
        "The addresses clients are told to connect to. A listener not named here is advertised as it stands in "
        "`listeners`, with the machine's host name where that says every interface.",
        NonEmpty(),
    ),
    key(
        "listener.security.protocol.map",
        LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "low",
        "Which security protocol each listener name stands for, as `NAME:PROTOCOL`. Only PLAINTEXT is served so "
        "far: a listener that maps to another protocol is refused.",
    ),
    key(
        "log.dirs",
        LIST,
        ("data",),
        "high",
        "The directories that hold the partition logs. A relative path starts at the working directory.",
        NonEmpty(),
        aliases=("log.dir",),
    ),
)

#: What is seen from outside.
OBSERVATION_KEYS: tuple[ConfigKey, ...] = (
    key(
        "metrics.port",
        INT,
        -1,
        "medium",
        "The HTTP port of `/metrics` (Prometheus), `/healthz` and `/readyz`; -1 opens none, 0 takes any free one.",
        Between(0, 65535, special=-1),
    ),
    key(
        "metrics.host",
        STRING,
        "127.0.0.1",
        "medium",
        "The address that `metrics.port` is opened on. Nobody is asked for a password there: 0.0.0.0, every "
        "interface, is for networks where everybody may look.",
        NonEmpty(),
    ),
    key(
        "tailrace.log.format",
        STRING,
        "text",
        "low",
        "How the broker logs to standard error: lines of `text`, or a `json` object per line.",
        LOG_FORMATS,
    ),
    key(
        "tailrace.log.level",
        STRING,
        "INFO",
        "low",
        "The least important kind of event that is logged.",
        LOG_LEVELS,
    ),
    key(
        "tailrace.log.repeats.per.minute",
        INT,
        60,
        "low",
        "How many lines a minute are logged of each kind of trouble that clients can make at will, such as refused "
        "connections and malformed requests; the rest is counted.",
        AtLeast(1),
    ),
    key(
        "tailrace.loop.slow.step.ms",
        INT,
        100,
        "low",
        "A step of the event loop that takes this much CPU time, while all clients wait, is logged with its stack and "
        "counted in `tailrace_loop_slow_steps_total`. 0 watches nothing.",
        AtLeast(10, special=0),
    ),
)
