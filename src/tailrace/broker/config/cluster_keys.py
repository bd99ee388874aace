"""Configuration keys of a cluster of several brokers."""

from __future__ import annotations

from tailrace.broker.config.declaration import BOOLEAN, INT, LONG, MIB, STRING, key
from tailrace.broker.config.types import AtLeast, ConfigKey

CLUSTER_KEYS: tuple[ConfigKey, ...] = (
    key(
        "tailrace.coordination",
        STRING,
        None,
        "high",
        "The store of the cluster's metadata: etcd://host:2379,…/prefix, zookeeper://host:2181,…/chroot, "
        "unix:///socket of a local cluster, or sqlite:file. If it is not set, a single broker keeps its "
        "metadata in a file in its first log directory.",
    ),
    key(
        "broker.session.timeout.ms",
        INT,
        9000,
        "high",
        "A broker that the metadata store has not heard from for this long counts as dead, and other brokers "
        "lead in its place.",
        AtLeast(1),
    ),
    key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "high",
        "Whether leadership returns to the first replica of a partition when its broker is back.",
    ),
    key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "high",
        "How often the controller checks whether brokers lead the partitions of which they are the first replica.",
        AtLeast(1),
    ),
    key(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "high",
        "Leadership returns to a broker when it does not lead more than this percentage of the partitions of "
        "which it is the first replica.",
        AtLeast(0),
    ),
    key(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "medium",
        "Whether a stopping broker first hands its leadership over to others.",
    ),
    key(
        "inter.broker.listener.name",
        STRING,
        None,
        "medium",
        "The listener that brokers use to reach each other. If it is not set, they use the first listener of each.",
    ),
    key(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "high",
        "A follower that has lacked records of its leader for this long is no longer in sync.",
        AtLeast(1),
    ),
    key(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "high",
        "How long a leader holds a follower's fetch if it has no new records. Must be less than "
        "`replica.lag.time.max.ms`.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.min.bytes",
        INT,
        1,
        "high",
        "A leader holds a follower's fetch until it has this many bytes, for at most `replica.fetch.wait.max.ms`.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.max.bytes",
        INT,
        MIB,
        "medium",
        "How much a follower fetches of one partition at a time. A larger batch still comes whole.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.response.max.bytes",
        INT,
        10 * MIB,
        "medium",
        "How much a follower fetches of all partitions at a time. A larger batch still comes whole.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "medium",
        "The longest pause before a follower retries a leader, or a single partition, that failed.",
        AtLeast(0),
    ),
    key(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "high",
        "How long a follower waits for a connection, and for a response beyond `replica.fetch.wait.max.ms`.",
        AtLeast(1),
    ),
    key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "high",
        "How often the broker saves the high watermark of each log.",
        AtLeast(1),
    ),
    key(
        "num.replica.fetchers",
        INT,
        1,
        "high",
        "The number of connections over which a follower fetches from each leader.",
        AtLeast(1),
    ),
)
