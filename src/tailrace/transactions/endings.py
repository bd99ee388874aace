"""The prepared transactions of a shard: each ends in every partition, and is then complete.

Invariant: markers are sent only once the record that decided the outcome is committed, because another coordinator
would not know of a decision that is not. What is still to be sent is not stored: the next coordinator sends all markers
again, which does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from tailrace.coordinator.operations import Operations, error_of
from tailrace.coordinator.timers import RETRY_MS
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.markers import Marker
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.markers import Errand, MarkerSender
from tailrace.transactions.states import EPOCH_AT_EVERY_END, State, Transaction

logger = logging.getLogger("tailrace.transactions")


class _Ending:
    """The end of one transaction; knows which partitions lack their marker."""

    def __init__(self, endings: Endings, transactional_id: str, transaction: Transaction) -> None:
        self._endings = endings
        self.transactional_id = transactional_id
        self.transaction = transaction
        self.partitions: dict[TopicPartition, None] = dict(transaction.partitions)
        self.errand: Errand | None = None

    def written(self, partition: TopicPartition) -> None:
        self.partitions.pop(partition, None)
        if not self.partitions:
            self._endings.ended(self)

    def refused(self, partition: TopicPartition, error: ErrorCode) -> None:
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            # A later epoch of the producer has been there. Either this coordinator is deposed and can complete nothing,
            # or the partition remembers what this shard has lost, for example in a power failure of the only broker.
            # No marker of this transaction will ever be taken there, and its producer must not wait for that.
            logger.error(
                "The transaction of %s ends without %s, which has a later epoch of producer %d than %d. If a "
                "transaction stays open there, abort it with Kafka's kafka-transactions tool",
                self.transactional_id,
                partition,
                self.transaction.producer_id,
                self.transaction.producer_epoch,
            )
            self.written(partition)
            return
        # A later coordinator has been there, so this one is deposed and will hear of it.
        logger.error(
            "The transaction of %s cannot end in %s: its leader refused the marker with %s; sending stopped. If this "
            "lasts, look at the partition's producers, and restart this broker so that markers are sent again",
            self.transactional_id,
            partition,
            error.name,
        )
        self.cancel()

    def cancel(self) -> None:
        if self.errand is not None:
            self.errand.cancel()


class Endings:
    """The prepared transactions of one shard."""

    def __init__(
        self,
        operations: Operations,
        sender: MarkerSender,
        complete: Callable[[str, Transaction], None],
        counters: TransactionCounters,
    ) -> None:
        self._operations = operations
        self._sender = sender
        self._complete = complete
        self._counters = counters
        self._under_way: dict[str, _Ending] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def partitions_left(self, transactional_id: str) -> tuple[TopicPartition, ...] | None:
        """The partitions of a prepared transaction that lack their marker; None if it is not being ended."""
        ending = self._under_way.get(transactional_id)
        return None if ending is None else tuple(ending.partitions)

    def begin(self, transactional_id: str, transaction: Transaction) -> None:
        """End a prepared transaction in every partition, as soon as its record is committed."""
        former = self._under_way.pop(transactional_id, None)
        if former is not None:
            former.cancel()
        ending = self._under_way[transactional_id] = _Ending(self, transactional_id, transaction)
        self._wait(ending)

    def _wait(self, ending: _Ending) -> None:
        """Wait until everything that is written is committed, however few replicas are in sync."""
        try:
            committed: asyncio.Future[None] | None = self._operations.read(None)
        except KafkaError:
            self._wait_again(ending)
            return
        if committed is None:
            self._send(ending)
        else:
            committed.add_done_callback(lambda done: self._committed(ending, done))

    def _wait_again(self, ending: _Ending) -> None:
        self._operations.timers.set(("markers", ending.transactional_id), RETRY_MS, lambda: self._wait(ending))

    def _committed(self, ending: _Ending, done: asyncio.Future[Any]) -> None:
        if self._under_way.get(ending.transactional_id) is not ending:
            return
        if error_of(done) is not None:
            # Timers end with the shard, so this is for a broker that still leads, or leads again.
            self._wait_again(ending)
        else:
            self._send(ending)

    def _send(self, ending: _Ending) -> None:
        if self._under_way.get(ending.transactional_id) is not ending:
            return
        if not ending.partitions:
            self.ended(ending)
            return
        transaction = ending.transaction
        marker = Marker(
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.state is State.PREPARE_COMMIT,
            self._operations.leader_epoch,
            # An abort by force has a later epoch too.
            EPOCH_AT_EVERY_END if transaction.client_version else 0,
        )
        ending.errand = self._sender.send(marker, tuple(ending.partitions), ending)

    def ended(self, ending: _Ending) -> None:
        """Every partition has its marker: write that down, however often the journal refuses."""
        transactional_id = ending.transactional_id
        if self._under_way.get(transactional_id) is not ending:
            return
        try:
            self._complete(transactional_id, ending.transaction)
        except KafkaError as error:
            logger.debug("Cannot write that %s is complete: %s; retrying", transactional_id, error)
            self._operations.timers.set(("complete", transactional_id), RETRY_MS, lambda: self.ended(ending))

    def completed(self, transactional_id: str) -> None:
        """Forget a transaction that is complete in the journal."""
        ending = self._under_way.pop(transactional_id, None)
        if ending is not None:
            if ending.transaction.is_commit:
                self._counters.committed += 1
            else:
                self._counters.aborted += 1

    def end(self) -> None:
        """Another broker coordinates from now on."""
        for ending in self._under_way.values():
            ending.cancel()
        self._under_way.clear()
