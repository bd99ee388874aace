"""Keys of several brokers as one cluster."""

from __future__ import annotations

from tailrace.broker.config.declaration import BOOLEAN, INT, LONG, MIB, STRING, key
from tailrace.broker.config.types import AtLeast, ConfigKey

CLUSTER_KEYS: tuple[ConfigKey, ...] = (
    key(
        "tailrace.coordination",
        STRING,
        None,
        "high",
        "The store that holds the cluster's metadata: etcd://host:2379,…/prefix, zookeeper://host:2181,…/chroot, "
        "unix:///socket of a local cluster, or sqlite:file. Where it is not set, a file in the first log directory of "
        "a broker that is alone.",
    ),
    key(
        "broker.session.timeout.ms",
        INT,
        9000,
        "high",
        "How long a broker may be silent to the metadata store before the others take it for gone and lead in its "
        "place.",
        AtLeast(1),
    ),
    key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "high",
        "Whether leadership goes back to the first replicas of partitions when their brokers are back.",
    ),
    key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "high",
        "How often the controller looks whether brokers lead what they are the first replica of.",
        AtLeast(1),
    ),
    key(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "high",
        "The share of its own partitions, in percent, that a broker may not lead before leadership goes back to it.",
        AtLeast(0),
    ),
    key(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "medium",
        "Whether a broker that is told to stop hands its leadership over to others first.",
    ),
    key(
        "inter.broker.listener.name",
        STRING,
        None,
        "medium",
        "The listener through which brokers reach each other; the first one of each where this is not set.",
    ),
    key(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "high",
        "A follower that has not had all of its leader's records for so long is no longer in sync.",
        AtLeast(1),
    ),
    key(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "high",
        "How long a leader may hold back the request of a follower for which it has nothing; less than "
        "replica.lag.time.max.ms.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.min.bytes",
        INT,
        1,
        "high",
        "For how many bytes a follower's request is held back.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.max.bytes",
        INT,
        MIB,
        "medium",
        "How much a follower asks for of one partition at once; a batch that is larger comes nevertheless.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.response.max.bytes",
        INT,
        10 * MIB,
        "medium",
        "How much a follower asks for of all partitions at once; a batch that is larger comes nevertheless.",
        AtLeast(0),
    ),
    key(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "medium",
        "The longest pause before a follower tries again to fetch from a leader, or one partition, that failed.",
        AtLeast(0),
    ),
    key(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "high",
        "How long a follower waits for a connection, and for an answer beyond replica.fetch.wait.max.ms.",
        AtLeast(1),
    ),
    key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "high",
        "How often it is written down up to where the records of each log are committed.",
        AtLeast(1),
    ),
    key(
        "num.replica.fetchers",
        INT,
        1,
        "high",
        "How many connections a follower fetches through from each leader.",
        AtLeast(1),
    ),
)
