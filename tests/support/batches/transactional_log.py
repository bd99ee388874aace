"""A log with committed, aborted and open transactions, written into the directory of a broker that is stopped."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.model import TopicPartition
from tailrace.records.batch import TRANSACTIONAL_BIT, read_header
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.aborted_transactions import AbortedTransaction
from tailrace.storage.log_config import LogConfig
from tailrace.storage.recovery import open_log
from tailrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.brokers.broker_process import BrokerProcess

#: The producer whose transaction is open at the end.
OPEN_PRODUCER = 99
SEGMENT_BYTES = 4000


class TransactionalLog(NamedTuple):
    """What is in the log."""

    #: In order: the offsets and values of what is committed below the open transaction.
    committed: list[tuple[int, bytes]]
    #: Those of all records.
    all_records: list[tuple[int, bytes]]
    aborted: list[AbortedTransaction]
    #: The first offset of the transaction that is open at the end.
    open_offset: int


def write_log(broker: BrokerProcess, topic: str, *, transactions: int = 60) -> TransactionalLog:
    """Stop a broker, write transactions into the empty log of a topic's partition 0, and start it again."""
    broker.stop()
    log = open_log(
        TopicPartition(topic, 0),
        str(broker.data_dir / f"{topic}-0"),
        LogConfig(segment_bytes=SEGMENT_BYTES),
        SystemDisk(),
        SystemClock(),
        stopped_cleanly=True,
    )
    now = SystemClock().wall_ms()
    committed: list[tuple[int, bytes]] = []
    everything: list[tuple[int, bytes]] = []

    def append(value: bytes, producer_id: int = -1, sequence: int = -1, *, commits: bool = True) -> None:
        data = build_batch(
            [NewRecord(value, None, now)],
            producer_id=producer_id,
            producer_epoch=min(producer_id, 0),
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT if producer_id >= 0 else 0,
        )
        offset = log.append(memoryview(data), read_header(data), 0).base_offset
        everything.append((offset, value))
        if commits:
            committed.append((offset, value))

    for number in range(transactions):
        commits = number % 3 == 0
        producer_id = 1 + number % 4
        for part in range(3):
            append(b"%d-%d" % (number, part), producer_id, (number // 4) * 3 + part, commits=commits)
            append(b"plain %d-%d" % (number, part))
        marker = log.new_marker(Marker(producer_id, 0, commits, 2 * number // transactions))
        log.append(memoryview(marker), read_header(marker), 0)
    open_offset = log.end_offset
    append(b"open", OPEN_PRODUCER, 0, commits=False)
    append(b"after", commits=False)
    indexes = [segment.transaction_index for segment in log.segments]
    aborted = [index[number] for index in indexes for number in range(len(index))]
    log.close()
    broker.start()
    return TransactionalLog(committed, everything, aborted, open_offset)


def abort_request(topic: str) -> WriteTxnMarkersRequest:
    """What ends the transaction that is open at the end."""
    where = WritableTxnMarkerTopic(name=topic, partition_indexes=[0])
    return WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=OPEN_PRODUCER, topics=[where])])
