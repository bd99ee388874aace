"""The part of a topic's configuration that a partition log needs, typed and in Kafka's units."""

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
    #: How many records may be in the log unsynced; beyond that, acknowledgements wait for a sync.
    flush_messages: int = NEVER
    #: How long a record may be in the log before a background sync starts.
    flush_ms: int = NEVER
    #: Whether the broker stamps records with its own clock on append.
    log_append_time: bool = False
    timestamp_before_max_ms: int = NEVER
    timestamp_after_max_ms: int = 3_600_000
    delete_expired: bool = True
    compact: bool = False
    #: The dirty share of a log at which it is compacted.
    min_cleanable_ratio: float = 0.5
    #: How long a tombstone stays after compaction first sees it.
    delete_retention_ms: int = 24 * 3_600_000
    #: The age below which a record is not compacted, and the age at which it must be.
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    #: Whether records must be archived before removal, and where; the retention above then applies to the broker's
    #: copy.
    is_archived: bool = False
    archive_uri: str = ""
    #: Whether retention removes records even if they are not archived yet.
    drops_unarchived: bool = False
    #: Maximum number of idempotent producers whose state is kept.
    max_producers: int = 2000
    #: The codec of all stored batches; None keeps each batch's own codec.
    compression: Compression | None = None
    #: Kafka's compression level for that codec; None if it has no levels.
    compression_level: int | None = None
    #: Whether every record of a produced batch must be decodable by clients.
    validates_records: bool = False
    #: Whether a produced batch needs checks beyond its header and CRC.
    looks_into_batches: bool = field(init=False, compare=False)
    #: The age at which the active segment rolls.
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
        """Whether records may be of any age, so that no batch can contain one that is too old."""
        return self.timestamp_before_max_ms >= NEVER
