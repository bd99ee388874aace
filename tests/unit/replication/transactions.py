"""Transactions in a partition, written as producers and coordinators would."""

from __future__ import annotations

from tailrace.records.markers import Marker
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.storage.partition_log import Appended
from tests.unit.replication.replicas import Replica
from tests.unit.storage.logs import batch
from tests.unit.storage.transactions import transactional


def write(leader: Replica, producer_id: int, sequence: int, *, epoch: int = 0, plain: bool = False) -> int:
    data = transactional(producer_id, sequence, epoch=epoch, timestamp=leader.clock.wall_ms())
    if plain:
        data = batch(producer=(producer_id, epoch, sequence), timestamp=leader.clock.wall_ms())
    appended = leader.partition.append(memoryview(data), ACKS_ALL)
    assert isinstance(appended, Appended)
    return appended.last_offset


def end(leader: Replica, producer_id: int, *, commit: bool, epoch: int = 0, version: int = 0) -> int:
    return leader.partition.append_marker(Marker(producer_id, epoch, commit, 0, version)).last_offset
