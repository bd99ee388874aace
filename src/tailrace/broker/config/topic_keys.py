"""Every topic configuration key, with the broker keys that give it its default.

Keeps one invariant: a topic key means what its broker synonyms mean, in the topic's unit. It must not know
any topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tailrace.broker.config.declaration import (
    ARCHIVE_LAG_POLICIES,
    ARCHIVE_PLACES,
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    GZIP_LEVELS,
    LZ4_LEVELS,
    SHARES,
    TIMESTAMP_TYPES,
    ZSTD_LEVELS,
)
from tailrace.broker.config.keys import BROKER_KEYS
from tailrace.broker.config.types import LONG_MAX, AtLeast, ConfigType, Synonym, TopicKey, Valid, Value

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


def _key(
    name: str, *synonyms: Synonym, documentation: str, valid: Valid | None = None, otherwise: Value = None
) -> TopicKey:
    """A key whose type is its first synonym's; `otherwise` is its default where no synonym has one."""
    default = otherwise
    for synonym in synonyms:
        broker_default = BROKER_KEYS[synonym.name].default
        if broker_default is not None:
            default = synonym.convert(broker_default)
            break
    return TopicKey(
        name=name,
        type=BROKER_KEYS[synonyms[0].name].type,
        default=default,
        documentation=documentation,
        importance="medium",
        valid=valid,
        update_mode="cluster-wide",
        synonyms=synonyms,
    )


