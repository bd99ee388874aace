"""Every topic configuration key, with the broker keys that give it its default.

Invariant: a topic key means the same as its broker synonyms, in the topic's unit. This module must not know any topic.
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
    """Declare a key with the type of its first synonym; `otherwise` is its default if no synonym has one."""
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
        documentation="What happens to old segments: `delete` removes them by age and size, `compact` keeps the "
        "newest record of each key. You can set both.",
    ),
    _key(
        "compression.type",
        Synonym("compression.type"),
        valid=COMPRESSION_TYPES,
        documentation="How batches are compressed on disk. `producer` keeps them as they were sent. With any "
        "other value, the broker recompresses batches that use another codec.",
    ),
    _key(
        "compression.gzip.level",
        Synonym("compression.gzip.level"),
        valid=GZIP_LEVELS,
        documentation="The level of gzip if `compression.type` is gzip; -1 is the library's default.",
    ),
    _key(
        "compression.lz4.level",
        Synonym("compression.lz4.level"),
        valid=LZ4_LEVELS,
        documentation="The level of lz4 if `compression.type` is lz4. The default selects its fast mode, as in Kafka.",
    ),
    _key(
        "compression.zstd.level",
        Synonym("compression.zstd.level"),
        valid=ZSTD_LEVELS,
        documentation="The level of zstd if `compression.type` is zstd.",
    ),
    _key(
        "delete.retention.ms",
        Synonym("log.cleaner.delete.retention.ms"),
        valid=AtLeast(0),
        documentation="How long compaction keeps a tombstone in a log, so that consumers can read it.",
    ),
    _key(
        "file.delete.delay.ms",
        Synonym("log.segment.delete.delay.ms"),
        valid=AtLeast(0),
        documentation="How long the file of a deleted segment stays on disk, so that reads in progress can finish.",
    ),
    _key(
        "flush.messages",
        Synonym("log.flush.interval.messages"),
        valid=AtLeast(1),
        documentation="An acknowledgement waits for a sync if this many records of the log are unsynced. With "
        "1, every acknowledgement waits for a sync.",
    ),
    _key(
        "flush.ms",
        Synonym("log.flush.interval.ms"),
        valid=AtLeast(0),
        otherwise=LONG_MAX,
        documentation="A background sync of the log starts when its oldest unsynced record is this old.",
    ),
    _key(
        "index.interval.bytes",
        Synonym("log.index.interval.bytes"),
        valid=AtLeast(0),
        documentation="The offset index gets one entry for about this many bytes of log.",
    ),
    _key(
        "local.retention.bytes",
        Synonym("log.local.retention.bytes"),
        valid=AtLeast(-2),
        documentation="How many bytes of an archived partition brokers keep on their own disks; -2 means "
        "`retention.bytes`, -1 no limit.",
    ),
    _key(
        "local.retention.ms",
        Synonym("log.local.retention.ms"),
        valid=AtLeast(-2),
        documentation="How long brokers keep archived records on their own disks; -2 means as long as "
        "`retention.ms`, -1 forever.",
    ),
    _key(
        "max.compaction.lag.ms",
        Synonym("log.cleaner.max.compaction.lag.ms"),
        valid=AtLeast(1),
        documentation="A log with uncompacted records older than this is compacted, however small its share of "
        "new records is.",
    ),
    _key(
        "max.message.bytes",
        Synonym("message.max.bytes"),
        valid=AtLeast(0),
        documentation="The largest record batch that the broker accepts, measured as it arrives and again after "
        "recompression.",
    ),
    _key(
        "message.timestamp.after.max.ms",
        Synonym("log.message.timestamp.after.max.ms"),
        valid=AtLeast(0),
        documentation="How far a producer's timestamp may be ahead of the broker's clock.",
    ),
    _key(
        "message.timestamp.before.max.ms",
        Synonym("log.message.timestamp.before.max.ms"),
        valid=AtLeast(0),
        documentation="How far a producer's timestamp may be behind the broker's clock.",
    ),
    _key(
        "message.timestamp.type",
        Synonym("log.message.timestamp.type"),
        valid=TIMESTAMP_TYPES,
        documentation="Whether records carry the producer's time (`CreateTime`) or the broker's (`LogAppendTime`).",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Synonym("log.cleaner.min.cleanable.ratio"),
        valid=SHARES,
        documentation="A log is compacted when at least this share of it is new since its last compaction.",
    ),
    _key(
        "min.compaction.lag.ms",
        Synonym("log.cleaner.min.compaction.lag.ms"),
        valid=AtLeast(0),
        documentation="Records younger than this are not compacted.",
    ),
    _key(
        "min.insync.replicas",
        Synonym("min.insync.replicas"),
        valid=AtLeast(1),
        documentation="With acks=all, a write is accepted only while at least this many replicas are in sync.",
    ),
    _key(
        "retention.bytes",
        Synonym("log.retention.bytes"),
        valid=AtLeast(-1),
        documentation="The largest size of a partition's log. Beyond it, the oldest segments are deleted; -1 "
        "means no limit.",
    ),
    _key(
        "retention.ms",
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", factor=_MINUTE_MS),
        Synonym("log.retention.hours", factor=_HOUR_MS),
        valid=AtLeast(-1),
        documentation="How long records are kept; -1 means forever.",
    ),
    _key(
        "segment.bytes",
        Synonym("log.segment.bytes"),
        valid=AtLeast(1 << 20),
        documentation="A log starts a new segment when the current one reaches this size.",
    ),
    _key(
        "segment.index.bytes",
        Synonym("log.index.size.max.bytes"),
        valid=AtLeast(4),
        documentation="The largest size of an index file. A full index starts a new segment.",
    ),
    _key(
        "segment.ms",
        Synonym("log.roll.ms"),
        Synonym("log.roll.hours", factor=_HOUR_MS),
        valid=AtLeast(1),
        documentation="A log starts a new segment when the current one reaches this age, even if it is not full.",
    ),
    TopicKey(
        name="tailrace.archive.enable",
        type=ConfigType.BOOLEAN,
        default=False,
        documentation="Whether the topic has an archive. If so, brokers remove a segment only after it is "
        "archived, and serve older offsets from the archive. Not possible with "
        "`cleanup.policy=compact`.",
        importance="medium",
        update_mode="cluster-wide",
        synonyms=(),
    ),
    _key(
        "tailrace.archive.lag.policy",
        Synonym("tailrace.archive.lag.policy"),
        valid=ARCHIVE_LAG_POLICIES,
        documentation="What happens to expired records that are not archived yet. `keep`: brokers keep them, "
        "and refuse producers if the disk fills up. `drop`: brokers delete them, and they are "
        "lost.",
    ),
    _key(
        "tailrace.archive.retention.ms",
        Synonym("tailrace.archive.retention.ms"),
        valid=AtLeast(-1),
        documentation="How long records stay in the archive; -1 means forever. Compaction of the archive "
        "removes older ones.",
    ),
    _key(
        "tailrace.archive.uri",
        Synonym("tailrace.archive.uri"),
        valid=ARCHIVE_PLACES,
        documentation="Where the topic is archived: a directory, `file:`, `s3://bucket/prefix`, `hdfs://` or "
        "`webhdfs://`. To move an archive, move its files first, then change this.",
    ),
    _key(
        "tailrace.records.validate",
        Synonym("tailrace.records.validate"),
        documentation="Whether brokers decode every produced record, as Apache Kafka does, and refuse batches "
        "that clients could not decode (INVALID_RECORD). If not, they check only the header and "
        "CRC of a batch, so a broken client can store batches that consumers, queries and the "
        "archive cannot decode.",
    ),
    _key(
        "unclean.leader.election.enable",
        Synonym("unclean.leader.election.enable"),
        documentation="Whether a replica that is not in sync may lead if no in-sync replica is alive. The "
        "partition is served again, but records that only the other replicas have are lost.",
    ),
)

TOPIC_KEYS: Mapping[str, TopicKey] = MappingProxyType({key.name: key for key in _TABLE})
