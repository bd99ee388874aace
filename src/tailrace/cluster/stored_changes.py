"""Changes of single values in the store, safe against lost answers and concurrent writers.

A function makes the new value from the stored one. If another writer was faster, the function is called again with that
writer's result. A change that has begun is completed, because the image must follow the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tailrace.cluster.following import FollowedImage
from tailrace.cluster.patience import ATTEMPTS
from tailrace.cluster.store import ABSENT, MAX_TRANSACTION_BYTES, Check, Entry, TooLarge, Unavailable, Write
from tailrace.errors import ErrorCode, KafkaError

logger = logging.getLogger("tailrace.cluster")

#: The maximum size that a client's request may give a value. An ISR is never longer than the list of replicas, so a
#: value at most doubles by itself.
MAX_VALUE_BYTES = MAX_TRANSACTION_BYTES // 2


class StoredChanges(FollowedImage):
    """The image, and what all changes to the store have in common."""

    async def _to_its_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Complete a change even if its caller is cancelled: the image must follow the store."""

        async def run() -> Exception | None:
            try:
                await change
            except Unavailable as error:
                return timed_out(error)
            except Exception as refusal:  # noqa: BLE001  raised below: a change may fail its request, never the broker
                return refusal
            return None

        refusal = await asyncio.shield(self._tasks.spawn(run(), "metadata change"))
        if refusal is not None:
            raise refusal

    async def _list(self, directory: str) -> Sequence[Entry]:
        try:
            return await self._store.list(directory)
        except Unavailable as error:
            raise timed_out(error) from error

    async def _alter(
        self, key: str, change: Callable[[bytes | None], bytes | None], beside: str | None = None
    ) -> Entry:
        """Apply a function to a stored value; returns the entry after it, with version ABSENT if there is none.

        With `beside`, only while that topic exists.
        """
        tried: list[bytes] = []
        failure = Unavailable("the metadata store did not confirm the change")
        while len(tried) < ATTEMPTS:
            entry = await self._get(key)
            if entry is not None and entry.value in tried:
                return entry  # an unanswered attempt was applied, or another writer wrote the same
            value = None if entry is None else entry.value
            try:
                wanted = change(value)
            except KafkaError:
                if tried:
                    # The unanswered attempt may have been applied, and others may have built on it. An error now would
                    # claim that it never was.
                    raise timed_out(failure) from failure
                raise
            if wanted == value or wanted is None:
                return entry or Entry(key, b"", ABSENT)
            checks = [Check(key, ABSENT if entry is None else entry.version)]
            if beside is not None:
                if (owner := await self._get(beside)) is None:
                    raise unknown_topic()
                checks.append(Check(beside, owner.version))
            try:
                versions = await self._store.txn(checks, [Write(key, wanted)])
            except TooLarge as error:
                # An earlier unanswered attempt may have been applied all the same.
                raise timed_out(failure if tried else error) from error
            except Unavailable as error:
                failure = error
                tried.append(wanted)
                continue
            if versions is not None:
                return Entry(key, wanted, versions[0])
        raise timed_out(failure) from failure

    async def _get(self, key: str) -> Entry | None:
        try:
            return await self._store.get(key)
        except Unavailable as error:
            logger.error("Cannot read metadata: %s", error)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error


def bounded(value: bytes, stored: bytes | None = None) -> bytes:
    """Refuse a value that is too large for some store once its ISRs and epochs grow; shrinking is always allowed."""
    if len(value) > MAX_VALUE_BYTES and (stored is None or len(value) > len(stored)):
        raise _too_large(f"It would take {len(value)} bytes, but the limit is {MAX_VALUE_BYTES}")
    return value


def _too_large(problem: str) -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"This is too large for one resource in the metadata store. {problem}: use fewer partitions, fewer replicas "
        "or shorter configuration values.",
    )


def unknown_topic() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")


def timed_out(error: Unavailable) -> KafkaError:
    logger.error("Metadata change failed: %s", error)
    if isinstance(error, TooLarge):
        return _too_large(str(error))
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
