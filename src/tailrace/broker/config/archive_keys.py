"""Configuration keys of the archive."""

from __future__ import annotations

from tailrace.broker.config.declaration import ARCHIVE_LAG_POLICIES, ARCHIVE_PLACES, BOOLEAN, INT, LONG, STRING, key
from tailrace.broker.config.types import AtLeast, Between, ConfigKey

ARCHIVE_KEYS: tuple[ConfigKey, ...] = (
    key(
        "log.local.retention.ms",
        LONG,
        -2,
        "medium",
        "How long brokers keep archived records on their own disks; -2 means as long as `log.retention.ms`, -1 "
        "for ever.",
        AtLeast(-2),
        update_mode="cluster-wide",
    ),
    key(
        "log.local.retention.bytes",
        LONG,
        -2,
        "medium",
        "The size up to which brokers keep an archived log on their own disks; -2 means `log.retention.bytes`, "
        "-1 no limit.",
        AtLeast(-2),
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.uri",
        STRING,
        "",
        "medium",
        "The default location of archives: a directory, `file:`, `s3://bucket/prefix`, `hdfs://` or "
        "`webhdfs://`. Every broker must be able to reach it. A topic can have its own location.",
        ARCHIVE_PLACES,
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.retention.ms",
        LONG,
        -1,
        "medium",
        "How long the archive keeps records; -1 means for ever. Compaction of the archive removes older ones.",
        AtLeast(-1),
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.records.validate",
        BOOLEAN,
        False,
        "medium",
        "If true, brokers decode every produced record, as Apache Kafka does, and refuse a batch that clients "
        "could not decode (INVALID_RECORD). If false, they check only the header and CRC of a batch, and a "
        "broken client can store batches on which consumers, queries and the archive fail.",
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.lag.policy",
        STRING,
        "keep",
        "medium",
        "What to do with records whose retention is over but that are not archived yet. `keep` keeps them; if "
        "the disk fills up, producers are refused. `drop` deletes them for good.",
        ARCHIVE_LAG_POLICIES,
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.disk.watermark.percent",
        INT,
        90,
        "medium",
        "The disk usage, in percent of a log directory's volume, at which producers to archived topics are "
        "refused while records cannot be removed because they are not archived yet.",
        Between(1, 100),
        update_mode="cluster-wide",
    ),
)
