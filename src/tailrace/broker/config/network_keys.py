"""Keys of connections, and of the limits that clients meet."""

from __future__ import annotations

from tailrace.broker.config.declaration import INT, LIST, LONG, MIB, key
from tailrace.broker.config.types import INT_MAX, AtLeast, ConfigKey, CountsByAddress

NETWORK_KEYS: tuple[ConfigKey, ...] = (
    key(
        "socket.request.max.bytes",
        INT,
        100 * MIB,
        "high",
        "The largest request; a connection that announces more is closed.",
        AtLeast(1),
    ),
    key(
        "socket.send.buffer.bytes",
        INT,
        -1,
        "high",
        "The send buffer of a connection's socket; -1 leaves it to the operating system.",
        AtLeast(1, special=-1),
    ),
    key(
        "socket.receive.buffer.bytes",
        INT,
        -1,
        "high",
        "The receive buffer of a connection's socket; -1 leaves it to the operating system.",
        AtLeast(1, special=-1),
    ),
    key(
        "socket.listen.backlog.size",
        INT,
        4096,
        "medium",
        "How many connections may wait to be accepted. The kernel allows no more than net.core.somaxconn. Kafka's "
        "default of 50 makes clients that come at once, as after a restart, wait for seconds until they try again.",
        AtLeast(1),
    ),
    key(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "medium",
        "How long a connection may be silent before it is closed; -1 never closes it.",
        AtLeast(-1),
    ),
    key(
        "max.connections",
        INT,
        INT_MAX,
        "medium",
        "How many connections the broker holds at once.",
        AtLeast(0),
        update_mode="cluster-wide",
    ),
    key(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "medium",
        "How many connections the broker holds at once from one address.",
        AtLeast(0),
        update_mode="cluster-wide",
    ),
    key(
        "max.connections.per.ip.overrides",
        LIST,
        (),
        "medium",
        "How many connections the broker holds at once from single addresses that differ from the rest, as "
        "`address:count`.",
        CountsByAddress(),
    ),
    key(
        "queued.max.request.bytes",
        LONG,
        256 * MIB,
        "medium",
        "How many bytes of requests and answers the broker holds for all connections together: of requests that are "
        "being received or wait to be answered, of answers that wait to be read, and what batches unpack to while they "
        "are looked into. Beyond it large requests wait their turn, small ones go on, and connections that hold much "
        "without moving are closed. -1 sets no bound.",
        AtLeast(1, special=-1),
    ),
    key(
        "fetch.max.bytes",
        INT,
        55 * MIB,
        "medium",
        "The most that one fetch answers, whatever the client asks for; a first batch that is larger is still "
        "sent whole.",
        AtLeast(1024),
    ),
    key(
        "max.request.partition.size.limit",
        INT,
        2000,
        "medium",
        "The most partitions that one answer to DescribeTopicPartitions holds; the client asks on from there.",
        AtLeast(1),
    ),
    key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "medium",
        "How many incremental fetch sessions are kept at once; 0 keeps none.",
        AtLeast(0),
    ),
    key(
        "tailrace.fetch.session.cache.partitions",
        INT,
        200_000,
        "low",
        "How many partitions all incremental fetch sessions may hold together; clients beyond are served without one.",
        AtLeast(0),
    ),
    key(
        "tailrace.open.files.max",
        INT,
        0,
        "medium",
        "How many segment files may be open at once; 0 derives it from the limit of the process.",
        AtLeast(0),
    ),
)
