"""Checks that all stores make alike, so that code that runs on one store runs on every other."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cluster.store import MAX_OPERATIONS, MAX_TRANSACTION_BYTES, Check, TooLarge, Write


def refuse_impossible(checks: Sequence[Check], writes: Sequence[Write]) -> None:
    """ValueError for a transaction that is too long, writes a key twice, has an invalid key or two sessions.

    `TooLarge` for one with too many bytes, whose size depends on clients' requests and not on the code alone.
    """
    if len(checks) + len(writes) > MAX_OPERATIONS:
        raise ValueError(
            f"{len(checks)} checks and {len(writes)} writes exceed the limit of {MAX_OPERATIONS} operations"
        )
    keys = [write.key for write in writes]
    if len(dict.fromkeys(keys)) < len(keys):
        raise ValueError(f"a transaction writes a key twice: {keys}")
    for key in keys:
        if not key.startswith("/") or key.endswith("/") or "//" in key:
            raise ValueError(f"{key!r} is not a valid key: expected /name/name")
    if len(dict.fromkeys(write.session for write in writes if write.session is not None)) > 1:
        raise ValueError("a transaction has writes of two sessions")
    size = sum(len(check.key.encode()) for check in checks)
    size += sum(len(write.key.encode()) + len(write.value or b"") for write in writes)
    if size > MAX_TRANSACTION_BYTES:
        raise TooLarge(
            f"{size} bytes exceed the limit of a metadata store's transaction ({MAX_TRANSACTION_BYTES}): "
            f"{', '.join(keys)}"
        )
