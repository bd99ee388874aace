"""Configuration keys of transactions."""

from __future__ import annotations

from tailrace.broker.config.declaration import HOUR_MS, INT, MIB, key
from tailrace.broker.config.types import AtLeast, ConfigKey, ConfigType

TRANSACTION_KEYS: tuple[ConfigKey, ...] = (
    key(
        "transaction.state.log.num.partitions",
        INT,
        50,
        "high",
        "The number of partitions of the transaction topic when it is created. Transactional ids are spread over them.",
        AtLeast(1),
    ),
    key(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        3,
        "high",
        "The number of replicas of the transaction topic. It has fewer while there are fewer brokers, and gets "
        "more as brokers join.",
        AtLeast(1),
    ),
    key(
        "transaction.state.log.min.isr",
        INT,
        2,
        "high",
        "The min.insync.replicas of the transaction topic when it is created. A partition with fewer replicas "
        "needs all of them.",
        AtLeast(1),
    ),
    key(
        "transaction.state.log.segment.bytes",
        INT,
        100 * MIB,
        "high",
        "The segment size of the transaction topic. Small segments are compacted and loaded sooner.",
        AtLeast(1 << 20),
    ),
    key(
        "transaction.max.timeout.ms",
        INT,
        15 * 60_000,
        "high",
        "The longest transaction timeout that a producer may request. The longer a transaction stays open, the longer "
        "readers of committed records wait.",
        AtLeast(1),
    ),
    key(
        "transactional.id.expiration.ms",
        INT,
        7 * 24 * HOUR_MS,
        "high",
        "How long a transactional id is kept after its last use.",
        AtLeast(1),
    ),
    key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        "low",
        "How often the broker looks for transactions that take longer than their timeout, and aborts them.",
        AtLeast(1),
    ),
    key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        HOUR_MS,
        "low",
        "How often the broker looks for transactional ids that have expired.",
        AtLeast(1),
    ),
)
