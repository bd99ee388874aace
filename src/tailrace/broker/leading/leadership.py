"""Hands leadership of this broker's partitions to other replicas, without losing anything that was appended.

The leader stops accepting records, waits until the new leader has all of its log, and has the store make that replica
the leader in a new epoch. So nothing is truncated afterwards, not even what only the leader acknowledged. This happens
when a broker stops, and for preferred leaders: periodically, and when a client asks.

Invariant: from the moment in which the store may have made another replica the leader, the partition accepts no record
until it is known that the store has not. A store that does not answer may still do it, until something else is written
instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.network.broker_identity import BrokerIdentity, UnknownBrokerError
from tailrace.broker.network.peer import PeerConnection, peer_endpoint
from tailrace.broker.partitions import Partitions
from tailrace.cluster.decisions import ElectionType, plan_preferred, with_heirs, without_replicas
from tailrace.cluster.image import TopicImage
from tailrace.cluster.metadata import ClusterMetadata, TopicChange
from tailrace.cluster.store import Unavailable
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage, TopicPartition
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.storage.log_directory import LogDirectory
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions

logger = logging.getLogger("tailrace.replication")

#: How long producers wait for a preferred leader to catch up; a broker that stops waits longer.
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.005
#: The number of partitions to hand over at once; the others are served meanwhile.
_AT_ONCE = 200
#: The client id of a broker that forwards a request for partitions that it does not lead.
FORWARDING_BROKER = "tailrace-broker"
_ELECT_LEADERS_VERSION = 2
_FORWARD_SECONDS = 10.0
_RETRY_SECONDS = 1.0
#: The number of partitions to name in a log line.
_MOST_NAMED = 5


class Leadership:
    """Hands over leadership of this broker's partitions."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        metadata: ClusterMetadata,
        partitions: Partitions,
        broker_id: int,
        tasks: Tasks,
        identity: BrokerIdentity,
    ) -> None:
        self._config = config
        self._identity = identity
        self._runtime = runtime
        self._clock = runtime.clock
        self._metadata = metadata
        self._partitions = partitions
        self._broker_id = broker_id
        self._tasks = tasks

    def start(self) -> None:
        """Hand leadership back to preferred replicas from now on."""
        self._tasks.spawn(self._balance_now_and_then(), "preferred leaders")

    # --- failed disks

    def directory_failed(self, directory: LogDirectory) -> None:
        """Let other replicas lead the partitions of a failed disk."""
        lost = [_key(partition) for partition in self._partitions if partition.directory is directory]
        if lost:
            self._tasks.spawn(self._give_up(lost), f"give up leadership of partitions in {directory.path}")

    async def _give_up(self, lost: Sequence[tuple[Lineage, int]]) -> None:
        numbers: dict[Lineage, list[int]] = {}
        for lineage, number in lost:
            numbers.setdefault(lineage, []).append(number)

        def given_up(topic: TopicImage) -> TopicImage:
            return without_replicas(topic, self._broker_id, numbers[topic.lineage])

        while True:
            try:
                await self._metadata.alter_topics(dict.fromkeys(numbers, given_up))
                return
            except Unavailable as error:
                logger.error(
                    "cannot give up leadership of %d partitions on a failed disk: %s; retrying", len(lost), error
                )
            await asyncio.sleep(_RETRY_SECONDS)

    # --- preferred leaders

    async def _balance_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._config.get_int("leader.imbalance.check.interval.seconds"))
            if self._config.get_bool("auto.leader.rebalance.enable"):
                try:
                    await self.balance()
                except Unavailable as error:
                    logger.warning(
                        "cannot hand leadership back to preferred replicas: %s; retrying at the next check", error
                    )

    async def balance(self) -> None:
        """Hand back partitions that other brokers should lead, if those lead too few of them."""
        image = self._metadata.image
        percent = self._config.get_int("leader.imbalance.per.broker.percentage")
        planned = plan_preferred(image.topics.values(), list(image.brokers), percent)
        heirs = {
            (topic.lineage, number): state.leader
            for topic in planned
            for number, state in enumerate(topic.partitions)
            if image.topics_by_lineage[topic.lineage].partitions[number].leader == self._broker_id != state.leader
        }
        moved = await self.hand_over(heirs)
        if moved:
            logger.info("handed leadership of %d partitions back to their preferred replicas", len(moved))

    async def prefer(self, wanted: Sequence[TopicPartition], *, may_forward: bool) -> dict[TopicPartition, KafkaError]:
        """Make the first replicas of partitions their leaders, whichever broker leads now; return the errors."""
        image = self._metadata.image
        heirs: dict[tuple[Lineage, int], int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        refusals: dict[TopicPartition, KafkaError] = {}
        for partition in wanted:
            topic = image.topics[partition.topic]
            state = topic.partitions[partition.partition]
            if state.leader == self._broker_id:
                heirs[topic.lineage, partition.partition] = state.replicas[0]
            elif may_forward and state.leader in image.brokers:
                elsewhere.setdefault(state.leader, []).append(partition)
            else:
                refusals[partition] = _not_handed_over(partition)
        moved = await self.hand_over(heirs)
        for lineage, number in heirs:
            if (lineage, number) not in moved:
                partition = TopicPartition(image.topics_by_lineage[lineage].name, number)
                refusals[partition] = _not_handed_over(partition)
        for leader, partitions in elsewhere.items():
            refusals.update(await self._forward(leader, partitions))
        return refusals

    async def _forward(self, leader: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, KafkaError]:
        """Ask the broker that leads the partitions to hand them over."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        request = ElectLeadersRequest(
            election_type=ElectionType.PREFERRED,
            topic_partitions=[TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()],
        )
        connection: PeerConnection | None = None
        try:
            broker = self._metadata.image.brokers[leader]
            endpoint = peer_endpoint(broker, self._config.get_optional_str("inter.broker.listener.name"))
            connection = await PeerConnection.connect(
                self._runtime.network, endpoint.host, endpoint.port, FORWARDING_BROKER, _FORWARD_SECONDS
            )
            with suppress(UnknownBrokerError):  # any client may send this request
                await self._identity.prove_to(broker, connection, _FORWARD_SECONDS)
            response = await connection.call(request, _ELECT_LEADERS_VERSION, ElectLeadersResponse, _FORWARD_SECONDS)
        except (OSError, TimeoutError, KeyError) as error:
            refusal = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"Broker {leader}, the current leader, does not answer: {error}"
            )
            return dict.fromkeys(partitions, refusal)
        finally:
            if connection is not None:
                connection.close()
        return {
            TopicPartition(topic.topic, result.partition_id): KafkaError(
                ErrorCode(result.error_code), result.error_message
            )
            for topic in response.replica_election_results
            for result in topic.partition_result
            if result.error_code
        }

    # --- handing over

    async def hand_over_all(self) -> None:
        """Hand over every partition that another in-sync replica can lead, to the one with the longest log.

        No more records are accepted from now on. In-sync followers get as long to catch up as they may lag in the ISR.
        """
        self._partitions.hold_appends()
        led = sum(partition.is_leader and partition.is_replicated for partition in self._partitions)
        began = self._clock.monotonic()
        deadline = began + self._config.get_int("replica.lag.time.max.ms") / 1000
        moved = 0
        try:
            while heirs := self._heirs():
                moved += len(await self.hand_over(heirs))
                if self._clock.monotonic() >= deadline:
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        except Unavailable as error:
            # The logs must be closed nevertheless.
            logger.warning("stopping without handing over leadership of %d partitions: %s", len(heirs), error)
            return
        if led:
            logger.info(
                "handed over leadership of %d of %d partitions in %.2f s",
                moved,
                led,
                self._clock.monotonic() - began,
            )
        self._warn_of_loss(self._heirs())

    def _heirs(self) -> dict[tuple[Lineage, int], int]:
        """Return the in-sync follower with the longest log, for each led partition that has one."""
        live = [broker_id for broker_id in self._metadata.image.brokers if broker_id != self._broker_id]
        return {
            _key(partition): heir
            for partition in self._partitions
            if partition.is_leader and (heir := partition.leading.furthest_follower(live)) is not None
        }

    def _warn_of_loss(self, left: Mapping[tuple[Lineage, int], int]) -> None:
        if left:
            names = [str(found.partition) for key in left if (found := self._find(*key)) is not None]
            logger.warning(
                "stopping before any in-sync follower caught up with %d partitions (%s): another replica leads "
                "them now, and records that only this broker acknowledged (acks=1) are lost",
                len(names),
                ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else ""),
            )

    async def hand_over(self, heirs: Mapping[tuple[Lineage, int], int]) -> list[tuple[Lineage, int]]:
        """Make the heirs leaders of partitions that this broker leads; return those that were handed over."""
        moved: list[tuple[Lineage, int]] = []
        keys = list(heirs)
        for first in range(0, len(keys), _AT_ONCE):
            some = {key: heirs[key] for key in keys[first : first + _AT_ONCE]}
            moved += await self._hand_over_some(some)
        return moved

    async def _hand_over_some(self, heirs: Mapping[tuple[Lineage, int], int]) -> list[tuple[Lineage, int]]:
        held = [partition for key in heirs if (partition := self._find(*key)) is not None and partition.is_leader]
        for partition in held:
            partition.leading.hold_appends()
        undecided: list[Partition] = []
        try:
            ready = await self._wait_for(held, heirs)
            epochs = {_key(partition): partition.leader_epoch for partition in ready}
            checks = await self._metadata.own_checks() if ready else ()
            undecided = ready
            await self._metadata.alter_topics(
                _changes(epochs, heirs, self._broker_id), checks, self._metadata.own_checks
            )
            undecided = []
            return [_key(partition) for partition in ready if not partition.is_leader]
        finally:
            for partition in held:
                if partition not in undecided:
                    partition.leading.release_appends()
            if undecided:  # the store has not answered, or the wait was cancelled
                self._tasks.spawn(self._find_out(undecided), "resolve undecided handovers")

    async def _find_out(self, undecided: Sequence[Partition]) -> None:
        """Accept records again once the image shows which broker leads, and nothing can change that any more."""
        changes: dict[Lineage, TopicChange] = dict.fromkeys([each.lineage for each in undecided], lambda topic: topic)
        is_told = False
        while True:
            try:
                # Rewritten because a change was not answered: that change cannot be applied any more then.
                await self._metadata.alter_topics(changes, await self._metadata.own_checks(), self._metadata.own_checks)
                break
            except Unavailable as error:
                if not is_told:
                    logger.warning(
                        "%d partitions accept no records until the metadata store says who leads them: %s; retrying",
                        len(undecided),
                        error,
                    )
                is_told = True
            await asyncio.sleep(_RETRY_SECONDS)
        for partition in undecided:
            partition.leading.release_appends()

    async def _wait_for(self, held: Sequence[Partition], heirs: Mapping[tuple[Lineage, int], int]) -> list[Partition]:
        """Return the partitions whose heirs have everything, once all have or the time is over."""
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        while True:
            ready = [partition for partition in held if partition.leading.has_everything(heirs[_key(partition)])]
            if len(ready) == len(held) or self._clock.monotonic() >= deadline:
                return ready
            await asyncio.sleep(_LOOK_SECONDS)

    def _find(self, lineage: Lineage, number: int) -> Partition | None:
        try:
            return self._partitions.find_by_lineage(lineage, number)
        except KafkaError:
            return None


def _not_handed_over(partition: TopicPartition) -> KafkaError:
    return KafkaError(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"The preferred leader of {partition} did not catch up in time; retry.",
    )


def _key(partition: Partition) -> tuple[Lineage, int]:
    return partition.lineage, partition.partition.partition


def _changes(
    epochs: Mapping[tuple[Lineage, int], int], heirs: Mapping[tuple[Lineage, int], int], leader: int
) -> dict[Lineage, TopicChange]:
    """Return for each topic the function that makes the heirs leaders, unless something else has changed it."""
    by_topic: dict[Lineage, dict[int, tuple[int, int]]] = {}
    for (lineage, number), epoch in epochs.items():
        by_topic.setdefault(lineage, {})[number] = (epoch, heirs[lineage, number])
    return {lineage: partial(with_heirs, leader=leader, heirs=of_topic) for lineage, of_topic in by_topic.items()}
