"""ReplicaStart, version 0, flexible: where a follower starts that has none of the leader's local records.

Odd: an API of our own, between brokers. Older records are in the archive. The follower also receives what is still
needed of them: leader epochs and producers.
"""

from __future__ import annotations

from tailrace.model import Lineage
from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, byte_string, int16, int32, int64, lineage_uuid


class ReplicaStartRequest(Message):
    """Requests the start of the leader's local log."""

    API_KEY = ApiKey.REPLICA_START
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    lineage: Lineage = lineage_uuid()
    partition_index: int = int32()
    current_leader_epoch: int = int32(default=-1)


class EpochStart(Struct):
    """A leader epoch and its first offset."""

    epoch: int = int32()
    start_offset: int = int64()


class ReplicaStartResponse(Message):
    """The start of the leader's local log, and what a replica must know of earlier records."""

    API_KEY = ApiKey.REPLICA_START
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    start_offset: int = int64(default=-1)
    leader_epochs: list[EpochStart] = array(EpochStart)
    #: In the format of a producer snapshot file.
    producers: Buffer = byte_string()
