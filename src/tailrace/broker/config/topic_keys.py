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
        documentation="What to do with old segments. `delete` deletes them by age and size; `compact` keeps the "
        "newest record of each key; both may be given.",
    ),
    _key(
        "compression.type",
        Synonym("compression.type"),
        valid=COMPRESSION_TYPES,
        documentation="The compression of batches on disk. `producer` keeps batches as they were sent; with any "
        "other value, batches of another codec are recompressed.",
    ),
    _key(
        "compression.gzip.level",
        Synonym("compression.gzip.level"),
        valid=GZIP_LEVELS,
        documentation="The compression level for `compression.type=gzip`; -1 is the library's default.",
    ),
    _key(
        "compression.lz4.level",
        Synonym("compression.lz4.level"),
        valid=LZ4_LEVELS,
        documentation="The compression level for `compression.type=lz4`. The default means fast compression.",
    ),
    _key(
        "compression.zstd.level",
        Synonym("compression.zstd.level"),
        valid=ZSTD_LEVELS,
        documentation="The compression level for `compression.type=zstd`.",
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
        documentation="How long the file of a deleted segment stays on disk, so that running reads can finish.",
    ),
    _key(
        "flush.messages",
        Synonym("log.flush.interval.messages"),
        valid=AtLeast(1),
        documentation="The number of unsynced records of a log at which an acknowledgement waits for a sync; 1 "
        "syncs before every acknowledgement.",
    ),
    _key(
        "flush.ms",
        Synonym("log.flush.interval.ms"),
        valid=AtLeast(0),
        otherwise=LONG_MAX,
        documentation="How long a record may be in a log before a sync starts in the background.",
    ),
    _key(
        "index.interval.bytes",
        Synonym("log.index.interval.bytes"),
        valid=AtLeast(0),
        documentation="The number of bytes of the log between two entries of the offset index.",
    ),
    _key(
        "local.retention.bytes",
        Synonym("log.local.retention.bytes"),
        valid=AtLeast(-2),
        documentation="The size up to which brokers keep the log of an archived topic on their own disks; older "
        "records are in the archive. -2 means `retention.bytes`, -1 no limit.",
    ),
    _key(
        "local.retention.ms",
        Synonym("log.local.retention.ms"),
        valid=AtLeast(-2),
        documentation="How long brokers keep the records of an archived topic on their own disks; older records "
        "are in the archive. -2 means `retention.ms`, -1 for ever.",
    ),
    _key(
        "max.compaction.lag.ms",
        Synonym("log.cleaner.max.compaction.lag.ms"),
        valid=AtLeast(1),
        documentation="The age at which a record is compacted, however small the new share of the log is.",
    ),
    _key(
        "max.message.bytes",
        Synonym("message.max.bytes"),
        valid=AtLeast(0),
        documentation=(
            "The size of the largest accepted record batch, checked when it arrives and again after recompression."
        ),
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
        documentation=(
            "Whether a record has the producer's timestamp (`CreateTime`) or the broker's (`LogAppendTime`)."
        ),
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Synonym("log.cleaner.min.cleanable.ratio"),
        valid=SHARES,
        documentation=("The share of a log that must be new since its last compaction before it is compacted again."),
    ),
    _key(
        "min.compaction.lag.ms",
        Synonym("log.cleaner.min.compaction.lag.ms"),
        valid=AtLeast(0),
        documentation="The minimum age of a record before it is compacted.",
    ),
    _key(
        "min.insync.replicas",
        Synonym("min.insync.replicas"),
        valid=AtLeast(1),
        documentation="The number of in-sync replicas without which produce requests with acks=all are refused.",
    ),
    _key(
        "retention.bytes",
        Synonym("log.retention.bytes"),
        valid=AtLeast(-1),
        documentation=("The size of a partition's log above which its oldest segments are deleted; -1 means no limit."),
    ),
    _key(
        "retention.ms",
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", factor=_MINUTE_MS),
        Synonym("log.retention.hours", factor=_HOUR_MS),
        valid=AtLeast(-1),
        documentation="How long records are kept; -1 means for ever.",
    ),
    _key(
        "segment.bytes",
        Synonym("log.segment.bytes"),
        valid=AtLeast(1 << 20),
        documentation="The size at which a log rolls to a new segment.",
    ),
    _key(
        "segment.index.bytes",
        Synonym("log.index.size.max.bytes"),
        valid=AtLeast(4),
        documentation="The maximum size of an index file; when the index is full, the log rolls to a new segment.",
    ),
    _key(
        "segment.ms",
        Synonym("log.roll.ms"),
        Synonym("log.roll.hours", factor=_HOUR_MS),
        valid=AtLeast(1),
        documentation="The age at which a log rolls to a new segment even if the current one is not full.",
    ),
    TopicKey(
        name="tailrace.archive.enable",
        type=ConfigType.BOOLEAN,
        default=False,
        documentation="If true, the topic has an archive: brokers remove a segment only once it is archived, and "
        "read older offsets from the archive. Not allowed with `cleanup.policy=compact`.",
        importance="medium",
        update_mode="cluster-wide",
        synonyms=(),
    ),
    _key(
        "tailrace.archive.lag.policy",
        Synonym("tailrace.archive.lag.policy"),
        valid=ARCHIVE_LAG_POLICIES,
        documentation="What to do with records whose retention is over but that are not archived yet. `keep` "
        "keeps them; if the disk fills up, producers are refused. `drop` deletes them for good.",
    ),
    _key(
        "tailrace.archive.retention.ms",
        Synonym("tailrace.archive.retention.ms"),
        valid=AtLeast(-1),
        documentation="How long the archive keeps records; -1 means for ever.",
    ),
    _key(
        "tailrace.archive.uri",
        Synonym("tailrace.archive.uri"),
        valid=ARCHIVE_PLACES,
        documentation="The location of the topic's archive: a directory, `file:`, `s3://bucket/prefix`, "
        "`hdfs://` or `webhdfs://`. To move an archive, move its files first, then change this.",
    ),
    _key(
        "tailrace.records.validate",
        Synonym("tailrace.records.validate"),
        documentation="If true, brokers decode every produced record, as Apache Kafka does, and refuse a batch "
        "that clients could not decode (INVALID_RECORD). If false, they check only the header and "
        "CRC of a batch, and a broken client can store batches on which consumers, queries and the "
        "archive fail.",
    ),
    _key(
        "unclean.leader.election.enable",
        Synonym("unclean.leader.election.enable"),
        documentation="If true, a replica that is not in sync may become the leader when no in-sync replica is "
        "alive: the partition is available again, but records that only the other replicas have "
        "are lost.",
    ),
)

TOPIC_KEYS: Mapping[str, TopicKey] = MappingProxyType({key.name: key for key in _TABLE})
