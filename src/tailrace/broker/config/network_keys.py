"""Configuration keys of connections, and of limits on clients."""

from __future__ import annotations

from tailrace.broker.config.declaration import INT, LIST, LONG, MIB, key
from tailrace.broker.config.types import INT_MAX, AtLeast, ConfigKey, CountsByAddress

NETWORK_KEYS: tuple[ConfigKey, ...] = (
    key(
        "socket.request.max.bytes",
        INT,
        100 * MIB,
        "high",
        "The size of the largest request; a connection that announces a larger one is closed.",
        AtLeast(1),
    ),
    key(
        "socket.send.buffer.bytes",
        INT,
        -1,
        "high",
        "The size of a connection's send buffer; -1 leaves it to the operating system.",
        AtLeast(1, special=-1),
    ),
    key(
        "socket.receive.buffer.bytes",
        INT,
        -1,
        "high",
        "The size of a connection's receive buffer; -1 leaves it to the operating system.",
        AtLeast(1, special=-1),
    ),
    key(
        "socket.listen.backlog.size",
        INT,
        4096,
        "medium",
        "The number of connections that may wait to be accepted. The kernel limits it to net.core.somaxconn. "
        "With Kafka's default of 50, clients that connect at once, as after a restart, wait for seconds until "
        "they retry.",
        AtLeast(1),
    ),
    key(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "medium",
        "How long a connection may be idle before it is closed; -1 never closes it.",
        AtLeast(-1),
    ),
    key(
        "max.connections",
        INT,
        INT_MAX,
        "medium",
        "The maximum number of connections to the broker.",
        AtLeast(0),
        update_mode="cluster-wide",
    ),
    key(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "medium",
        "The maximum number of connections from one address.",
        AtLeast(0),
        update_mode="cluster-wide",
    ),
    key(
        "max.connections.per.ip.overrides",
        LIST,
        (),
        "medium",
        "The maximum number of connections from specific addresses, as `address:count`.",
        CountsByAddress(),
    ),
    key(
        "queued.max.request.bytes",
        LONG,
        256 * MIB,
        "medium",
        "The most bytes of requests and responses that the broker holds for all connections: requests that are "
        "being received or processed, responses that clients have not read yet, and batches that are "
        "decompressed for checks. Beyond it, large requests wait, small ones continue, and connections that hold "
        "much data without progress are closed. -1 sets no limit.",
        AtLeast(1, special=-1),
    ),
    key(
        "fetch.max.bytes",
        INT,
        55 * MIB,
        "medium",
        "The size limit of a fetch response, whatever the client asks for; a larger first batch is still sent whole.",
        AtLeast(1024),
    ),
    key(
        "max.request.partition.size.limit",
        INT,
        2000,
        "medium",
        "The most partitions in a response to DescribeTopicPartitions; the client then asks for the next page.",
        AtLeast(1),
    ),
    key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "medium",
        "The maximum number of incremental fetch sessions; 0 disables them.",
        AtLeast(0),
    ),
    key(
        "tailrace.fetch.session.cache.partitions",
        INT,
        200_000,
        "low",
        "The most partitions in all incremental fetch sessions together; further clients are served without a session.",
        AtLeast(0),
    ),
    key(
        "tailrace.open.files.max",
        INT,
        0,
        "medium",
        "The maximum number of open segment files; 0 derives it from the limit of the process.",
        AtLeast(0),
    ),
)