_TABLE: tuple[TopicKey, ...] = (
    _key(
        "cleanup.policy",
        Synonym("log.cleanup.policy"),
        valid=CLEANUP_POLICIES,
        documentation="What happens to old segments. `delete` drops them by age and size; `compact` keeps the newest "
        "record of each key; both may be named.",
    ),
    _key(
        "compression.type",
        Synonym("compression.type"),
        valid=COMPRESSION_TYPES,
        documentation="How batches are compressed on disk. `producer` keeps them as they were sent; a batch in another "
        "codec than the one named here is recompressed.",
    ),
    _key(
        "compression.gzip.level",
        Synonym("compression.gzip.level"),
        valid=GZIP_LEVELS,
        documentation="How hard gzip tries where `compression.type` is gzip; -1 is the library's own choice.",
    ),
    _key(
        "compression.lz4.level",
        Synonym("compression.lz4.level"),
        valid=LZ4_LEVELS,
        documentation="How hard lz4 tries where `compression.type` is lz4. The default stands for its fast way.",
    ),
    _key(
        "compression.zstd.level",
        Synonym("compression.zstd.level"),
        valid=ZSTD_LEVELS,
        documentation="How hard zstd tries where `compression.type` is zstd.",
    ),
    _key(
        "delete.retention.ms",
        Synonym("log.cleaner.delete.retention.ms"),
        valid=AtLeast(0),
        documentation="How long compaction leaves a tombstone in a log, so that consumers see it.",
    ),
    _key(
        "file.delete.delay.ms",
        Synonym("log.segment.delete.delay.ms"),
        valid=AtLeast(0),
        documentation="How long the file of a dropped segment stays on disk, so that reads under way can end.",
    ),
    _key(
        "flush.messages",
        Synonym("log.flush.interval.messages"),
        valid=AtLeast(1),
        documentation="Once this many records of a log are unsynced an acknowledgement waits for a sync; 1 "
        "syncs before every acknowledgement.",
    ),
    _key(
        "flush.ms",
        Synonym("log.flush.interval.ms"),
        valid=AtLeast(0),
        otherwise=LONG_MAX,
        documentation="How long a record may be in a log before a sync of it starts in the background.",
    ),
    _key(
        "index.interval.bytes",
        Synonym("log.index.interval.bytes"),
        valid=AtLeast(0),
        documentation="How many bytes of log go between two entries of the offset index.",
    ),
    _key(
        "local.retention.bytes",
        Synonym("log.local.retention.bytes"),
        valid=AtLeast(-2),
        documentation="The size a partition's log may reach on brokers where the topic is archived; what goes is in "
        "the archive. -2 is `retention.bytes`, -1 sets no limit.",
    ),
    _key(
        "local.retention.ms",
        Synonym("log.local.retention.ms"),
        valid=AtLeast(-2),
        documentation="How long brokers keep records themselves where the topic is archived; older ones are in the "
        "archive. -2 is `retention.ms`, -1 keeps them for ever.",
    ),
    _key(
        "max.compaction.lag.ms",
        Synonym("log.cleaner.max.compaction.lag.ms"),
        valid=AtLeast(1),
        documentation="The age at which a record is compacted however small the share of the log that is new.",
    ),
    _key(
        "max.message.bytes",
        Synonym("message.max.bytes"),
        valid=AtLeast(0),
        documentation="The largest record batch that is accepted, as it arrives and again after recompression.",
    ),
    _key(
        "message.timestamp.after.max.ms",
        Synonym("log.message.timestamp.after.max.ms"),
        valid=AtLeast(0),
        documentation="How far a producer's timestamp may lie ahead of the broker's clock.",
    ),
    _key(
        "message.timestamp.before.max.ms",
        Synonym("log.message.timestamp.before.max.ms"),
        valid=AtLeast(0),
        documentation="How far a producer's timestamp may lie behind the broker's clock.",
    ),
    _key(
        "message.timestamp.type",
        Synonym("log.message.timestamp.type"),
        valid=TIMESTAMP_TYPES,
        documentation="Whether a record carries its producer's time (`CreateTime`) or the broker's (`LogAppendTime`).",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Synonym("log.cleaner.min.cleanable.ratio"),
        valid=SHARES,
        documentation="The share of a log that must be new since it was last compacted for it to be compacted again.",
    ),
    _key(
        "min.compaction.lag.ms",
        Synonym("log.cleaner.min.compaction.lag.ms"),
        valid=AtLeast(0),
        documentation="The age below which a record is not compacted.",
    ),
    _key(
        "min.insync.replicas",
        Synonym("min.insync.replicas"),
        valid=AtLeast(1),
        documentation="How many replicas must be in sync for a produce request with acks=all to be accepted.",
    ),
    _key(
        "retention.bytes",
        Synonym("log.retention.bytes"),
        valid=AtLeast(-1),
        documentation="The size a partition's log may reach before its oldest segments go; -1 sets no limit.",
    ),
    _key(
        "retention.ms",
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", factor=_MINUTE_MS),
        Synonym("log.retention.hours", factor=_HOUR_MS),
        valid=AtLeast(-1),
        documentation="How long records are kept; -1 keeps them for ever.",
    ),
    _key(
        "segment.bytes",
        Synonym("log.segment.bytes"),
        valid=AtLeast(1 << 20),
        documentation="The size at which a log starts a new segment file.",
    ),
    _key(
        "segment.index.bytes",
        Synonym("log.index.size.max.bytes"),
        valid=AtLeast(4),
        documentation="The size an index file may reach; a full index starts a new segment.",
    ),
    _key(
        "segment.ms",
        Synonym("log.roll.ms"),
        Synonym("log.roll.hours", factor=_HOUR_MS),
        valid=AtLeast(1),
        documentation="The age at which a log starts a new segment even though the last is not full.",
    ),
    TopicKey(
        name="tailrace.archive.enable",
        type=ConfigType.BOOLEAN,
        default=False,
        documentation="Whether the topic has an archive. Then brokers remove a segment only once it is archived, and "
        "readers of older offsets are answered from the archive. Not with `cleanup.policy=compact`.",
        importance="medium",
        update_mode="cluster-wide",
        synonyms=(),
    ),
    _key(
        "tailrace.archive.lag.policy",
        Synonym("tailrace.archive.lag.policy"),
        valid=ARCHIVE_LAG_POLICIES,
        documentation="What happens to records that retention has ended and that are not archived yet. `keep`: they "
        "stay, and where the disk fills up producers are refused. `drop`: they go, and nobody can read them any more.",
    ),
    _key(
        "tailrace.archive.retention.ms",
        Synonym("tailrace.archive.retention.ms"),
        valid=AtLeast(-1),
        documentation="How long records stay in the archive; -1 keeps them for ever.",
    ),
    _key(
        "tailrace.archive.uri",
        Synonym("tailrace.archive.uri"),
        valid=ARCHIVE_PLACES,
        documentation="Where the topic is archived: a directory, `file:`, `s3://bucket/prefix`, `hdfs://` or "
        "`webhdfs://`. Whoever moves an archive moves its files first and then changes this.",
    ),
    _key(
        "tailrace.records.validate",
        Synonym("tailrace.records.validate"),
        documentation="Whether brokers decode every record that is produced, as Apache Kafka does, and refuse a batch "
        "that clients could not decode (INVALID_RECORD). Off, a batch is checked by its header and CRC only, and a "
        "broken client can store batches that consumers, queries and the archive stumble over.",
    ),
    _key(
        "unclean.leader.election.enable",
        Synonym("unclean.leader.election.enable"),
        documentation="Whether a replica that is not in sync may lead where no other is alive: the partition is served "
        "again, and what only the others had is lost.",
    ),
)

TOPIC_KEYS: Mapping[str, TopicKey] = MappingProxyType({key.name: key for key in _TABLE})
