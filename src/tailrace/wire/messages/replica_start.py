"""ReplicaStart, version 0, flexible: where a follower begins that has nothing of what its leader still has.

Odd: an API of our own, between brokers. Older records are in the archive; what they have told a leader and is still
needed, leader epochs and producers, goes to the follower with it.
"""

from __future__ import annotations

from tailrace.model import Lineage
from tailrace.runtime.disk import Buffer
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, byte_string, int16, int32, int64, lineage_uuid


class ReplicaStartRequest(Message):
    """Asks the leader of a partition where its own log starts."""

    API_KEY = ApiKey.REPLICA_START
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    lineage: Lineage = lineage_uuid()
    partition_index: int = int32()
    current_leader_epoch: int = int32(default=-1)


class EpochStart(Struct):
    """A leader epoch and the first offset that it wrote."""

    epoch: int = int32()
    start_offset: int = int64()


class ReplicaStartResponse(Message):
    """The start of the leader's own log, and what was before it that a replica has to know."""

    API_KEY = ApiKey.REPLICA_START
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    start_offset: int = int64(default=-1)
    leader_epochs: list[EpochStart] = array(EpochStart)
    #: As in a producer snapshot file.
    producers: Buffer = byte_string()
