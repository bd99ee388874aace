"""Administration of consumer groups: list them, describe them with their lag, set their offsets, delete them.

Owns the calls and the values they return; must not know how they are printed. Offsets go through librdkafka. What it
cannot do is requested here: the states and epochs of the newer protocol, and deleting single offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,
)

from tailrace.client.connection import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT,
    check_answers,
    check_reachable,
    client_error,
    client_settings,
    error_of,
    patiently,
)
from tailrace.client.errors import ClientError, GroupHasMembersError, UnknownGroupError, UnknownTopicError
from tailrace.client.request import ask, client_error_of, cluster_settings
from tailrace.errors import ErrorCode, WireError
from tailrace.groups.subscription import CONSUMER_PROTOCOL_TYPE, decode_assignment, decode_subscription
from tailrace.protocol_client.cluster import Cluster
from tailrace.protocol_client.errors import ProtocolClientError, RefusedError, RetriableError, error_name
from tailrace.protocol_client.retries import retry
from tailrace.protocol_client.settings import join_address
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages import consumer_group_describe as newer
from tailrace.wire.messages import describe_groups as classic
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tailrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

T = TypeVar("T")
#: A topic's name and the number of one of its partitions.
Place: TypeAlias = tuple[str, int]

_LIST = Versions(5, 5)
_CLASSIC = Versions(0, 5)
_NEWER = Versions(0, 0)
_CLUSTER = Versions(0, 0)
_OFFSET_DELETE = Versions(0, 0)
_DEAD = "Dead"
#: The errors of a coordinator that starts or moves.
_PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list; the type is `classic` or `consumer`, for the newer protocol."""

    group: str
    type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member, the partitions it reads, and its epoch in the newer protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    topics: tuple[str, ...]
    partitions: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a group in one partition, and the member that reads it; None where unknown."""

    topic: str
    partition: int
    committed: int | None
    log_end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        """The number of offsets between the committed offset and the end of the log."""
        if self.committed is None or self.log_end is None:
            return None
        return max(0, self.log_end - self.committed)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates a group."""

    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members and its progress."""

    group: str
    type: str
    state: str
    coordinator: Coordinator
    assignor: str | None
    epoch: int | None
    members: tuple[GroupMember, ...]
    progress: tuple[Progress, ...]

    @property
    def lag(self) -> int:
        """The total lag of all partitions whose lag is known."""
        return sum(each.lag or 0 for each in self.progress)


class Groups:
    """The consumer groups of the cluster behind a bootstrap address."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP, **overrides: Any) -> None:
        check_reachable(bootstrap)
        self._bootstrap = bootstrap
        self._admin = AdminClient(client_settings(bootstrap, {}, overrides))
        check_answers(self._admin, bootstrap)

    # --- reading

    def list(self, *, state: str | None = None, type: str | None = None) -> Sequence[GroupSummary]:
        """Return all groups, sorted by name, or those in a state or of a type."""
        doing = "listing groups"
        request = ListGroupsRequest(
            states_filter=[] if state is None else [state], types_filter=[] if type is None else [type]
        )
        found: list[GroupSummary] = []
        for address in self._brokers(doing):

            def look(address: str = address) -> tuple[int, ListGroupsResponse]:
                response = ask(address, request, _LIST, ListGroupsResponse, doing=doing)
                return response.error_code, response

            response = self._patiently(look, doing)
            found += [GroupSummary(group.group_id, group.group_type, group.group_state) for group in response.groups]
        return sorted(found, key=lambda group: group.group)

    def describe(self, group: str) -> GroupDescription:
        """Return a group in full; `UnknownGroupError` if it does not exist."""
        description = self.find(group)
        if description is None:
            raise UnknownGroupError(_unknown(group))
        return description

    def find(self, group: str) -> GroupDescription | None:
        """Return a group in full; None if it does not exist."""
        coordinator = self._coordinator(group)
        described = self._newer(group, coordinator) or self._classic(group, coordinator)
        if described is None:
            return None
        committed = self.committed(group)
        owners = {place: member for member in described.members for place in member.partitions}
        places = sorted({*committed, *owners})
        ends = self.offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        progress = tuple(
            Progress(
                topic, number, committed.get((topic, number)), ends.get((topic, number)), owners.get((topic, number))
            )
            for topic, number in places
        )
        return GroupDescription(
            group,
            described.type,
            described.state,
            coordinator,
            described.assignor,
            described.epoch,
            described.members,
            progress,
        )

    def committed(self, group: str) -> dict[Place, int]:
        """Return the committed offsets of a group; empty if it does not exist."""
        doing = f"reading the offsets of group '{group}'"
        asked = ConsumerGroupTopicPartitions(group)
        futures = self._request(
            doing, lambda: self._admin.list_consumer_group_offsets([asked], request_timeout=REQUEST_TIMEOUT)
        )
        try:
            answer = futures[group].result()
        except KafkaException as error:
            raise self._client_error(error_of(error), doing) from error
        return {(each.topic, each.partition): each.offset for each in answer.topic_partitions or () if each.offset >= 0}

    def partitions(self) -> dict[str, int]:
        """Return every topic and its number of partitions."""
        metadata = self._request("listing topics", lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT))
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

    def offsets(self, places: Iterable[Place], moment: OffsetSpec) -> dict[Place, int]:
        """Return the offset at a time for each partition that exists; -1 if it has no record from that time on."""
        existing = self.partitions()
        query = {TopicPartition(topic, number): moment for topic, number in places if number < existing.get(topic, 0)}

        def look() -> dict[Place, int]:
            answers = self._admin.list_offsets(query, request_timeout=REQUEST_TIMEOUT)
            return {(each.topic, each.partition): future.result().offset for each, future in answers.items()}

        if not query:
            return {}
        return self._request("looking up offsets", lambda: patiently(look, REQUEST_TIMEOUT))

    # --- changing

    def set_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Set the offsets of a group without members; create the group if it does not exist."""
        if not offsets:
            return
        doing = f"setting the offsets of group '{group}'"
        wanted = ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        )
        futures = self._request(
            doing, lambda: self._admin.alter_consumer_group_offsets([wanted], request_timeout=REQUEST_TIMEOUT)
        )
        try:
            answer = futures[group].result()
        except KafkaException as error:
            raise self._refusal(error_of(error), group, doing) from error
        for each in answer.topic_partitions or ():
            if each.error is not None:
                raise self._refusal(each.error, group, f"{doing} in {each.topic}-{each.partition}")

    def delete(self, group: str) -> None:
        """Delete a group without members, and its offsets; `UnknownGroupError` if it does not exist."""
        doing = f"deleting group '{group}'"
        futures = self._request(
            doing, lambda: self._admin.delete_consumer_groups([group], request_timeout=REQUEST_TIMEOUT)
        )
        try:
            futures[group].result()
        except KafkaException as error:
            raise self._refusal(error_of(error), group, doing) from error

    def delete_offsets(self, group: str, topic: str) -> int:
        """Delete a group's offsets in a topic that none of its members reads; return the number of partitions."""
        doing = f"deleting the offsets of group '{group}' in topic '{topic}'"
        numbers = sorted(number for name, number in self.committed(group) if name == topic)
        if not numbers and self.find(group) is None:
            raise UnknownGroupError(_unknown(group))
        if not numbers and topic not in self.partitions():
            raise UnknownTopicError(f"topic '{topic}' does not exist; list all topics with: tailrace topic list")
        if not numbers:
            return 0
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
                )
            ],
        )
        address = self._coordinator(group).address

        def delete() -> tuple[int, OffsetDeleteResponse]:
            response = ask(address, request, _OFFSET_DELETE, OffsetDeleteResponse, doing=doing)
            return response.error_code, response

        response = self._patiently(delete, doing, group)
        for partition in response.topics[0].partitions:
            _check(partition.error_code, doing, group)
        return len(numbers)

    # --- requests

    def _newer(self, group: str, coordinator: Coordinator) -> _Described | None:
        doing = f"describing group '{group}'"
        request = newer.ConsumerGroupDescribeRequest(group_ids=[group])

        def look() -> tuple[int, newer.DescribedGroup]:
            response = ask(coordinator.address, request, _NEWER, newer.ConsumerGroupDescribeResponse, doing=doing)
            code = response.groups[0].error_code
            return (ErrorCode.NONE if code == ErrorCode.GROUP_ID_NOT_FOUND else code), response.groups[0]

        described = self._patiently(look, doing, group)
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        members = tuple(
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                _host(member.client_host),
                member.member_epoch,
                tuple(member.subscribed_topic_names)
                if member.subscribed_topic_regex is None
                else (*member.subscribed_topic_names, f"/{member.subscribed_topic_regex}/"),
                tuple(
                    (topic.topic_name, number)
                    for topic in member.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for member in described.members
        )
        return _Described(
            "consumer", described.group_state, described.assignor_name or None, described.group_epoch, members
        )

    def _classic(self, group: str, coordinator: Coordinator) -> _Described | None:
        doing = f"describing group '{group}'"
        request = classic.DescribeGroupsRequest(groups=[group])

        def look() -> tuple[int, classic.DescribedGroup]:
            response = ask(coordinator.address, request, _CLASSIC, classic.DescribeGroupsResponse, doing=doing)
            return response.groups[0].error_code, response.groups[0]

        described = self._patiently(look, doing, group)
        if described.group_state == _DEAD:
            return None
        is_of_consumers = described.protocol_type == CONSUMER_PROTOCOL_TYPE
        members = tuple(_classic_member(member, is_of_consumers=is_of_consumers) for member in described.members)
        return _Described("classic", described.group_state, described.protocol_data or None, None, members)

    def _coordinator(self, group: str) -> Coordinator:
        doing = f"looking for the coordinator of group '{group}'"
        try:
            with Cluster(cluster_settings(self._bootstrap)) as cluster:
                found = cluster.coordinator(group)
        except (RefusedError, RetriableError) as error:
            raise _failure(error.code, doing, group) from error
        except ProtocolClientError as error:
            raise client_error_of(error, self._bootstrap, doing) from error
        return Coordinator(found.node_id, join_address(found.address))

    def _brokers(self, doing: str) -> Sequence[str]:
        cluster = ask(self._bootstrap, DescribeClusterRequest(), _CLUSTER, DescribeClusterResponse, doing=doing)
        return [join_address((broker.host, broker.port)) for broker in cluster.brokers]

    def _patiently(self, look: Callable[[], tuple[int, T]], doing: str, group: str = "") -> T:
        """Retry until the coordinator answers, or the time is over."""

        def look_once() -> T:
            code, answer = look()
            if code in _PASSING:
                raise RetriableError(error_name(code), code)
            _check(code, doing, group)
            return answer

        try:
            return retry(look_once, lambda _: REQUEST_TIMEOUT, _PAUSE)
        except RetriableError as error:
            raise _failure(error.code, doing, group) from error

    def _request(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            raise self._client_error(error_of(error), doing) from error
        except (ValueError, TypeError) as error:
            raise ClientError(f"{doing} failed: {error}") from error

    def _client_error(self, error: KafkaError, doing: str) -> ClientError:
        return client_error(error, doing=doing, bootstrap=self._bootstrap)

    def _refusal(self, error: KafkaError, group: str, doing: str) -> ClientError:
        return _refusal_of(error.code(), group) or self._client_error(error, doing)


@dataclass(frozen=True, slots=True)
class _Described:
    """A coordinator's description of a group."""

    type: str
    state: str
    assignor: str | None
    epoch: int | None
    members: tuple[GroupMember, ...]


def _classic_member(member: classic.DescribedGroupMember, *, is_of_consumers: bool) -> GroupMember:
    """Convert a member; only consumers have readable metadata, and only while the group is stable."""
    topics: tuple[str, ...] = ()
    partitions: tuple[Place, ...] = ()
    if is_of_consumers:
        try:
            if member.member_metadata:
                topics = tuple(decode_subscription(member.member_metadata).topics)
            if member.member_assignment:
                assigned = decode_assignment(member.member_assignment).assigned_partitions
                partitions = tuple((item.topic, number) for item in assigned for number in item.partitions)
        except WireError:
            pass  # its metadata is not that of a consumer, although it claims to be one: shown without
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        _host(member.client_host),
        None,
        topics,
        partitions,
    )


def _host(client_host: str) -> str:
    """Remove the slash that Java prints before an address without a host name."""
    return client_host.removeprefix("/")


def _unknown(group: str) -> str:
    return f"group '{group}' does not exist; list all groups with: tailrace group list"


def _check(code: int, doing: str, group: str) -> None:
    if code != ErrorCode.NONE:
        raise _failure(code, doing, group)


def _failure(code: int, doing: str, group: str) -> ClientError:
    return _refusal_of(code, group) or ClientError(f"{doing} failed: {error_name(code)}")


def _refusal_of(code: int, group: str) -> ClientError | None:
    """Return the error for an error code of groups, with what to do about it."""
    who = f"list them with: tailrace group describe {group} --members"
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return UnknownGroupError(_unknown(group))
    if code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
        return GroupHasMembersError(f"group '{group}' has members; stop them first ({who})")
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return GroupHasMembersError(
            f"members of group '{group}' read that topic; let them unsubscribe or stop them first ({who})"
        )
    if code == ErrorCode.INVALID_GROUP_ID:
        return ClientError("the name of a group must not be empty")
    return None
