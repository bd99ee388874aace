"""The election of the controller; every election increments the controller epoch in the same transaction.

Every write of a controller checks the version of that epoch, so the store itself refuses a deposed controller that does
not know it yet. The epoch is permanent, while the key that names the controller ends with its session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.cluster.keys import CONTROLLER, CONTROLLER_EPOCH, ElectedController, epoch_from_bytes, epoch_to_bytes
from tailrace.cluster.store import ABSENT, Check, Session, Store, Unavailable, Write
from tailrace.errors import TailraceError


class FencedError(TailraceError):
    """Another controller was elected; writes of this one are refused."""


class Fence(NamedTuple):
    """Proof of an election, checked by every write."""

    epoch: int
    check: Check


class Election:
    """One broker's part in controller elections."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id

    async def campaign(self, session: Session) -> Fence | None:
        """Become the controller for the lifetime of a session; None if another broker is the controller."""
        holder = await self._store.get(CONTROLLER)
        if holder is not None and ElectedController.from_bytes(holder.value).broker_id != self._broker_id:
            return None
        # A key with this broker's own id is from an earlier session: a registered broker has no other.
        last = await self._store.get(CONTROLLER_EPOCH)
        epoch = 1 if last is None else epoch_from_bytes(last.value) + 1
        elected = ElectedController(self._broker_id, epoch)
        try:
            versions = await self._store.txn(
                [
                    Check(CONTROLLER, ABSENT if holder is None else holder.version),
                    Check(CONTROLLER_EPOCH, ABSENT if last is None else last.version),
                ],
                [Write(CONTROLLER, elected.to_bytes(), session), Write(CONTROLLER_EPOCH, epoch_to_bytes(epoch))],
            )
        except Unavailable:
            return await self._outcome_of(elected)
        return None if versions is None else Fence(epoch, Check(CONTROLLER_EPOCH, versions[1]))

    async def _outcome_of(self, elected: ElectedController) -> Fence | None:
        """Determine the outcome of an unanswered election; no other broker is elected in that epoch."""
        holder = await self._store.get(CONTROLLER)
        last = await self._store.get(CONTROLLER_EPOCH)
        if holder is None or last is None or epoch_from_bytes(last.value) != elected.epoch:
            return None
        if ElectedController.from_bytes(holder.value) != elected:
            return None
        return Fence(elected.epoch, Check(CONTROLLER_EPOCH, last.version))

    async def renew(self, fence: Fence) -> Sequence[Check]:
        """The checks for a controller's writes after one was refused; FencedError if it was deposed."""
        last = await self._store.get(CONTROLLER_EPOCH)
        if last is None or last.version != fence.check.version:
            raise FencedError(f"another controller was elected after epoch {fence.epoch}")
        return [fence.check]

    async def resign(self, fence: Fence) -> None:
        """Resign, so that another broker can be elected at once."""
        holder = await self._store.get(CONTROLLER)
        if holder is not None and ElectedController.from_bytes(holder.value) == (self._broker_id, fence.epoch):
            await self._store.txn([fence.check, Check(CONTROLLER, holder.version)], [Write(CONTROLLER, None)])
