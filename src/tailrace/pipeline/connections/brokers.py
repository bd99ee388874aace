"""A query's requests to the brokers of a cluster: the existing topics, and the first and last offsets of partitions.

Owns what these requests mean for a query, and the error messages for its user. The protocol client owns connections,
leaders and retries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tailrace.errors import ErrorCode
from tailrace.model import ZERO_UUID, Lineage, TopicId, TopicPartition
from tailrace.pipeline.failures import SourceError, UnknownTopicError, UnreachableBrokerError
from tailrace.pipeline.source.client_settings import ClientSettings
from tailrace.pipeline.source.offsets import Offsets
from tailrace.pipeline.source.options import Selection
from tailrace.protocol_client.cluster import Cluster, TopicState, leader_in
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.errors import (
    ConnectionFailure,
    NotABrokerError,
    ProtocolClientError,
    RetriableError,
    UnknownPartitionError,
    UnreachableClusterError,
    refusal,
)
from tailrace.protocol_client.settings import Address, join_address
from tailrace.protocol_client.versions import Versions
from tailrace.storage.checkpoints import decode_uuid, encode_uuid
from tailrace.wire.codec import Message
from tailrace.wire.messages.describe_configs import (
    LINEAGE_KEY,
    TOPIC_ID_KEY,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

Answer = TypeVar("Answer", bound=Message)
T = TypeVar("T")

#: From 2 on, a request says whether it is for readers of committed records only.
LIST_OFFSETS = Versions(2, 5)
_DESCRIBE_CONFIGS = Versions(1, 4)
_TOPIC_RESOURCE = 2


@contextmanager
def source_errors(doing: str | None = None) -> Iterator[None]:
    """Convert the protocol client's errors to the data source's; retriable ones only if `doing` is given up."""
    try:
        yield
    except RetriableError as error:
        if doing is None:
            raise
        raise SourceError(f"{doing} failed: {error}") from None
    except (UnreachableClusterError, NotABrokerError) as error:
        raise UnreachableBrokerError(str(error)) from None
    except UnknownPartitionError as error:
        raise UnknownTopicError(str(error)) from None
    except ConnectionFailure:
        raise
    except ProtocolClientError as error:
        raise SourceError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's lineage, and the address of each partition's leader, None if it has none."""

    lineage: Lineage
    leaders: Mapping[int, Address | None]


