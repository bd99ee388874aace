"""What one partition log needs to know of its topic's configuration, typed and in Kafka's units."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.records.compression import Compression

NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The topic-level settings that shape a log; the defaults are the broker's defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 14 * 24 * 3_600_000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    #: Records that may be in the log without having been synced; an acknowledgement waits beyond that.
    flush_messages: int = NEVER
    #: How long a record may be in the log before a sync is started in the background.
    flush_ms: int = NEVER
    #: Whether the broker stamps records with its own clock as it appends them.
    log_append_time: bool = False
    timestamp_before_max_ms: int = NEVER
    timestamp_after_max_ms: int = 3_600_000
    delete_expired: bool = True
    compact: bool = False
    #: The share of a log that must be dirty for compaction to be worth its while.
    min_cleanable_ratio: float = 0.5
    #: How long a tombstone stays after compaction has first met it.
    delete_retention_ms: int = 24 * 3_600_000
    #: The age below which a record is not compacted, and the age at which it has to be.
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    #: Whether what is removed has to be archived first, and where; the retention above is the broker's own then.
    is_archived: bool = False
    archive_uri: str = ""
    #: Whether retention goes on where the archive is behind.
    drops_unarchived: bool = False
    #: Of so many idempotent producers it is remembered what they wrote last.
    max_producers: int = 2000
    #: The codec that every batch is stored in; None keeps the one it was sent in.
    compression: Compression | None = None
    #: Kafka's number for how hard that codec tries; None where it has no levels.
    compression_level: int | None = None
    #: Whether every record of a produced batch has to be one that clients can decode.
    validates_records: bool = False
    #: Whether more is asked of a produced batch than header and CRC show.
    looks_into_batches: bool = field(init=False, compare=False)
    #: The age at which a segment is to be the newest no more.
    roll_ms: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)
        object.__setattr__(
            self,
            "looks_into_batches",
            self.compression is not None
            or self.compact
            or self.validates_records
            or not (self.log_append_time or self.is_backward_unbounded),
        )

    @property
    def is_backward_unbounded(self) -> bool:
        """Whether records may be of any age, so that no header can hide one that is too old."""
        return self.timestamp_before_max_ms >= NEVER
