"""The operator's group settings, in the units that the coordinator uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's group settings, with the broker's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_ms: int = 600_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    #: The assignors that members may ask for; the first is the default.
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    #: Whether a classic group may become one of the newer protocol while it runs, and the reverse.
    may_upgrade: bool = True
    may_downgrade: bool = True
