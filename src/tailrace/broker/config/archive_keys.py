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
        "How long brokers keep archived records on their own disks; -2 means as long as `log.retention.ms`, "
        "-1 forever.",
        AtLeast(-2),
        update_mode="cluster-wide",
    ),
    key(
        "log.local.retention.bytes",
        LONG,
        -2,
        "medium",
        "How many bytes of an archived partition brokers keep on their own disks; -2 means "
        "`log.retention.bytes`, -1 no limit.",
        AtLeast(-2),
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.uri",
        STRING,
        "",
        "medium",
        "Where topics are archived that do not set this themselves: a directory, `file:`, "
        "`s3://bucket/prefix`, `hdfs://` or `webhdfs://`. Every broker must be able to reach it.",
        ARCHIVE_PLACES,
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.retention.ms",
        LONG,
        -1,
        "medium",
        "How long records stay in the archive; -1 means forever. Compaction of the archive removes older ones.",
        AtLeast(-1),
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.records.validate",
        BOOLEAN,
        False,
        "medium",
        "Whether brokers decode every produced record, as Apache Kafka does, and refuse batches that clients "
        "could not decode (INVALID_RECORD). If not, they check only the header and CRC of a batch, so a "
        "broken client can store batches that consumers, queries and the archive cannot decode.",
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.lag.policy",
        STRING,
        "keep",
        "medium",
        "What happens to expired records that are not archived yet. `keep`: brokers keep them, and refuse "
        "producers if the disk fills up. `drop`: brokers delete them, and they are lost.",
        ARCHIVE_LAG_POLICIES,
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.disk.watermark.percent",
        INT,
        90,
        "medium",
        "If the volume of a log directory is fuller than this, the broker refuses writes to archived topics "
        "whose records it cannot remove because they are not archived yet.",
        Between(1, 100),
        update_mode="cluster-wide",
    ),
)
