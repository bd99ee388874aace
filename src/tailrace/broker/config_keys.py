"""Every broker configuration key and its default, in one table.

Lists only keys that change what this broker does, so that a value that is accepted is a value that counts;
the one exception are the names in `NO_EFFECT`, which a stock server.properties of Kafka contains. It must
not know where values come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tailrace.broker.config_types import (
    INT_MAX,
    LONG_MAX,
    AtLeast,
    ConfigKey,
    ConfigType,
    Importance,
    NonEmpty,
    OneOf,
    Valid,
    Value,
)

_HOUR_MS = 3_600_000
_MIB = 1 << 20

CLEANUP_POLICIES = OneOf(("delete",), not_yet=("compact",))
COMPRESSION_TYPES = OneOf(("producer",), not_yet=("uncompressed", "gzip", "snappy", "lz4", "zstd"))
TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))


def _key(
    name: str,
    kind: ConfigType,
    default: Value,
    importance: Importance,
    documentation: str,
    valid: Valid | None = None,
    aliases: tuple[str, ...] = (),
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=kind,
        default=default,
        importance=importance,
        documentation=documentation,
        valid=valid,
        aliases=aliases,
    )


_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST

_TABLE: tuple[ConfigKey, ...] = (
    # --- Who this broker is, and where it is reached.
    _key(
        "node.id",
        _INT,
        1,
        "high",
        "The number of this broker in its cluster; no two brokers may share one.",
        AtLeast(0),
        aliases=("broker.id",),
    ),
    _key(
        "cluster.id",
        _STRING,
        None,
        "medium",
        "The id of the cluster. Without it the first start makes one up and keeps it with the data.",
        NonEmpty(),
    ),
    _key(
        "broker.rack",
        _STRING,
        None,
        "medium",
        "The rack, zone or room this broker stands in, as clients are told it.",
    ),
    _key(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "high",
        "Where to listen, as `NAME://host:port`. An empty host or 0.0.0.0 listens on every interface, port 0 "
        "takes any free port; an IPv6 address stands in brackets.",
        NonEmpty(),
    ),
    _key(
        "advertised.listeners",
        _LIST,
        None,
        "high",
        "The addresses clients are told to connect to. A listener not named here is advertised as it stands in "
        "`listeners`, with the machine's host name where that says every interface.",
        NonEmpty(),
    ),
    _key(
        "listener.security.protocol.map",
        _LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "low",
        "Which security protocol each listener name stands for, as `NAME:PROTOCOL`. Only PLAINTEXT is served so "
        "far: a listener that maps to another protocol is refused.",
    ),
    _key(
        "log.dirs",
        _LIST,
        ("data",),
        "high",
        "The directories that hold the partition logs. A relative path starts at the working directory.",
        NonEmpty(),
        aliases=("log.dir",),
    ),
    # --- Topics.
    _key(
        "num.partitions",
        _INT,
        1,
        "medium",
        "Partitions of a topic that is created without saying how many.",
        AtLeast(1),
    ),
    _key(
        "default.replication.factor",
        _INT,
        1,
        "medium",
        "Replicas of a topic that is created without saying how many.",
        AtLeast(1),
    ),
    _key(
        "min.insync.replicas",
        _INT,
        1,
        "high",
        "How many replicas must be in sync for a produce request with acks=all to be accepted.",
        AtLeast(1),
    ),
    _key(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "high",
        "Whether a topic comes into being when a client first asks for it.",
    ),
    _key("delete.topic.enable", _BOOLEAN, True, "high", "Whether clients may delete topics."),
    _key(
        "compression.type",
        _STRING,
        "producer",
        "high",
        "How batches are compressed on disk. `producer` keeps them as they were sent.",
        COMPRESSION_TYPES,
    ),
    _key(
        "message.max.bytes",
        _INT,
        1_048_588,
        "high",
        "The largest record batch that is accepted, counted as it arrives, that is after compression.",
        AtLeast(0),
    ),
    # --- Segments and retention.
    _key(
        "log.segment.bytes",
        _INT,
        1 << 30,
        "high",
        "The size at which a log starts a new segment file.",
        AtLeast(_MIB),
    ),
    _key(
        "log.roll.ms",
        _LONG,
        None,
        "high",
        "The age at which a log starts a new segment even though the last is not full. Without it "
        "`log.roll.hours` counts.",
        AtLeast(1),
    ),
    _key(
        "log.roll.hours",
        _INT,
        168,
        "high",
        "The age at which a log starts a new segment, in hours, where `log.roll.ms` is not set.",
        AtLeast(1),
    ),
    _key(
        "log.index.interval.bytes",
        _INT,
        4096,
        "medium",
        "How many bytes of log go between two entries of the offset index.",
        AtLeast(0),
    ),
    _key(
        "log.index.size.max.bytes",
        _INT,
        10 * _MIB,
        "medium",
        "The size an index file may reach; a full index starts a new segment.",
        AtLeast(4),
    ),
    _key(
        "log.retention.ms",
        _LONG,
        None,
        "high",
        "How long records are kept; -1 keeps them for ever. Without it `log.retention.minutes` counts.",
        AtLeast(1, special=-1),
    ),
    _key(
        "log.retention.minutes",
        _INT,
        None,
        "high",
        "How long records are kept, in minutes, where `log.retention.ms` is not set. Without either "
        "`log.retention.hours` counts.",
        AtLeast(1, special=-1),
    ),
    _key(
        "log.retention.hours",
        _INT,
        336,
        "high",
        "How long records are kept, in hours, where neither of the finer settings is given. The default is two weeks.",
        AtLeast(1, special=-1),
    ),
    _key(
        "log.retention.bytes",
        _LONG,
        -1,
        "high",
        "The size a partition's log may reach before its oldest segments go; -1 sets no limit.",
        AtLeast(-1),
    ),
    _key(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        "medium",
        "How often logs are looked at for segments that retention lets go.",
        AtLeast(1),
    ),
    _key(
        "log.segment.delete.delay.ms",
        _LONG,
        60_000,
        "high",
        "How long the file of a dropped segment stays on disk, so that reads under way can end.",
        AtLeast(0),
    ),
    _key(
        "log.cleanup.policy",
        _LIST,
        ("delete",),
        "medium",
        "What happens to old segments. `delete` drops them by age and size; compaction is not supported yet.",
        CLEANUP_POLICIES,
    ),
    _key(
        "log.message.timestamp.type",
        _STRING,
        "CreateTime",
        "medium",
        "Whether a record carries its producer's time (`CreateTime`) or the broker's (`LogAppendTime`).",
        TIMESTAMP_TYPES,
    ),
    _key(
        "log.message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "medium",
        "How far a producer's timestamp may lie behind the broker's clock.",
        AtLeast(0),
    ),
    _key(
        "log.message.timestamp.after.max.ms",
        _LONG,
        _HOUR_MS,
        "medium",
        "How far a producer's timestamp may lie ahead of the broker's clock.",
        AtLeast(0),
    ),
    _key(
        "producer.id.expiration.ms",
        _INT,
        24 * _HOUR_MS,
        "low",
        "How long the broker remembers an idempotent producer that has stopped writing to a partition.",
        AtLeast(1),
    ),
    # --- Flushing: what survives a power cut.
    _key(
        "log.flush.interval.messages",
        _LONG,
        LONG_MAX,
        "high",
        "Once this many records of a log are unsynced an acknowledgement waits for a sync; 1 syncs before every "
        "acknowledgement.",
        AtLeast(1),
    ),
    _key(
        "log.flush.interval.ms",
        _LONG,
        None,
        "high",
        "How long a record may be in a log before a sync of it starts in the background. Without it no such "
        "limit holds.",
        AtLeast(0),
    ),
    _key(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "high",
        "How often the broker writes down up to where each log is synced, which is where recovery starts.",
        AtLeast(0),
    ),
    _key(
        "tailrace.flush.background.bytes",
        _LONG,
        16 * _MIB,
        "medium",
        "Bytes written to a log after which a sync of it starts in the background, so that the amount the kernel "
        "still has to write stays bounded.",
        AtLeast(1),
    ),
    _key(
        "tailrace.flush.background.ms",
        _LONG,
        1000,
        "high",
        "At most this long after a write a sync of the log starts in the background; -1 turns that off.",
        AtLeast(-1),
    ),
    # --- Connections and limits.
    _key(
        "socket.request.max.bytes",
        _INT,
        100 * _MIB,
        "high",
        "The largest request; a connection that announces more is closed.",
        AtLeast(1),
    ),
    _key(
        "socket.send.buffer.bytes",
        _INT,
        -1,
        "high",
        "The send buffer of a connection's socket; -1 leaves it to the operating system.",
        AtLeast(1, special=-1),
    ),
    _key(
        "socket.receive.buffer.bytes",
        _INT,
        -1,
        "high",
        "The receive buffer of a connection's socket; -1 leaves it to the operating system.",
        AtLeast(1, special=-1),
    ),
    _key(
        "socket.listen.backlog.size",
        _INT,
        50,
        "medium",
        "How many connections may wait to be accepted; the operating system may allow fewer.",
        AtLeast(1),
    ),
    _key(
        "connections.max.idle.ms",
        _LONG,
        600_000,
        "medium",
        "How long a connection may be silent before it is closed; -1 never closes it.",
        AtLeast(-1),
    ),
    _key(
        "max.connections",
        _INT,
        INT_MAX,
        "medium",
        "How many connections the broker holds at once.",
        AtLeast(0),
    ),
    _key(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "medium",
        "How many connections the broker holds at once from one address.",
        AtLeast(0),
    ),
    _key(
        "fetch.max.bytes",
        _INT,
        55 * _MIB,
        "medium",
        "The most that one fetch answers, whatever the client asks for; a first batch that is larger is still "
        "sent whole.",
        AtLeast(1024),
    ),
    _key(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "medium",
        "How many incremental fetch sessions are kept at once; 0 keeps none.",
        AtLeast(0),
    ),
    _key(
        "tailrace.open.files.max",
        _INT,
        0,
        "medium",
        "How many segment files may be open at once; 0 derives it from the limit of the process.",
        AtLeast(0),
    ),
)

BROKER_KEYS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _TABLE})

#: Kafka's other names of a key, with the name used here.
ALIASES: Mapping[str, str] = MappingProxyType({alias: key.name for key in _TABLE for alias in key.aliases})

#: Kafka's keys that a stock server.properties may hold and that nothing here depends on: accepted with a
#: warning. Never a key whose loss would weaken durability or security.
NO_EFFECT = (
    "auto.leader.rebalance.enable",
    "background.threads",
    "early.start.listeners",
    "inter.broker.listener.name",
    "inter.broker.protocol.version",
    "log.message.format.version",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "process.roles",
    "queued.max.requests",
    "unclean.leader.election.enable",
)

#: The same for whole families of keys.
NO_EFFECT_PREFIXES = (
    "controller.",
    "controlled.shutdown.",
    "group.",
    "log.cleaner.",
    "metadata.log.",
    "offsets.",
    "replica.",
    "share.coordinator.",
    "transaction.",
    "zookeeper.",
)
