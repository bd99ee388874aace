"""This broker as a member of the cluster: its epoch, its session, and the key that tells others that it is alive.

Every start of the process claims a new broker epoch before anything else, so that nothing of an earlier process can be
taken for this one's. A broker whose logs may have lost their ends leaves all ISRs before it registers. A lost session
is replaced as soon as the store answers, in the same epoch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias

from tailrace.cluster.decisions import after_crash, handed_over, leaves_with_confirmation
from tailrace.cluster.image import BrokerImage, TopicImage
from tailrace.cluster.keys import broker_epoch_key, broker_key, epoch_from_bytes, epoch_to_bytes
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.patience import RETRY_SECONDS, insist
from tailrace.cluster.store import ABSENT, Check, Entry, Session, Store, Unavailable, Write
from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.cluster")

_Departure: TypeAlias = Callable[[TopicImage], TopicImage]
#: Asks leaders of partitions whether they respond in a given epoch; returns the partitions whose leaders did.
AskLeaders: TypeAlias = Callable[
    [Mapping[int, BrokerImage], Sequence[tuple[TopicPartition, int, int]]], Awaitable[Collection[TopicPartition]]
]

#: Stores notice the end of a session some time after its time to live.
_EXPIRY_MARGIN_SECONDS = 2.0
_POLL_SECONDS = 0.2
NO_EPOCH = -1


class Registration:
    """Registers a broker, and keeps it registered."""

    def __init__(
        self,
        store: Store,
        metadata: ClusterMetadata,
        clock: Clock,
        random: Random,
        broker_id: int,
        session_timeout_ms: int,
        tasks: Tasks,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._random = random
        self._broker_id = broker_id
        self._session_timeout_ms = session_timeout_ms
        self._tasks = tasks
        #: Identifies this start of the broker; part of its fetches and of the clean shutdown marker.
        self.epoch = NO_EPOCH
        self._epoch_version = ABSENT
        self._directory_ids: tuple[str, ...] = ()
        self._broker: BrokerImage | None = None
        self._keeping: asyncio.Task[None] | None = None
        #: The session of this broker's registration; replaced when it is lost.
        self.session: Session | None = None
        #: When that session started.
        self._registered_at = -math.inf
        #: Called when the session is lost, and when there is a new one.
        self.on_change: Callable[[], None] = _ignore

    @property
    def deadline(self) -> float:
        """The monotonic time until which others are certain to consider this broker alive."""
        return -math.inf if self.session is None else self.session.deadline

    @property
    def settling_seconds(self) -> float:
        """How long other brokers still have to come back after an outage: one session timeout from registration."""
        return max(0.0, self._registered_at + self._session_timeout_ms / 1000 - self._clock.monotonic())

    @property
    def is_registered(self) -> bool:
        return self.session is not None and not self.session.is_lost

    # --- before anything is served

    async def claim(self, directory_ids: Sequence[str], stopped_in_epoch: int | None) -> int:
        """Begin a new epoch, and leave the ISRs unless the logs are as this broker left them in the last epoch.

        `stopped_in_epoch` is the epoch in the clean shutdown markers of the log directories: None without a marker, -1
        if a version without epochs wrote it.
        """
        self._directory_ids = tuple(directory_ids)
        await insist(self._wait_until_free)
        last = await insist(self._last_epoch)
        await insist(self._begin_epoch)
        if stopped_in_epoch is not None and stopped_in_epoch != last:
            logger.warning(
                "The log directories were last stopped cleanly in broker epoch %d, but the last epoch was %d: they are "
                "an older copy, or do not all belong to this broker; treating them as out of sync",
                stopped_in_epoch,
                last,
            )
        if stopped_in_epoch != last:
            await insist(self._leave_after_crash)
        return self.epoch

    async def _wait_until_free(self) -> None:
        """Refuse to run as a second broker with this id, before anything of the first is touched."""
        deadline: float | None = None
        while True:
            entry = await self._store.get(broker_key(self._broker_id))
            if entry is None or self._is_ours(entry):
                return
            other = BrokerImage.from_bytes(entry.value)
            if deadline is None:
                wait = self._session_timeout_ms / 1000 + _EXPIRY_MARGIN_SECONDS
                deadline = self._clock.monotonic() + wait
                logger.warning(
                    "node.id=%d is registered by %s: waiting up to %.0f s for its session to end",
                    self._broker_id,
                    _description(other),
                    wait,
                )
            elif self._clock.monotonic() >= deadline:
                raise _already_registered(other)
            await asyncio.sleep(_POLL_SECONDS)

    def _is_ours(self, entry: Entry) -> bool:
        """Whether a registration is this process's, or a dead one's, whose directory this process has locked."""
        registered = BrokerImage.from_bytes(entry.value)
        is_dead = any(each and each in self._directory_ids for each in registered.directory_ids)
        return is_dead or registered.epoch == self.epoch

    async def _last_epoch(self) -> int:
        entry = await self._store.get(broker_epoch_key(self._broker_id))
        return NO_EPOCH if entry is None else epoch_from_bytes(entry.value)

    async def _begin_epoch(self) -> None:
        """Claim the next epoch; an epoch whose claim was not confirmed is skipped."""
        key = broker_epoch_key(self._broker_id)
        while True:
            entry = await self._store.get(key)
            epoch = 1 if entry is None else epoch_from_bytes(entry.value) + 1
            check = Check(key, ABSENT if entry is None else entry.version)
            versions = await self._store.txn([check], [Write(key, epoch_to_bytes(epoch))])
            if versions is not None:
                self.epoch, self._epoch_version = epoch, versions[0]
                self._metadata.own_epoch = Check(key, versions[0])
                return

    async def _leave_after_crash(self) -> None:
        """Leave ISRs and leadership of every topic to others."""
        # As of this epoch: no request of an earlier epoch can add this broker any more.
        await self._metadata.refresh()
        await self._depart(lambda topic: after_crash(topic, self._broker_id))

    async def _depart(self, departed: _Departure) -> None:
        changes = {
            topic.lineage: departed
            for topic in self._metadata.topics
            if departed(topic) is not topic or self._metadata.is_doubtful(topic.lineage)
        }
        await self._metadata.alter_topics(changes)

    # --- while it serves

    async def register(self, broker: BrokerImage) -> None:
        """Register this broker, and keep it registered until `close`."""
        self._broker = replace(broker, epoch=self.epoch, directory_ids=self._directory_ids)
        await insist(self._open)
        self._keeping = self._tasks.spawn(self._keep(), "registration")
        await self._metadata.register_broker(self._broker)

    async def _open(self) -> None:
        """Write the registration in a new session."""
        session = await self._store.open_session(self._session_timeout_ms)
        try:
            await self._write(session)
            # From here on no other broker is elected for partitions that this broker leads. It must learn what was
            # decided before, while it was considered gone, before it acknowledges anything alone.
            await self._metadata.refresh()
            await self._metadata.settle()
        except BaseException:
            await session.close()
            raise
        self._registered_at = self._clock.monotonic()
        self.session = session
        self.on_change()

    async def _write(self, session: Session) -> None:
        assert self._broker is not None
        key = broker_key(self._broker_id)
        value = replace(self._broker, epoch=self.epoch).to_bytes()
        while True:
            entry = await self._store.get(key)
            if entry is not None and not self._is_ours(entry):
                raise _already_registered(BrokerImage.from_bytes(entry.value))
            checks = [
                Check(key, ABSENT if entry is None else entry.version),
                Check(broker_epoch_key(self._broker_id), self._epoch_version),
            ]
            if await self._store.txn(checks, [Write(key, value, session)]) is not None:
                return
            await self._require_own_epoch()

    async def _require_own_epoch(self) -> None:
        if await self._last_epoch() != self.epoch:
            raise StorageError(
                f"another process has started as node.id={self._broker_id} while this one had no connection to the "
                "metadata store: give one of them another --node-id"
            )

    async def _keep(self) -> None:
        while True:
            assert self.session is not None
            await self.session.wait_until_lost()
            logger.warning(
                "The session in the metadata store has expired: other brokers consider this one gone, and it does not "
                "acknowledge writes alone until it is registered again"
            )
            self.on_change()
            await self._open_again()
            logger.info("Registered in the metadata store again")

    async def _open_again(self) -> None:
        is_told = False
        while True:
            try:
                return await self._open()
            except Unavailable as error:
                if not is_told:
                    logger.error("Cannot reach the metadata store, retrying: %s", error)
                is_told = True
            await asyncio.sleep(RETRY_SECONDS * (0.5 + self._random.random()))

    # --- the end

    async def hand_over(self, ask_leaders: AskLeaders) -> None:
        """Leave the ISRs of partitions that others lead, before a stop; the image then shows it."""
        self._stop_keeping()  # a stopping broker need not register again, and must not in its last epoch
        try:
            await insist(lambda: self._hand_over(ask_leaders))
        except Unavailable as error:
            logger.warning("Stopping without leaving the ISRs: %s", error)

    async def _hand_over(self, ask_leaders: AskLeaders) -> None:
        brokers = await self._metadata.registered_brokers()
        live = [broker_id for broker_id in brokers if broker_id != self._broker_id]
        if not live:
            return
        # A new epoch, so that no leader takes this broker back into an ISR because of its remaining fetches.
        await self._begin_epoch()
        await self._metadata.refresh()
        asked = [
            (TopicPartition(topic.name, number), state.leader_epoch, state.leader)
            for topic in self._metadata.topics
            for number, state in enumerate(topic.partitions)
            if leaves_with_confirmation(state, self._broker_id, live)
        ]
        answered = dict.fromkeys(await ask_leaders(brokers, asked)) if asked else {}
        confirmed: dict[str, dict[int, int]] = {}
        for partition, leader_epoch, _ in asked:
            if partition in answered:
                confirmed.setdefault(partition.topic, {})[partition.partition] = leader_epoch
        await self._depart(lambda topic: handed_over(topic, self._broker_id, live, confirmed.get(topic.name, {})))

    async def close(self) -> None:
        """End the registration."""
        self._stop_keeping()
        if self.session is not None:
            await self.session.close()

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()


def _description(broker: BrokerImage) -> str:
    address = next((f"{endpoint.host}:{endpoint.port}" for endpoint in broker.endpoints), broker.host or "unknown")
    started = datetime.fromtimestamp(broker.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"a broker at {address} (pid {broker.pid} on {broker.host or 'an unknown machine'}, started {started})"


def _already_registered(broker: BrokerImage) -> StorageError:
    return StorageError(
        f"node.id={broker.broker_id} is already registered by {_description(broker)}: stop it, or give this one "
        "another --node-id"
    )


def _ignore() -> None:
    """Do nothing: no listener is set yet."""
