"""One shard of the transaction coordinator: the transactional ids that hash to one partition of `__transaction_state`.

Owns the operations and who may ask for them. `decisions` says what each does to a transaction, `endings` brings the
outcome to the partitions, and `upkeep` aborts what takes too long. Only replay changes a transaction. A prepared
transaction in the journal is the decision: from then on every coordinator ends it the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tailrace.coordinator.operations import Operations, let_be
from tailrace.coordinator.shard import Producer
from tailrace.errors import ErrorCode, KafkaError, WireError
from tailrace.model import TopicPartition
from tailrace.runtime.clock import Clock
from tailrace.transactions import decisions
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.decisions import TakeId
from tailrace.transactions.due_times import DueTimes
from tailrace.transactions.endings import Endings
from tailrace.transactions.markers import MarkerSender
from tailrace.transactions.records import decode_key, decode_value, encode_key, encode_value
from tailrace.transactions.settings import TransactionSettings
from tailrace.transactions.states import ProducerIdentity, State, Transaction
from tailrace.transactions.upkeep import Upkeep

logger = logging.getLogger("tailrace.transactions")

R = TypeVar("R")


class Listed(NamedTuple):
    """One transactional id and its transaction."""

    transactional_id: str
    transaction: Transaction


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(
        self,
        operations: Operations,
        settings: Callable[[], TransactionSettings],
        sender: MarkerSender,
        take_id: TakeId,
        clock: Clock,
        counters: TransactionCounters,
    ) -> None:
        self._operations = operations
        self._settings = settings
        self._take_id = take_id
        self._clock = clock
        self._counters = counters
        self._transactions: dict[str, Transaction] = {}
        # The ids without a transaction, the one that was used longest ago first, and those that have one.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._open: dict[str, None] = {}
        self._due = DueTimes()
        #: What the loaded journal has decided, but not completed.
        self._prepared: dict[str, None] = {}
        # The transaction that is being written, as it remembers more than its record.
        self._writing: Transaction | None = None
        self._endings = Endings(operations, sender, self._complete, counters)
        self._upkeep = Upkeep(self, operations, settings, asyncio.get_running_loop(), counters)

    # --- the shard

    def replay(self, key: bytes, value: bytes | None, offset: int, producer: Producer | None) -> None:
        try:
            transactional_id = decode_key(key)
            if transactional_id is None:
                return  # a newer version wrote it
            transaction = self._writing
            if transaction is None and value is not None:
                transaction = decode_value(value)
        except WireError as error:
            logger.error("Cannot read a record of the transaction topic: %s; skipping it", error)
            return
        self._forget(transactional_id)
        if transaction is not None and transaction.state is not State.DEAD:
            self._take(transactional_id, transaction)
        else:
            self._open.pop(transactional_id, None)

    def _forget(self, transactional_id: str) -> None:
        if self._transactions.pop(transactional_id, None) is not None:
            self._idle.pop(transactional_id, None)
            self._prepared.pop(transactional_id, None)
            self._due.clear(transactional_id)

    def _take(self, transactional_id: str, transaction: Transaction) -> None:
        self._transactions[transactional_id] = transaction
        if transaction.may_expire:
            self._idle[transactional_id] = None
            self._open.pop(transactional_id, None)
            return
        self._open[transactional_id] = None
        if transaction.is_prepared:
            self._prepared[transactional_id] = None
        else:
            self._due.set(transactional_id, transaction.start_ms + transaction.timeout_ms)

    def replay_marker(self, producer: Producer, is_commit: bool, offset: int) -> None:
        pass  # the coordinator's own records are in no transaction

    def begin(self) -> None:
        self._upkeep.begin()

    def end(self, reason: KafkaError) -> None:
        self._upkeep.end()
        self._endings.end()

    def resume(self) -> Iterator[None]:
        """End what the loaded journal has decided, one transaction after the other."""
        for transactional_id in list(self._prepared):
            if transactional_id in self._prepared and self._endings.partitions_left(transactional_id) is None:
                self._endings.begin(transactional_id, self._transactions[transactional_id])
                yield

    # --- operations of producers

    def initialize(
        self, transactional_id: str, known: ProducerIdentity | None, timeout_ms: int
    ) -> ProducerIdentity | asyncio.Future[ProducerIdentity]:
        """Make a client the producer of a transactional id, unless its last transaction still has to be ended."""
        self._require_id(transactional_id)
        if not 0 < timeout_ms <= self._settings().max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"The timeout of a transaction must be from 1 to {self._settings().max_timeout_ms} ms "
                f"(transaction.max.timeout.ms), not {timeout_ms}.",
            )
        decision = decisions.initialize(
            self._transactions.get(transactional_id), known, timeout_ms, self._now_ms(), self._take_id
        )
        assert decision.write is not None
        if decision.answer is not None:
            return self._write(transactional_id, decision.write, decision.answer)
        let_be(self._prepare(transactional_id, decision.write, None))
        self._counters.taken_over += 1
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "The open transaction is being aborted first.")

    def add_partitions(
        self, transactional_id: str, who: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> asyncio.Future[None] | None:
        """Add partitions to a producer's transaction, which may begin with that."""
        self._require_id(transactional_id)
        current = self._transactions.get(transactional_id)
        added = decisions.add_partitions(current, who, partitions, self._now_ms())
        if added is None:
            return self._operations.read(None)
        if not self._settings().is_enabled and (current is None or current.state is not State.ONGOING):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Transactions are off.")
        return self._write(transactional_id, added, None)

    def verify_partitions(
        self, transactional_id: str, who: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, bool] | asyncio.Future[dict[TopicPartition, bool]]:
        """Return for each partition whether it is in a producer's transaction."""
        self._require_id(transactional_id)
        found = decisions.verify_partitions(self._transactions.get(transactional_id), who, partitions)
        return self._operations.read(found)

    def end_transaction(
        self, transactional_id: str, who: ProducerIdentity, *, is_commit: bool, with_new_epoch: bool
    ) -> ProducerIdentity | asyncio.Future[ProducerIdentity]:
        """Commit or abort; the result is who the producer is from then on."""
        self._require_id(transactional_id)
        current, now_ms = self._transactions.get(transactional_id), self._now_ms()
        if with_new_epoch:
            decision = decisions.end_with_new_epoch(
                current, who, is_commit=is_commit, now_ms=now_ms, take_id=self._take_id
            )
        else:
            decision = decisions.end(current, who, is_commit=is_commit, now_ms=now_ms)
        assert decision.answer is not None
        if decision.write is None:
            return self._operations.read(decision.answer)
        return self._prepare(transactional_id, decision.write, decision.answer)

    def _require_id(self, transactional_id: str) -> None:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")

    # --- writing

    def _write(self, transactional_id: str, transaction: Transaction, result: R) -> R | asyncio.Future[R]:
        """Write a transaction, and take it over once it is in the journal."""
        record = (encode_key(transactional_id), encode_value(transaction))
        self._writing = transaction
        try:
            return self._operations.write([record], result)
        finally:
            self._writing = None

    def _prepare(self, transactional_id: str, transaction: Transaction, result: R) -> R | asyncio.Future[R]:
        """Write the outcome of a transaction, and bring it to the partitions."""
        written = self._write(transactional_id, transaction, result)
        self._endings.begin(transactional_id, transaction)
        return written

    def _complete(self, transactional_id: str, prepared: Transaction) -> None:
        """Write that every partition has its marker."""
        if self._transactions.get(transactional_id) is prepared:
            let_be(self._write(transactional_id, prepared.completed(self._now_ms()), None))
        self._endings.completed(transactional_id)

    def _now_ms(self) -> int:
        return self._clock.wall_ms()

    # --- upkeep

    def due(self) -> Iterator[str]:
        """Yield the ids whose transactions take too long."""
        now_ms = self._now_ms()
        for transactional_id in self._due.due(now_ms):
            transaction = self._transactions.get(transactional_id)
            if transaction is not None and decisions.is_due(transaction, now_ms):
                yield transactional_id

    def time_out(self, transactional_id: str) -> bool:
        """Abort a transaction that takes too long; return False if it has ended meanwhile."""
        transaction, now_ms = self._transactions.get(transactional_id), self._now_ms()
        if transaction is None or not decisions.is_due(transaction, now_ms):
            return False
        let_be(self._prepare(transactional_id, decisions.time_out(transaction, now_ms, self._take_id), None))
        return True

    def expired(self, most: int) -> list[str]:
        """Return some ids that nobody has used for long, the oldest first."""
        limit_ms = self._now_ms() - self._settings().id_expiration_ms
        found: list[str] = []
        for transactional_id in self._idle:
            if len(found) == most or self._transactions[transactional_id].update_ms > limit_ms:
                break
            found.append(transactional_id)
        return found

    def remove(self, transactional_ids: Sequence[str]) -> None:
        """Remove ids that have no transaction."""
        self._operations.keep([(encode_key(each), None) for each in transactional_ids])

    # --- looking

    def describe(self, transactional_id: str) -> Transaction | asyncio.Future[Transaction]:
        """Return a transaction; once it is prepared, with the partitions that lack their marker."""
        self._require_id(transactional_id)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"There is no transactional id {transactional_id}.")
        left = self._endings.partitions_left(transactional_id)
        if left is not None:
            transaction = transaction.with_only(left)
        return self._operations.read(transaction)

    def listed(self) -> Iterator[Listed]:
        """Yield all transactional ids; they may change meanwhile."""
        for transactional_id in list(self._transactions):
            transaction = self._transactions.get(transactional_id)
            if transaction is not None:
                yield Listed(transactional_id, transaction)

    @property
    def open_count(self) -> int:
        """The number of transactions that have begun and not ended in every partition."""
        return len(self._open)

    @property
    def ending_count(self) -> int:
        """The number of transactions whose outcome is decided, but not in every partition."""
        return len(self._endings)

    @property
    def id_count(self) -> int:
        return len(self._transactions)

    @property
    def oldest_start_ms(self) -> int | None:
        """When the oldest transaction began that has not ended in every partition."""
        return min((self._transactions[each].start_ms for each in self._open), default=None)
