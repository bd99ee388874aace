"""Appends batches of transactions: first the partition has to be in the transaction, for its coordinator.

Without that, nothing would ever end the transaction in the partition, and readers of committed records would wait for
ever. From Produce 12 on the leader adds the partition. Before that version the producer has added it, and the leader
asks whether it has. It asks once for each producer, transaction and partition: while the transaction is open in the
log, its batches are appended at once. Only batches of that producer wait, in order, and not for long.

Invariant: a batch is appended only if no marker of its producer came since the coordinator was asked. Otherwise the
transaction that was asked about may be over, and the batch would begin one that nobody knows. A producer that has its
partitions added may be here before the marker of its last transaction. So the leader asks again after a marker: what
is left of a transaction that is over has an earlier epoch, which the coordinator refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tailrace.broker.network.peers import Peers
from tailrace.broker.transaction_coordinator import TransactionCoordinator
from tailrace.errors import ErrorCode, KafkaError, code_of
from tailrace.model import NO_OFFSET, TopicPartition
from tailrace.records.batch import BatchHeader, check_produced
from tailrace.replication.partition import Partition
from tailrace.replication.waiters import refuse
from tailrace.runtime.tasks import Tasks
from tailrace.storage.partition_log import Appended
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

#: The first version of Produce whose partitions the leader adds, and the first whose clients know
#: TRANSACTION_ABORTABLE.
_ADDED_FROM = 12
_ABORTABLE_FROM = 11
_VERSION = 5
#: Takes the coordinator's answer.
_Take: TypeAlias = Callable[[ErrorCode], None]
#: How long a batch waits for the coordinator; then the client sends it again.
_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.02
#: The coordinator may know more in a moment, or there will be another one.
LATER = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
)


class _Question(NamedTuple):
    """Whose transaction it is, and whether partitions are added to it or only looked for."""

    transactional_id: str
    who: ProducerIdentity
    is_added: bool


class _Batch(NamedTuple):
    """A batch that waits, and the future of its append."""

    data: bytearray
    header: BatchHeader
    acks: int
    version: int
    appended: asyncio.Future[Appended]


@dataclass(slots=True, eq=False)
class _Waiting:
    """The batches of one producer that wait in one partition for the answer to one question."""

    partition: Partition
    batches: list[_Batch] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Asked:
    """A partition that the coordinator is asked about, and who waits for the answer."""

    partition: Partition
    #: The last marker of the producer when the coordinator was asked.
    marker_offset: int
    takers: list[_Take] = field(default_factory=list)


class TransactionalAppends:
    """The batches of transactions that are on their way into logs."""

    def __init__(self, broker_id: int, coordinator: TransactionCoordinator, peers: Peers, tasks: Tasks) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._peers = peers
        self._tasks = tasks
        # Not by producer alone: the next epoch must not be judged by the answer for the last one.
        self._waiting: dict[tuple[Partition, _Question], _Waiting] = {}
        # What is asked at the end of this iteration of the loop, and who waits for the answers.
        self._questions: dict[_Question, dict[TopicPartition, _Asked]] = {}

    def append(
        self, partition: Partition, transactional_id: str, data: memoryview, acks: int, version: int
    ) -> Appended | asyncio.Future[Appended]:
        """Append a batch of a transaction: now if the partition is known to be in it, otherwise as soon as it is."""
        header = check_produced(data)
        who = ProducerIdentity(header.producer_id, header.producer_epoch)
        question = _Question(transactional_id, who, version >= _ADDED_FROM)
        waiting = self._waiting.get((partition, question))
        if waiting is None:
            if partition.refusal is not None or _is_known(partition, header, who):
                return partition.append(data, acks)
            waiting = _Waiting(partition)
            self._waiting[partition, question] = waiting
            self._ask(question, partition, partial(self._take, question, waiting))
        batch = _Batch(bytearray(data), header, acks, version, asyncio.get_running_loop().create_future())
        waiting.batches.append(batch)
        return batch.appended

    async def admit(
        self, partition: Partition, transactional_id: str, who: ProducerIdentity, *, is_added: bool
    ) -> ErrorCode:
        """Have a partition in a transaction, for records that this broker writes for the producer; returns the error.

        They have to be written before anything else is awaited: a marker could come meanwhile.
        """
        if _is_open(partition, who):
            return ErrorCode.NONE
        answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        asked = self._ask(
            _Question(transactional_id, who, is_added),
            partition,
            lambda code: None if answered.done() else answered.set_result(code),
        )
        code = await answered
        # Another request of the producer may have written first, which also changes what is known of it.
        if code is not ErrorCode.NONE or _is_open(partition, who):
            return code
        return _unless_marked(asked, who.producer_id, is_added=is_added)

    # --- asking

    def _ask(self, question: _Question, partition: Partition, take: _Take) -> _Asked:
        """Ask the coordinator, together with what is asked about the same transaction in this turn."""
        if not self._questions:
            asyncio.get_running_loop().call_soon(self._ask_all)
        partitions = self._questions.setdefault(question, {})
        asked = partitions.get(partition.partition)
        if asked is None:
            asked = _Asked(partition, partition.log.producers.marker_offset(question.who.producer_id))
            partitions[partition.partition] = asked
        asked.takers.append(take)
        return asked

    def _ask_all(self) -> None:
        questions, self._questions = self._questions, {}
        for question, asked in questions.items():
            self._tasks.spawn(self._settle(question, asked), f"add partitions for {question.who.producer_id}")

    async def _settle(self, question: _Question, left: dict[TopicPartition, _Asked]) -> None:
        """Ask until there is an answer or the patience is over, and pass it on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_SECONDS
        producer_id = question.who.producer_id
        while True:
            if question.is_added:
                for asked in left.values():
                    asked.marker_offset = asked.partition.log.producers.marker_offset(producer_id)
            answers = await self._answers(question, list(left))
            is_late = loop.time() + _PAUSE_SECONDS >= deadline
            for name, asked in list(left.items()):
                code = answers.get(name, ErrorCode.UNKNOWN_SERVER_ERROR)
                if code is ErrorCode.NONE:
                    code = _unless_marked(asked, producer_id, is_added=question.is_added)
                if code not in LATER or is_late:
                    del left[name]
                    for take in asked.takers:
                        take(code)
            if not left:
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _answers(
        self, question: _Question, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        try:
            coordinator = self._coordinator.leader_of(question.transactional_id)
            if coordinator == self._broker_id:
                return await self._ask_here(question, partitions)
            return await self._ask_broker(coordinator, question, partitions)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        except OSError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)

    async def _ask_here(
        self, question: _Question, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        name, who, is_added = question
        shard = self._coordinator.shard(name)
        result: Any = (
            shard.add_partitions(name, who, partitions) if is_added else shard.verify_partitions(name, who, partitions)
        )
        async with asyncio.timeout(_PATIENCE_SECONDS):
            found = await result if isinstance(result, Awaitable) else result
        if is_added:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        return {
            partition: ErrorCode.NONE if is_in_it else ErrorCode.TRANSACTION_ABORTABLE
            for partition, is_in_it in found.items()
        }

    async def _ask_broker(
        self, broker_id: int, question: _Question, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        topics: dict[str, list[int]] = {}
        for name, number in partitions:
            topics.setdefault(name, []).append(number)
        wanted = AddPartitionsToTxnTransaction(
            transactional_id=question.transactional_id,
            producer_id=question.who.producer_id,
            producer_epoch=question.who.epoch,
            verify_only=not question.is_added,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()],
        )
        response = await self._peers.call(
            broker_id,
            AddPartitionsToTxnRequest(transactions=[wanted]),
            _VERSION,
            AddPartitionsToTxnResponse,
            _PATIENCE_SECONDS,
        )
        if response.error_code != ErrorCode.NONE:
            # On a new connection, this broker can prove its identity again.
            self._peers.forget(broker_id)
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        return {
            TopicPartition(topic.name, result.partition_index): code_of(result.partition_error_code)
            for transaction in response.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
        }

    # --- appending

    def _take(self, question: _Question, waiting: _Waiting, code: ErrorCode) -> None:
        """Append or refuse the batches of a producer, in order."""
        partition = waiting.partition
        del self._waiting[partition, question]
        for batch in waiting.batches:
            if code is not ErrorCode.NONE:
                partition.log.producers.refused(batch.header)
                refuse(batch.appended, _refusal(code, batch.version))
                continue
            try:
                appended = partition.append(memoryview(batch.data), batch.acks)
            except KafkaError as error:
                refuse(batch.appended, error)
                continue
            if isinstance(appended, Appended):
                if not batch.appended.done():
                    batch.appended.set_result(appended)
            else:
                appended.add_done_callback(_passing_on(batch.appended))


def _is_known(partition: Partition, header: BatchHeader, who: ProducerIdentity) -> bool:
    """Whether a batch may be appended without a question: its transaction is open, or it is in the log already.

    A fenced producer is refused here, before anybody is asked (KAFKA-19690).
    """
    if _is_open(partition, who):
        return True
    # While others are being prepared, the log cannot tell what comes next.
    return not partition.queue and partition.log.producers.check(header) is not None


def _is_open(partition: Partition, who: ProducerIdentity) -> bool:
    """Whether the producer has a transaction open in the log."""
    entry = partition.log.producers.find(who.producer_id)
    return entry is not None and entry.epoch == who.epoch and entry.transaction_start != NO_OFFSET


def _unless_marked(asked: _Asked, producer_id: int, *, is_added: bool) -> ErrorCode:
    """No error, unless a marker of the producer came since the coordinator was asked."""
    if asked.partition.log.producers.marker_offset(producer_id) == asked.marker_offset:
        return ErrorCode.NONE
    # A producer that adds its partitions itself begins no other transaction before the last one is over everywhere.
    return ErrorCode.CONCURRENT_TRANSACTIONS if is_added else ErrorCode.INVALID_TXN_STATE


def _refusal(code: ErrorCode, version: int) -> KafkaError:
    """What the producer is told."""
    if code in LATER:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The coordinator of the transaction has not answered in time ({code.name}): send the batch again.",
        )
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "Another producer has taken the transactional id.")
    if code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
        known = ErrorCode.TRANSACTION_ABORTABLE if version >= _ABORTABLE_FROM else ErrorCode.INVALID_TXN_STATE
        return KafkaError(known, "The partition is not in the transaction.")
    return KafkaError(code)


def _passing_on(to: asyncio.Future[Appended]) -> Callable[[asyncio.Future[Appended]], None]:
    def pass_on(done: asyncio.Future[Appended]) -> None:
        if to.done():
            return
        if done.cancelled():
            to.cancel()
        elif (error := done.exception()) is not None:
            refuse(to, error)
        else:
            to.set_result(done.result())

    return pass_on
