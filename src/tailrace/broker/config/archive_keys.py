"""Keys of the archive."""

from __future__ import annotations

from tailrace.broker.config.declaration import ARCHIVE_LAG_POLICIES, ARCHIVE_PLACES, BOOLEAN, INT, LONG, STRING, key
from tailrace.broker.config.types import AtLeast, Between, ConfigKey

ARCHIVE_KEYS: tuple[ConfigKey, ...] = (
    key(
        "log.local.retention.ms",
        LONG,
        -2,
        "medium",
        "How long brokers themselves keep archived records; -2 is as long as `log.retention.ms`, -1 for ever.",
        AtLeast(-2),
        update_mode="cluster-wide",
    ),
    key(
        "log.local.retention.bytes",
        LONG,
        -2,
        "medium",
        "The size of an archived log that brokers keep themselves; -2 is `log.retention.bytes`, -1 sets no limit.",
        AtLeast(-2),
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.uri",
        STRING,
        "",
        "medium",
        "Where archived topics that name no place of their own are archived: a directory, `file:`, "
        "`s3://bucket/prefix`, `hdfs://` or `webhdfs://`. Every broker has to reach it.",
        ARCHIVE_PLACES,
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.retention.ms",
        LONG,
        -1,
        "medium",
        "How long records stay in the archive; -1 keeps them for ever. Compaction of the archive removes older ones.",
        AtLeast(-1),
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.records.validate",
        BOOLEAN,
        False,
        "medium",
        "Whether brokers decode every record that is produced, as Apache Kafka does, and refuse a batch "
        "that clients could not decode (INVALID_RECORD). Off, a batch is checked by its header and CRC only, and a "
        "broken client can store batches that consumers, queries and the archive stumble over.",
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.lag.policy",
        STRING,
        "keep",
        "medium",
        "What happens to records that retention has ended and that are not archived yet. `keep`: they stay, and where "
        "the disk fills up producers are refused. `drop`: they go, and nobody can read them any more.",
        ARCHIVE_LAG_POLICIES,
        update_mode="cluster-wide",
    ),
    key(
        "tailrace.archive.disk.watermark.percent",
        INT,
        90,
        "medium",
        "How full the volume of a log directory may be before producers are refused to archived topics whose records "
        "cannot be removed because they are not archived yet.",
        Between(1, 100),
        update_mode="cluster-wide",
    ),
)
