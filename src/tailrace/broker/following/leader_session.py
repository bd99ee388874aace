"""The follower's half of a fetch session (KIP-227): what it follows, what the leader knows, and what to send next.

A request names the partitions that were added, removed, or changed their position since the last one; the first request
of a session names all. A partition is named only once everything that its position confirms is as durable as its topic
demands. This module must not know connections, nor the effects of responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.fetching.sessions import MAX_SESSION_EPOCH, NO_SESSION
from tailrace.model import TopicId
from tailrace.replication.partition import Partition
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState

#: The epoch that asks for a new session.
_FIRST_EPOCH = 0

#: By the topic id in requests and responses.
PartitionKey: TypeAlias = tuple[TopicId, int]


@dataclass(slots=True, eq=False)
class Followed:
    """One partition in one leader epoch; another epoch or another topic id makes another one."""

    partition: Partition
    #: The topic id in requests to the leader.
    topic_id: TopicId
    leader_epoch: int
    #: The number of the first request that named it; responses to earlier ones do not apply.
    first_request: int | None = None
    #: The position and the log start offset that the leader was last sent.
    asked: tuple[int, int] = (-1, -1)
    told_log_start: int = -1
    #: The number of consecutive failures, and whether it is set aside.
    failures: int = 0
    is_aside: bool = False

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition.partition.partition

    @property
    def is_current(self) -> bool:
        """True if the partition still has the leader epoch in which it was followed."""
        partition = self.partition
        return partition.leader_epoch == self.leader_epoch and not partition.is_leader

    @property
    def is_where_asked(self) -> bool:
        """True if a response to the last request still fits the log."""
        return self.is_current and self.partition.following.fetch_position() == self.asked

    def is_named_by(self, request: int) -> bool:
        """True if a request, by its number, was about this partition in this epoch."""
        return self.first_request is not None and self.first_request <= request


class LeaderSession:
    """What is followed from one leader, and how much of it the leader knows."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._followed: dict[PartitionKey, Followed] = {}
        # What the next request adds to what the leader knows.
        self._changed: dict[PartitionKey, None] = {}
        self._forgotten: dict[PartitionKey, None] = {}
        self._known_to_leader: dict[PartitionKey, None] = {}
        # Set aside because a fetch would confirm records before their logs are durable enough.
        self._unconfirmed: dict[PartitionKey, Followed] = {}
        self._session_id = NO_SESSION
        self._session_epoch = _FIRST_EPOCH
        #: The number of this session, also before it has an id: responses to requests of an earlier one do not count.
        self.number = 0
        #: The number of the last request.
        self.requests = 0

    def __iter__(self) -> Iterator[Followed]:
        return iter(self._followed.values())

    def __len__(self) -> int:
        return len(self._followed)

    def find(self, key: PartitionKey) -> Followed | None:
        """Return what is followed under that topic id and number."""
        return self._followed.get(key)

    @property
    def is_established(self) -> bool:
        """True if the leader has given it an id, so that requests contain only changes."""
        return self._session_epoch != _FIRST_EPOCH

    @property
    def has_news(self) -> bool:
        """True if there is something to fetch that the leader does not know."""
        return bool(self._changed)

    # --- followed partitions

    def add(self, partition: Partition, topic_id: TopicId) -> bool:
        """Follow a partition in its current leader epoch; return False if that is the case already."""
        key = topic_id, partition.partition.partition
        known = self._followed.get(key)
        if known is not None and known.partition is partition and known.leader_epoch == partition.leader_epoch:
            return False
        self._followed[key] = Followed(partition, topic_id, partition.leader_epoch)
        self._unconfirmed.pop(key, None)
        self._changed[key] = None
        return True

    def remove(self, partition: Partition, topic_id: TopicId) -> None:
        """Stop following a partition."""
        followed = self._followed.pop((topic_id, partition.partition.partition), None)
        if followed is not None:
            self._unconfirmed.pop(followed.key, None)
            self.set_aside(followed)

    def clear(self) -> None:
        """Stop following all."""
        self._followed.clear()
        self._changed.clear()
        self._unconfirmed.clear()

    def changed(self, followed: Followed) -> None:
        """Name a partition in the next request."""
        self._changed[followed.key] = None

    def set_aside(self, followed: Followed) -> None:
        """Leave a partition out until it is resumed, so that the leader has nothing to send for it."""
        key = followed.key
        followed.first_request = None
        followed.is_aside = True
        self._changed.pop(key, None)
        if key in self._known_to_leader:
            self._forgotten[key] = None

    def resume(self, followed: Followed) -> bool:
        """Resume a partition; return False if it is no longer followed in that epoch."""
        if self._followed.get(followed.key) is not followed:
            return False
        followed.is_aside = False
        self._changed[followed.key] = None
        return True

    def take_confirmed(self, partition: Partition, topic_id: TopicId) -> Followed | None:
        """Return the partition if it waited for its log to become durable, and it has."""
        if not partition.following.may_fetch:
            return None
        return self._unconfirmed.pop((topic_id, partition.partition.partition), None)

    # --- requests to the leader

    def begin(self) -> None:
        """Start a new session: the next request names all partitions."""
        self.number += 1
        # The request carries the old id once more, so that the leader can drop that session.
        self._session_epoch = _FIRST_EPOCH
        self._forgotten.clear()
        self._known_to_leader.clear()
        for key, followed in self._followed.items():
            followed.first_request = None
            if not followed.is_aside:
                self._changed[key] = None

    def answered(self, session_id: int) -> None:
        """Note a response; the first one brings the session id, unless the leader has no room for sessions."""
        if not self.is_established:
            self._session_id = session_id
            if session_id == NO_SESSION:
                self.begin()
            else:
                self._session_epoch = 1

    def next_request(self, broker_id: int, broker_epoch: int) -> FetchRequest | None:
        """Return the next request, or None if there is nothing to fetch."""
        self.requests += 1
        topics = self._named()
        forgotten = self._given_up()
        if not topics and not (self.is_established and (self._known_to_leader or forgotten)):
            return None
        config = self._config
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch),
            max_wait_ms=config.get_int("replica.fetch.wait.max.ms"),
            min_bytes=config.get_int("replica.fetch.min.bytes"),
            max_bytes=config.get_int("replica.fetch.response.max.bytes"),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        if self.is_established:
            self._session_epoch = 1 if self._session_epoch == MAX_SESSION_EPOCH else self._session_epoch + 1
        return request

    def _named(self) -> list[FetchTopic]:
        topics: dict[TopicId, FetchTopic] = {}
        max_bytes = self._config.get_int("replica.fetch.max.bytes")
        for key in list(self._changed):
            followed = self._followed.get(key)
            if followed is None or not followed.is_current:
                continue  # the code that changed it will say what to follow now
            partition = followed.partition
            if not partition.following.may_fetch:
                self.set_aside(followed)
                self._unconfirmed[key] = followed
                continue
            topic_id, number = key
            offset, epoch = followed.asked = partition.following.fetch_position()
            followed.told_log_start = partition.log.saved_start_offset
            if followed.first_request is None:
                followed.first_request = self.requests
            self._forgotten.pop(key, None)
            self._known_to_leader[key] = None
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=number,
                    current_leader_epoch=followed.leader_epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=epoch,
                    log_start_offset=followed.told_log_start,
                    partition_max_bytes=max_bytes,
                )
            )
        self._changed.clear()
        return list(topics.values())

    def _given_up(self) -> list[ForgottenTopic]:
        topics: dict[TopicId, ForgottenTopic] = {}
        for key in self._forgotten:
            self._known_to_leader.pop(key, None)
            topic_id, number = key
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = ForgottenTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(number)
        self._forgotten.clear()
        return list(topics.values())
