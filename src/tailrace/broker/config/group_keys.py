"""Configuration keys of consumer groups."""

from __future__ import annotations

from tailrace.broker.config.declaration import INT, LIST, LONG, MIB, STRING, key
from tailrace.broker.config.types import INT_MAX, AtLeast, ConfigKey, ConfigType, OneOf

GROUP_KEYS: tuple[ConfigKey, ...] = (
    key(
        "offsets.topic.num.partitions",
        INT,
        50,
        "high",
        "The number of partitions of the offsets topic when it is created. Groups are spread over them.",
        AtLeast(1),
    ),
    key(
        "offsets.topic.replication.factor",
        ConfigType.SHORT,
        3,
        "high",
        "The number of replicas of the offsets topic. It has fewer while there are fewer brokers, and gets "
        "more as brokers join.",
        AtLeast(1),
    ),
    key(
        "offsets.topic.segment.bytes",
        INT,
        100 * MIB,
        "high",
        "The segment size of the offsets topic. Small segments are compacted and loaded sooner.",
        AtLeast(1 << 20),
    ),
    key(
        "offsets.retention.minutes",
        INT,
        10080,
        "high",
        "How long the offsets of a group are kept after its last member has left.",
        AtLeast(1),
    ),
    key(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "high",
        "How often the broker looks for expired offsets.",
        AtLeast(1),
    ),
    key(
        "offset.metadata.max.bytes",
        INT,
        4096,
        "high",
        "The longest text that a client may commit with an offset.",
        AtLeast(0),
    ),
    key(
        "group.initial.rebalance.delay.ms",
        INT,
        3000,
        "medium",
        "How long a new group waits for more members before its first rebalance.",
        AtLeast(0),
    ),
    key(
        "group.min.session.timeout.ms",
        INT,
        6000,
        "medium",
        "The shortest session timeout that a member of a classic group may request.",
        AtLeast(1),
    ),
    key(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "medium",
        "The longest session timeout that a member of a classic group may request.",
        AtLeast(1),
    ),
    key(
        "group.max.size",
        INT,
        INT_MAX,
        "medium",
        "The most members of a classic group.",
        AtLeast(1),
    ),
    key(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        "medium",
        "A member of the newer group protocol that is silent for this long is removed from its group.",
        AtLeast(1),
    ),
    key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5000,
        "medium",
        "The heartbeat interval that the broker gives to members of the newer group protocol.",
        AtLeast(1),
    ),
    key(
        "group.consumer.max.size",
        INT,
        INT_MAX,
        "medium",
        "The most members of a group of the newer protocol.",
        AtLeast(1),
    ),
    key(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range"),
        "medium",
        "The assignors that members of the newer group protocol may request. The first one serves members "
        "that request none.",
        OneOf(("uniform", "range")),
    ),
    key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "medium",
        "Whether a running group may move between the classic and the newer protocol, one member at a time.",
        OneOf(("bidirectional", "upgrade", "downgrade", "disabled")),
    ),
)