class Brokers:
    """A cluster behind its bootstrap addresses, as queries see it."""

    def __init__(self, settings: ClientSettings, *, reached: bool = False) -> None:
        """Pass `reached` if another process has reached the cluster: retries then last longer from the start."""
        self._settings = settings
        self._cluster = Cluster(settings.cluster, reached=reached)
        self._lineages: dict[TopicId, Lineage] = {}

    def close(self) -> None:
        """Close all connections; later requests open new ones."""
        self._cluster.close()

    def connect(self, address: Address) -> BrokerConnection:
        """Return the connection to a broker, opening it if necessary."""
        return self._cluster.connect(address)

    def drop(self, address: Address) -> None:
        """Close and forget a connection that failed."""
        self._cluster.drop(address)

    def ask_patiently(self, doing: str, request: Message, usable: Versions, kind: type[Answer]) -> Answer:
        """Ask any broker, and retry until one responds or the time is over."""
        return self._retry(doing, lambda: self._cluster.ask_any(request, usable, kind))

    def topics(self, names: tuple[str, ...] | None) -> dict[str, Topic]:
        """Return the topics with these names, or all that are not internal; missing ones are omitted."""
        return self._retry("looking up topics", lambda: self._identified(self._topics(names)))

    def _identified(self, topics: Mapping[str, TopicState]) -> dict[str, Topic]:
        """Return topics with their lineages; asks for unknown ones."""
        wanted = {
            name: state.topic_id
            for name, state in topics.items()
            if state.topic_id != ZERO_UUID and state.topic_id not in self._lineages
        }
        if wanted:
            self._learn_lineages(wanted)
        return {
            name: Topic(self._lineages.get(state.topic_id, Lineage(state.topic_id)), state.leaders)
            for name, state in topics.items()
        }

    def _learn_lineages(self, topics: Mapping[str, TopicId]) -> None:
        """Remember the lineages of these ids: an id never moves to another topic."""
        keys = [TOPIC_ID_KEY, LINEAGE_KEY]
        resources = [
            DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=keys)
            for name in topics
        ]
        request = DescribeConfigsRequest(resources=resources)
        answer = self._cluster.ask_any(request, _DESCRIBE_CONFIGS, DescribeConfigsResponse)
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise RetriableError(f"topic '{result.resource_name}' was deleted, or this broker does not know it yet")
            told = {entry.name: entry.value for entry in result.configs if entry.value}
            topic_id = topics.get(result.resource_name)
            if topic_id is None:
                continue  # not asked for
            if LINEAGE_KEY not in told:
                self._lineages[topic_id] = Lineage(topic_id)  # these brokers do not know lineages
            elif told.get(TOPIC_ID_KEY) == encode_uuid(topic_id):
                try:
                    self._lineages[topic_id] = Lineage(decode_uuid(told[LINEAGE_KEY]))
                except ValueError:
                    raise RetriableError(f"the lineage of topic '{result.resource_name}' is not an id") from None
            else:
                raise RetriableError(f"the id of topic '{result.resource_name}' has just changed")

    def _topics(self, names: tuple[str, ...] | None) -> dict[str, TopicState]:
        found: dict[str, TopicState] = {}
        for name, state in self._cluster.topics(names).items():
            if state.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                continue
            if state.error_code:
                raise refusal(state.error_code, f"topic '{name}'")
            if names is not None or not state.is_internal:
                found[name] = state
        return found

    def topic_setting(self, topic: str, key: str) -> str | None:
        """Return the value of a topic's setting; None if these brokers do not know it, or do not return it."""
        resource = DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[key])
        request = DescribeConfigsRequest(resources=[resource])
        with source_errors():
            answer = self._cluster.ask_any(request, _DESCRIBE_CONFIGS, DescribeConfigsResponse)
        found = [one.value for result in answer.results for one in result.configs if one.name == key]
        return found[0] if found else None

    def partitions(self, selection: Selection) -> dict[TopicPartition, Lineage]:
        """Return the selected partitions that exist, each with its topic's lineage."""
        if selection.pattern is not None:
            # As in Spark's Kafka connector, the pattern may match anywhere in the name.
            pattern = re.compile(selection.pattern)
            topics = self._retry(
                "looking up topics",
                lambda: self._identified(
                    {name: state for name, state in self._topics(None).items() if pattern.search(name)}
                ),
            )
        else:
            names = selection.topics or tuple(dict.fromkeys(name.topic for name in selection.assigned))
            topics = self.topics(names)
        found = {
            TopicPartition(topic, partition): state.lineage
            for topic, state in sorted(topics.items())
            for partition in sorted(state.leaders)
        }
        if not selection.assigned:
            return found
        return {name: found[name] for name in selection.assigned if name in found}

    def offsets_at(self, timestamps: Mapping[TopicPartition, int], usable: Versions = LIST_OFFSETS) -> Offsets:
        """Return the offset of a time in each partition, -1 if it has no such record; -2 and -1 mean its ends."""
        found: Offsets = {}

        def look() -> Offsets:
            self._offsets_at({name: time for name, time in timestamps.items() if name not in found}, found, usable)
            return found

        return self._retry("looking up offsets", look)

    def _offsets_at(self, timestamps: Mapping[TopicPartition, int], found: Offsets, usable: Versions) -> None:
        if not timestamps:
            return
        problem: str | None = None
        for address, names in self._by_leader(timestamps).items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=self._settings.isolation_level,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(partition_index=name.partition, timestamp=timestamps[name])
                            for name in names
                            if name.topic == topic
                        ],
                    )
                    for topic in dict.fromkeys(name.topic for name in names)
                ],
            )
            try:
                answer = self._cluster.ask(address, request, usable, ListOffsetsResponse)
            except ConnectionFailure as error:
                problem = f"lost the broker at {join_address(address)}: {error}"
                continue
            for topic in answer.topics:
                for one in topic.partitions:
                    name = TopicPartition(topic.name, one.partition_index)
                    if one.error_code == ErrorCode.NONE:
                        found[name] = one.offset
                    elif one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        problem = f"the leader of {name} does not know it yet, or no longer"
                    else:
                        refused = refusal(one.error_code, f"partition {name}")
                        if not isinstance(refused, RetriableError):
                            raise refused
                        problem = str(refused)
        if problem is not None:
            raise RetriableError(problem)

    def leader_of(self, name: TopicPartition, lineage: Lineage | None = None) -> Address:
        """Return the address of a partition's leader; UnknownTopicError if another topic has the name now."""
        with source_errors():
            topics = self._topics((name.topic,))
            leader = leader_in(topics, name)
            is_other = self._is_other(name.topic, topics[name.topic], lineage)
        if is_other:
            raise UnknownTopicError(f"topic '{name.topic}' was deleted and created again")
        return leader

    def is_replaced(self, topic: str, lineage: Lineage | None) -> bool:
        """True if another topic has the name now; a topic that is gone is not replaced."""
        if lineage is None:
            return False
        return self._retry("looking up topics", lambda: self._is_now_other(topic, lineage))

    def _is_now_other(self, topic: str, lineage: Lineage) -> bool:
        state = self._topics((topic,)).get(topic)
        return state is not None and self._is_other(topic, state, lineage)

    def _is_other(self, topic: str, state: TopicState, lineage: Lineage | None) -> bool:
        """True if it is another topic; most topics still have their first id, which needs no request."""
        if not is_other_topic(Lineage(state.topic_id), lineage):
            return False
        return is_other_topic(self._identified({topic: state})[topic].lineage, lineage)

    def _by_leader(self, names: Mapping[TopicPartition, int]) -> dict[Address, list[TopicPartition]]:
        topics = self._topics(tuple(dict.fromkeys(name.topic for name in names)))
        by_leader: dict[Address, list[TopicPartition]] = {}
        for name in names:
            by_leader.setdefault(leader_in(topics, name), []).append(name)
        return by_leader

    def _retry(self, doing: str, look: Callable[[], T]) -> T:
        with source_errors(doing):
            return self._cluster.retry(look)


def is_other_topic(one: Lineage | None, other: Lineage | None) -> bool:
    """True if two lineages are of different topics; old brokers have none."""
    return one is not None and other is not None and ZERO_UUID not in (one, other) and one != other


def unknown_partition(name: TopicPartition) -> UnknownTopicError:
    """Return the error that a partition does not exist."""
    return UnknownTopicError(str(UnknownPartitionError(name)))


def unknown_topic(topic: str) -> UnknownTopicError:
    """Return the error that a topic does not exist."""
    return UnknownTopicError(f"topic '{topic}' does not exist; list all topics with: tailrace topic list")
