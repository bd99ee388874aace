"""Every topic configuration key, with the broker keys that give it its default.

Keeps one invariant: a topic key means what its broker synonyms mean, in the topic's unit. It must not know
any topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tailrace.broker.config_keys import BROKER_KEYS, CLEANUP_POLICIES, COMPRESSION_TYPES, TIMESTAMP_TYPES
from tailrace.broker.config_types import LONG_MAX, AtLeast, Synonym, TopicKey, Valid, Value

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


def _key(name: str, *synonyms: Synonym, valid: Valid, documentation: str, otherwise: Value = None) -> TopicKey:
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
        documentation="What happens to old segments. `delete` drops them by age and size; compaction is not "
        "supported yet.",
    ),
    _key(
        "compression.type",
        Synonym("compression.type"),
        valid=COMPRESSION_TYPES,
        documentation="How batches are compressed on disk. `producer` keeps them as they were sent.",
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
        "max.message.bytes",
        Synonym("message.max.bytes"),
        valid=AtLeast(0),
        documentation="The largest record batch that is accepted, counted after compression.",
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
)

TOPIC_KEYS: Mapping[str, TopicKey] = MappingProxyType({key.name: key for key in _TABLE})
