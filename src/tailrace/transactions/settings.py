"""The operator's settings for transactions, in the units that the coordinator uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The broker's settings for transactions, with the broker's defaults."""

    #: Whether transactions may begin: every broker must be able to end them.
    is_enabled: bool = True
    max_timeout_ms: int = 15 * 60_000
    #: How long a transactional id is kept after its last transaction.
    id_expiration_ms: int = 7 * 24 * 3_600_000
    timeout_check_ms: int = 10_000
    expiration_check_ms: int = 3_600_000
