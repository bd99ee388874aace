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
        "The store for the cluster's metadata: etcd://host:2379,…/prefix, zookeeper://host:2181,…/chroot, "
        "unix:///socket of a local cluster, or sqlite:file. If it is not set, a single broker uses a file in its "
        "first log directory.",
    ),
    key(
        "broker.session.timeout.ms",
        INT,
        9000,
        "high",
        "How long a broker may be silent to the metadata store before it counts as dead and other brokers lead "
        "its partitions.",
        AtLeast(1),
    ),
    key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "high",
        "If true, leadership of partitions returns to their first replicas when those brokers are back.",
    ),
    key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "high",
        "How often brokers check whether leadership should return to first replicas.",
        AtLeast(1),
    ),
    key(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "high",
        "The percentage of its own partitions that a broker may not lead before leadership returns to it.",
        AtLeast(0),
    ),
    key(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "medium",
        "If true, a broker that stops first hands leadership over to other replicas.",
    ),
    key(
        "inter.broker.listener.name",
        STRING,
        None,
        "medium",
        "The listener that brokers use among themselves; by default the first one of each broker.",
    ),
    key(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "high",
        "A follower that has not had all of its leader's records for this long is removed from the in-sync replicas.",
        AtLeast(1),
    ),
    key(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "high",
        "How long a leader may hold a follower's request if there are no records for it; must be less than "
        "replica.lag.time.max.ms.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.min.bytes",
        INT,
        1,
        "high",
        "The bytes that must be available before a leader answers a follower's request early.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.max.bytes",
        INT,
        MIB,
        "medium",
        "The most bytes that a follower fetches from one partition at once; a larger batch is still sent whole.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.response.max.bytes",
        INT,
        10 * MIB,
        "medium",
        "The most bytes that a follower fetches from all partitions at once; a larger batch is still sent whole.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "medium",
        "The longest pause before a follower retries a leader or a partition that failed.",
        AtLeast(0),
    ),
    key(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "high",
        "How long a follower waits for a connection, and for a response beyond replica.fetch.wait.max.ms.",
        AtLeast(1),
    ),
    key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "high",
        "How often a broker writes the high watermark of each log to disk.",
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
