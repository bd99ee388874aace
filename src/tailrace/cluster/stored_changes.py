"""Changes of single values in the store: they hold if the store does not answer and if others change the value, too.

A function makes the new value of the stored one. If another writer was faster, the function is called again with what
that one wrote. A change that has begun is carried through, because the image must follow the store.
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

#: The most that a client's request may make of one value. ISRs are as long as the lists of replicas at most, so that a
#: value never becomes twice as large by itself.
MAX_VALUE_BYTES = MAX_TRANSACTION_BYTES // 2


class StoredChanges(FollowedImage):
    """The image, and what every change to the store has in common."""

    async def _to_its_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Carry a change through even if its caller is cancelled: the image must follow the store."""

        async def run() -> Exception | None:
            try:
                await change
            except Unavailable as error:
                return timed_out(error)
            except Exception as refusal:  # noqa: BLE001  raised below: a change costs its request, never the broker
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
        """Make a value what a function makes of the stored one; how it is then, with version ABSENT where it is not.

        Only while a topic is there, where it belongs to that.
        """
        tried: list[bytes] = []
        failure = Unavailable("the store does not say whether the change was made")
        while len(tried) < ATTEMPTS:
            entry = await self._get(key)
            if entry is not None and entry.value in tried:
                return entry  # what was not answered was applied, or somebody else wanted the same
            value = None if entry is None else entry.value
            try:
                wanted = change(value)
            except KafkaError:
                if tried:
                    # What was not answered may have been made, and others have gone on from there: to refuse it now
                    # would be to say that it never was.
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
                # What was not answered before may have been made all the same.
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
            logger.error("metadata cannot be read: %s", error)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error


def bounded(value: bytes, stored: bytes | None = None) -> bytes:
    """A value that every store takes, also when ISRs and epochs of it have grown; one may always become smaller."""
    if len(value) > MAX_VALUE_BYTES and (stored is None or len(value) > len(stored)):
        raise _too_large(f"It would take {len(value)} bytes, the most are {MAX_VALUE_BYTES}")
    return value


def _too_large(problem: str) -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"This is more than the metadata store takes for one resource. {problem}: use fewer partitions, fewer replicas "
        "or shorter configuration values.",
    )


def unknown_topic() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")


def timed_out(error: Unavailable) -> KafkaError:
    logger.error("metadata change failed: %s", error)
    if isinstance(error, TooLarge):
        return _too_large(str(error))
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
