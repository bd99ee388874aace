"""Fetch sessions of followers: what a follower fetches, and which of its partitions may have news.

A follower of a thousand partitions asks twice a second, mostly for nothing. So the partitions of its session notify the
session when there is more to read or the high watermark has moved. Only those are checked, and what the request names.
Once in a while all are checked, so that partitions without traffic know that their follower keeps up.

Two requests may be under way, and a follower drops a response that no longer fits its position. It then names the
partition in its next request. Only the response to that request, or a later one, counts as received.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tailrace.broker.fetching.answers import FetchWaiter
from tailrace.broker.fetching.sessions import FetchSession, PartitionKey, SessionPartition, TopicKey, wanted_partitions
from tailrace.replication.partition import Partition
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

#: A follower that has sent no request for this long no longer needs its session.
_GONE_SECONDS = 120.0


class FollowedPartition(SessionPartition):
    """One partition in a follower's session, which the partition notifies of changes."""

    __slots__ = ("_appends", "_named_in", "_session", "key", "partition")

    def __init__(self, session: ReplicaSession, key: PartitionKey, wanted: FetchPartition) -> None:
        super().__init__(wanted)
        self.key = key
        self._named_in = session.requests
        #: The partition that it watches, once it was found.
        self.partition: Partition | None = None
        self._session = session
        self._appends = _Appends(session, self)

    def watch(self, partition: Partition) -> None:
        """Watch a partition, and stop watching any other one."""
        if partition is not self.partition:
            self.unwatch()
            self.partition = partition
            partition.watch(self)
            partition.watch_appends(self._appends)

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition.unwatch(self._appends)
            self.partition = None

    def more_to_read(self, size: int) -> None:
        """Note that the high watermark moved: the follower learns it with the next records, or when its wait ends."""
        self._session.ready[self.key] = self

    def name(self, wanted: FetchPartition) -> None:
        """Take a request that names the partition again: the follower may have dropped what it received."""
        self.wanted = wanted
        self.told_high_watermark = self.told_log_start = -1
        self._named_in = self._session.requests

    def is_news_in(self, request: int, data: PartitionData) -> bool:
        """True if the response to a request of the session, by its number, must include this partition."""
        if request < self._named_in:
            return True  # the follower may drop it, so it does not count as received
        return self.is_news(data)

    def has_told(self, data: PartitionData) -> bool:
        """True if a response has nothing that the follower does not know."""
        return (
            data.error_code == 0
            and data.diverging_epoch is None
            and not data.records
            and data.high_watermark == self.told_high_watermark
            and data.log_start_offset == self.told_log_start
        )


class _Appends:
    """Is notified of every append, which ends a follower's wait."""

    __slots__ = ("_followed", "_session")

    def __init__(self, session: ReplicaSession, followed: FollowedPartition) -> None:
        self._session = session
        self._followed = followed

    def more_to_read(self, size: int) -> None:
        session = self._session
        session.ready[self._followed.key] = self._followed
        if session.waiter is not None:
            session.waiter.more_to_read(size)


@dataclass(slots=True, eq=False)
class ReplicaSession(FetchSession):
    """What one follower fetches."""

    is_privileged: bool = True
    replica_id: int = -1
    broker_epoch: int = -1
    #: What the next response checks, in serving order.
    ready: dict[PartitionKey, FollowedPartition] = field(default_factory=dict)
    followed: dict[PartitionKey, FollowedPartition] = field(default_factory=dict)
    #: The request that waits for records.
    waiter: FetchWaiter | None = None
    #: When all partitions were last checked.
    last_visit: float = -math.inf
    #: The number of requests so far.
    requests: int = 0

    def update(self, request: FetchRequest) -> None:
        """Apply what a request adds, changes and removes; check what it names."""
        self.requests += 1
        for key, wanted in wanted_partitions(request, self.by_topic_id):
            known = self.followed.get(key)
            if known is None:
                known = self.followed[key] = self.partitions[key] = FollowedPartition(self, key, wanted)
            else:
                known.name(wanted)
            self.ready[key] = known
        for topic in request.forgotten_topics_data:
            topic_key: TopicKey = topic.topic_id if self.by_topic_id else topic.topic
            for number in topic.partitions:
                forgotten = self.followed.pop((topic_key, number), None)
                if forgotten is not None:
                    del self.partitions[forgotten.key]
                    self.ready.pop(forgotten.key, None)
                    forgotten.unwatch()

    def replaces(self, other: FetchSession) -> bool:
        """True for a session of an earlier process of the same broker, or of a follower that is gone."""
        if not isinstance(other, ReplicaSession):
            return False
        is_former = other.replica_id == self.replica_id and other.broker_epoch < self.broker_epoch
        return is_former or self.last_used - other.last_used > _GONE_SECONDS

    def visit(self, now: float, interval: float) -> None:
        """Check all partitions with this request if `interval` has passed since the last time."""
        if now >= self.last_visit + interval:
            self.last_visit = now
            for key, followed in self.followed.items():
                self.ready.setdefault(key, followed)

    def look_at(self, key: PartitionKey) -> None:
        """Check a partition for news that it does not notify of: the waiting request is answered."""
        followed = self.followed.get(key)
        if followed is not None:
            self.ready[key] = followed
            if self.waiter is not None:
                self.waiter.end()

    def close(self) -> None:
        """Stop watching; a waiting request is answered with what there is."""
        for followed in self.followed.values():
            followed.unwatch()
        self.followed.clear()
        self.partitions.clear()
        self.ready.clear()
        if self.waiter is not None:
            self.waiter.end()
