"""What one partition log needs to know of its topic's configuration, typed and in Kafka's units."""

from __future__ import annotations

from dataclasses import dataclass

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
