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
        "The largest request. The broker closes a connection that announces a larger one.",
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
        "How many connections may wait to be accepted. The kernel allows no more than net.core.somaxconn. "
        "With Kafka's default of 50, clients that all connect at once, as after a restart, wait for seconds "
        "before they retry.",
        AtLeast(1),
    ),
    key(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "medium",
        "The broker closes a connection that has been silent for this long; -1 means never.",
        AtLeast(-1),
    ),
    key(
        "max.connections",
        INT,
        INT_MAX,
        "medium",
        "The largest number of open connections.",
        AtLeast(0),
        update_mode="cluster-wide",
    ),
    key(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "medium",
        "The largest number of open connections from one address.",
        AtLeast(0),
        update_mode="cluster-wide",
    ),
    key(
        "max.connections.per.ip.overrides",
        LIST,
        (),
        "medium",
        "A different limit for single addresses, as `address:count`.",
        CountsByAddress(),
    ),
    key(
        "queued.max.request.bytes",
        LONG,
        256 * MIB,
        "medium",
        "The most memory for requests and responses of all connections together: for requests that are being "
        "received or processed, responses that wait to be sent, and batches that are decompressed to be "
        "checked. Beyond it, large requests wait, small ones are still served, and the broker closes "
        "connections that hold much memory without making progress. -1 means no limit.",
        AtLeast(1, special=-1),
    ),
    key(
        "fetch.max.bytes",
        INT,
        55 * MIB,
        "medium",
        "The largest response to a fetch, whatever the client asks for. A first batch that is larger is still "
        "sent whole.",
        AtLeast(1024),
    ),
    key(
        "max.request.partition.size.limit",
        INT,
        2000,
        "medium",
        "The most partitions in one response to DescribeTopicPartitions. The client asks again for the rest.",
        AtLeast(1),
    ),
    key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "medium",
        "The most incremental fetch sessions at a time; 0 means none.",
        AtLeast(0),
    ),
    key(
        "tailrace.fetch.session.cache.partitions",
        INT,
        200_000,
        "low",
        "The most partitions in all incremental fetch sessions together. Beyond that, the broker serves "
        "clients without a session.",
        AtLeast(0),
    ),
    key(
        "tailrace.open.files.max",
        INT,
        0,
        "medium",
        "The most open segment files; 0 derives it from the limit of the process.",
        AtLeast(0),
    ),
)
