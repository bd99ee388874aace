"""The controller: the one broker that keeps a leader for every partition while brokers come and go.

Every broker campaigns; the elected one works in rounds. Each round first asks the store which brokers are alive, so
that late news never makes the controller act on an old state. `cluster/decisions` decides what to ask and what to
change; the controller asks the brokers and writes the changes. The store checks every write against the controller
epoch. A broker whose write is refused, or that loses its session, steps down and campaigns again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.leading.log_ends import Leaderless
from tailrace.cluster.decisions import (
    Answers,
    Change,
    Elect,
    FailOver,
    LeadersQuestion,
    LogEndsQuestion,
    PartitionKey,
    Question,
    Shrink,
    Situation,
    decide,
)
from tailrace.cluster.election import Election, Fence, FencedError
from tailrace.cluster.image import NO_LEADER, BrokerImage, TopicImage
from tailrace.cluster.keys import TOPIC_NAMES, TOPICS, broker_key
from tailrace.cluster.leaders import LogEnd
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.registration import Registration
from tailrace.cluster.store import ABSENT, Check, Store, Unavailable, Write
from tailrace.errors import ConfigError
from tailrace.model import Lineage, TopicPartition
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.controller")

#: Asks brokers for the log ends of leaderless partitions; takes the longest time to wait and a test whether a broker is
#: alive.
AskLogEnds: TypeAlias = Callable[
    [Mapping[int, BrokerImage], Sequence[Leaderless], float, Callable[[int], bool]],
    Awaitable[Mapping[TopicPartition, Mapping[int, LogEnd]]],
]

_RETRY_SECONDS = 0.5
#: How long a leader may take to confirm that it leads; otherwise dead brokers stay in its ISR for now.
_LEADERS_SECONDS = 2.0
#: The interval of a full check without an event.
_LOOK_SECONDS = 300.0
#: The number of checks that fit into a transaction beside the changes.
_MOST_CHECKED = 50


class Controller:
    """One broker's candidacy for controller, and its work while it is the controller."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        metadata: ClusterMetadata,
        registration: Registration,
        broker_id: int,
        tasks: Tasks,
        ask_log_ends: AskLogEnds,
        replication_factors: Callable[[], Mapping[str, int]],
    ) -> None:
        self._config = config
        self._store = store
        self._metadata = metadata
        self._registration = registration
        self._broker_id = broker_id
        self._tasks = tasks
        self._ask_log_ends = ask_log_ends
        # The replication factors that internal topics should have, by name.
        self._replication_factors = replication_factors
        self._election = Election(store, broker_id)
        self._fence: Fence | None = None
        self._news = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []
        #: What the last round handled: the live brokers and the topics.
        self._live: tuple[int, ...] = ()
        self._settled: dict[Lineage, TopicImage] = {}
        self._is_look_due = False

    @property
    def is_active(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._fence is not None

    async def start(self) -> None:
        """Campaign once, so that a single broker is its own controller before it serves, then campaign from now on."""
        self._metadata.on_news = self._news.set
        self._registration.on_change = self._news.set
        try:
            await self._campaign()
        except Unavailable as error:
            logger.warning("no controller is elected yet: %s; retrying", error)
        self._work = [
            self._tasks.spawn(self._run(), "controller"),
            self._tasks.spawn(self._look_now_and_then(), "periodic check of all partitions"),
        ]

    async def close(self) -> None:
        """Stop, and let another broker be elected at once."""
        for task in self._work:
            task.cancel()
        fence, self._fence = self._fence, None
        if fence is not None:
            try:
                await self._election.resign(fence)
            except Unavailable as error:
                logger.warning(
                    "cannot resign as controller: %s; another broker is elected when this broker's session expires",
                    error,
                )

    # --- being elected

    async def _run(self) -> None:
        is_told = False
        while True:
            try:
                if self._fence is None:
                    await self._wait_for_election()
                await self._rule()
                is_told = False
            except FencedError as error:
                self._step_down(str(error))
            except Unavailable as error:
                if not is_told:
                    logger.error("the metadata store does not answer the controller: %s; retrying", error)
                is_told = True
                await asyncio.sleep(_RETRY_SECONDS)

    async def _wait_for_election(self) -> None:
        while True:
            self._news.clear()
            # A controller with this broker's own id is from an earlier session, or one that it has not heard of.
            if self._metadata.controller_id not in (NO_LEADER, self._broker_id):
                await self._news.wait()
                continue
            if await self._campaign():
                return
            # If the store did not answer, no broker may have been elected, and no news comes.
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await self._news.wait()

    async def _campaign(self) -> bool:
        session = self._registration.session
        if session is None or session.is_lost:
            return False
        self._fence = await self._election.campaign(session)
        if self._fence is None:
            return False
        self._live, self._settled = (), {}
        logger.info(
            "this broker became the controller in epoch %d",
            self._fence.epoch,
            extra={"controller_epoch": self._fence.epoch},
        )
        await self._metadata.learn_controller(self._broker_id)
        return True

    def _step_down(self, reason: str) -> None:
        if self._fence is not None:
            logger.warning("this broker is no longer the controller: %s", reason)
        self._fence = None

    # --- working as the controller

    async def _rule(self) -> None:
        """Work until the session is lost; a refused write raises FencedError."""
        fence, session = self._fence, self._registration.session
        if fence is None or session is None:
            return
        await self._wait_for_return()
        await self._load(fence)
        while True:
            self._news.clear()
            if self._metadata.controller_id not in (NO_LEADER, self._broker_id):
                await self._election.renew(fence)  # another broker is the controller, according to news that may be old
            is_held = not session.is_lost and session is self._registration.session
            if not is_held or not await self._round(fence):
                self._step_down("its session in the metadata store ended")
                await asyncio.sleep(_RETRY_SECONDS)  # the store may know that before this broker does
                return
            if not self._news.is_set():
                await self._news.wait()
            # Handle simultaneous changes together: related events arrive in turns of the loop.
            await asyncio.sleep(0)

    async def _wait_for_return(self) -> None:
        """Wait for brokers that may only not be back yet.

        After an outage of the store all sessions have ended, while brokers still follow each other. A broker that has
        been registered for less than the length of a session, such as one that just started, cannot tell which ones are
        dead.
        """
        if self._registration.settling_seconds > 0:
            await self._metadata.refresh()
        while (seconds := self._registration.settling_seconds) > 0:
            self._news.clear()
            brokers = await self._metadata.registered_brokers()
            # In a partition without a leader, a replica outside the ISR may have the longest log.
            awaited = {
                member
                for topic in self._metadata.topics
                for state in topic.partitions
                for member in (state.isr if state.leader in brokers else state.replicas)
            }
            if awaited <= brokers.keys():
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return

    async def _load(self, fence: Fence) -> None:
        """Load the present state of everything that the controller manages."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._metadata.refresh()
        await self._remove_orphans(fence)
        topics = self._metadata.topics
        partitions, seconds = sum(len(topic.partitions) for topic in topics), loop.time() - began
        logger.info(
            "loaded %d topics with %d partitions in %.3f s",
            len(topics),
            partitions,
            seconds,
            extra={"topics": len(topics), "partitions": partitions, "load_seconds": round(seconds, 3)},
        )

    async def _round(self, fence: Fence) -> bool:
        """Repair all partitions that need it; return False if the store does not list this broker as alive."""
        brokers = await self._metadata.registered_brokers()
        live = tuple(brokers)
        if self._broker_id not in brokers:
            return False
        seen = self._metadata.topics
        # Once in a while check all topics, for changes without an event, mainly changed defaults.
        topics = seen if live != self._live or self._is_look_due else self._unsettled(seen)
        self._is_look_due = False
        undecided: Sequence[Lineage] = ()
        if topics:
            factors = self._replication_factors()
            undecided = await self._carry_out(fence, Situation(brokers, topics, self._is_unclean, factors))
        # The next round checks what changed meanwhile, also by this round.
        self._live = live
        self._settled = {topic.lineage: topic for topic in seen if topic.lineage not in undecided}
        return True

    def _unsettled(self, topics: Sequence[TopicImage]) -> Sequence[TopicImage]:
        """Return the topics that changed since a round handled them."""
        return [topic for topic in topics if self._settled.get(topic.lineage) is not topic]

    async def _carry_out(self, fence: Fence, situation: Situation) -> Sequence[Lineage]:
        """Carry out the decisions of `decide` until none is left; return the topics with partitions that must wait."""
        undecided: list[Lineage] = []
        past: Answers | Change | None = None
        while (decision := decide(self._metadata.topics, situation, past)) is not None:
            if isinstance(decision, LogEndsQuestion | LeadersQuestion):
                past = Answers(decision, await self._ask(situation, decision))
                continue
            await self._alter(fence, situation, decision)
            waiting = self._waiting_after(decision)
            self._log(decision, situation, len(waiting))
            if waiting:
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._news.set)
            undecided += [lineage for lineage, _ in waiting]
            past = decision
        return undecided

    async def _ask(self, situation: Situation, question: Question) -> Mapping[TopicPartition, Mapping[int, LogEnd]]:
        is_election = isinstance(question, LogEndsQuestion)
        session_seconds = self._config.get_int("broker.session.timeout.ms") / 1000
        shown = self._metadata.image.brokers

        def is_alive(broker_id: int) -> bool:
            # The image may be older than the round, and not show yet that a broker is back.
            return broker_id in self._metadata.image.brokers or broker_id not in shown

        return await self._ask_log_ends(
            situation.brokers,
            [Leaderless(each.partition, each.leader_epoch, each.replicas) for each in question.inquiries],
            session_seconds if is_election else _LEADERS_SECONDS,
            is_alive,
        )

    async def _alter(self, fence: Fence, situation: Situation, change: Change) -> None:
        """Write a change, if this broker is still the controller and the change's assumptions still hold."""
        live = list(situation.brokers)

        async def checks() -> Sequence[Check]:
            further = await self._checks_of(change, situation, live)
            return [*await self._election.renew(fence), *further]

        first = await checks() if isinstance(change, FailOver | Elect) else [fence.check]
        changes = dict.fromkeys(change.lineages, lambda topic: change.applied_to(topic, live))
        await self._metadata.alter_topics(changes, first, checks)

    async def _checks_of(self, change: Change, situation: Situation, live: list[int]) -> Sequence[Check]:
        """Return what a transaction must check for a change; `live` becomes the brokers that the change may rely on."""
        if isinstance(change, FailOver):
            # A leader that has registered again assumes that it still leads.
            live[:] = dict.fromkeys([*live, *await self._metadata.registered_brokers()])
            return [Check(broker_key(broker_id), ABSENT) for broker_id in change.gone(live)[:_MOST_CHECKED]]
        if isinstance(change, Elect):
            # An in-sync broker that restarted, and may have lost records, leaves the ISR. Only the broker epoch shows
            # the restart of one outside the ISR.
            epochs, checks = await self._metadata.broker_epochs(change.outsiders)
            live[:] = change.eligible(situation.brokers, epochs)
            return checks
        return ()

    def _waiting_after(self, change: Change) -> Sequence[PartitionKey]:
        """Return the partitions to ask about again soon, because too few replicas answered."""
        if isinstance(change, Elect):
            return change.waiting(self._metadata.topics)
        return change.silent if isinstance(change, Shrink) else ()

    def _log(self, change: Change, situation: Situation, waiting: int) -> None:
        live = list(situation.brokers)
        if isinstance(change, FailOver):
            gone = [broker_id for broker_id in self._live if broker_id not in live]
            back = [broker_id for broker_id in live if broker_id not in self._live]
            logger.info(
                "live brokers %s%s%s: %d partitions have a new leader, %d have none yet",
                live,
                f", gone {gone}" if gone else "",
                f", new {back}" if back and self._live else "",
                change.moved,
                change.leaderless,
                extra={"live": live, "gone": gone, "moved": change.moved, "leaderless": change.leaderless},
            )
        elif isinstance(change, Elect):
            asked = sum(len(numbers) for numbers in change.found.values())
            logger.info("elected leaders of %d partitions: each is the replica with the longest log", asked - waiting)
        elif isinstance(change, Shrink):
            logger.info(
                "live brokers %s: shrank the ISRs of %d partitions%s",
                live,
                sum(len(numbers) for numbers in change.confirmed.values()),
                f"; {waiting} more wait for their leaders to answer" if waiting else "",
            )
        else:
            for name in change.names:
                logger.info("topic %s: adding replicas, as there are now %d live brokers", name, len(live))

    def _is_unclean(self, topic: TopicImage) -> bool:
        try:
            return self._config.topic_bool("unclean.leader.election.enable", topic.configs)
        except ConfigError as error:
            logger.error("topic %s: no unclean leader election: %s", topic.name, error)
            return False

    async def _remove_orphans(self, fence: Fence) -> None:
        """Free names whose topics do not exist: a store that was restored or filled by hand may have some."""
        known = dict.fromkeys(str(topic.lineage) for topic in self._metadata.topics)
        for entry in await self._store.list(TOPIC_NAMES):
            lineage = entry.value.decode()
            if lineage in known:
                continue
            checks = [fence.check, Check(entry.key, entry.version), Check(f"{TOPICS}/{lineage}", ABSENT)]
            if await self._store.txn(checks, [Write(entry.key, None)]) is not None:
                logger.warning("freed the topic name %s: its topic does not exist", entry.key.rpartition("/")[2])

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._is_look_due = True
            self._news.set()
