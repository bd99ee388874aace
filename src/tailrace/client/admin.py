"""Administration of topics: create, list, describe, add partitions, delete.

Owns the calls and the values they return; must not know how they are printed. Reading a topic's state never creates it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Node, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from tailrace.client.connection import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT,
    check_answers,
    check_reachable,
    check_topic_name,
    client_error,
    client_settings,
    error_of,
    patiently,
)
from tailrace.client.errors import ClientError, TopicExistsError

T = TypeVar("T")

#: The limits of librdkafka.
_MOST_PARTITIONS = 100_000
_MOST_REPLICAS = 10_000
_URL_SAFE = str.maketrans("+/", "-_", "=")


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list."""

    name: str
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition: its leader, replicas and offsets; None where that is unknown."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    earliest_offset: int | None
    latest_offset: int | None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic with its partitions and the configs set on it."""

    name: str
    topic_id: str
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]


class Topics:
    """The topics of the cluster behind a bootstrap address."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP, **overrides: Any) -> None:
        check_reachable(bootstrap)
        self._bootstrap = bootstrap
        self._admin = AdminClient(client_settings(bootstrap, {}, overrides))
        check_answers(self._admin, bootstrap)

    def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, with the broker's defaults for omitted arguments; `TopicExistsError` if it exists."""
        check_topic_name(name)
        _check_counts(partitions, replication_factor)
        topic = NewTopic(
            name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=dict(configs or {}),
        )
        futures = self._request(
            f"creating topic '{name}'",
            lambda: self._admin.create_topics(
                [topic], operation_timeout=REQUEST_TIMEOUT, request_timeout=REQUEST_TIMEOUT
            ),
        )
        try:
            futures[name].result()
        except KafkaException as exception:
            error = error_of(exception)
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExistsError(f"topic '{name}' already exists") from exception
            raise self._client_error(error, f"creating topic '{name}'") from exception

    def list(self) -> Sequence[TopicSummary]:
        """Return all topics, sorted by name."""
        metadata = self._request("listing topics", lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT))
        return [
            TopicSummary(
                name=name,
                partitions=len(topic.partitions),
                replication_factor=max((len(p.replicas) for p in topic.partitions.values()), default=0),
            )
            for name, topic in sorted(metadata.topics.items())
        ]

    def describe(self, name: str) -> TopicState:
        """Return a topic in full; `UnknownTopicError` if it does not exist."""
        check_topic_name(name)
        doing = f"describing topic '{name}'"
        described = self._request(
            doing,
            lambda: self._admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_TIMEOUT),
        )
        description: TopicDescription = self._result(described[name], doing, name)
        earliest = self._offsets(description, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        latest = self._offsets(description, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return TopicState(
            name=name,
            # librdkafka uses another base64 alphabet than Kafka's tools and the directory names.
            topic_id=str(description.topic_id).translate(_URL_SAFE),
            partitions=tuple(
                PartitionState(
                    partition=partition.id,
                    leader=_node_id(partition.leader),
                    replicas=tuple(node.id for node in partition.replicas),
                    isr=tuple(node.id for node in partition.isr),
                    earliest_offset=earliest.get(partition.id),
                    latest_offset=latest.get(partition.id),
                )
                for partition in description.partitions
            ),
            configs=self._configs(name),
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions of a topic to this total; it can never decrease."""
        check_topic_name(name)
        _check_counts(total)
        doing = f"adding partitions to topic '{name}'"
        futures = self._request(
            doing,
            lambda: self._admin.create_partitions(
                [NewPartitions(name, total)], operation_timeout=REQUEST_TIMEOUT, request_timeout=REQUEST_TIMEOUT
            ),
        )
        self._result(futures[name], doing, name)

    def delete(self, name: str) -> None:
        """Delete a topic and its records; `UnknownTopicError` if it does not exist."""
        check_topic_name(name)
        doing = f"deleting topic '{name}'"
        futures = self._request(
            doing,
            lambda: self._admin.delete_topics(
                [name], operation_timeout=REQUEST_TIMEOUT, request_timeout=REQUEST_TIMEOUT
            ),
        )
        self._result(futures[name], doing, name)

    def _offsets(self, description: TopicDescription, moment: OffsetSpec) -> dict[int, int]:
        """Return an offset for each partition that has a leader."""
        led = [partition.id for partition in description.partitions if _node_id(partition.leader) is not None]
        query = {TopicPartition(description.name, number): moment for number in led}

        def look() -> dict[int, int]:
            answers = self._admin.list_offsets(query, request_timeout=REQUEST_TIMEOUT)
            return {partition.partition: future.result().offset for partition, future in answers.items()}

        doing = f"looking up the offsets of topic '{description.name}'"
        return self._request(doing, lambda: patiently(look, REQUEST_TIMEOUT)) if query else {}

    def _configs(self, name: str) -> dict[str, str]:
        doing = f"reading the configs of topic '{name}'"
        resource = ConfigResource(ResourceType.TOPIC, name)
        futures = self._request(
            doing, lambda: self._admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT)
        )
        entries = self._result(futures[resource], doing, name)
        on_topic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            entry.name: entry.value for entry in sorted(entries.values(), key=_entry_name) if entry.source == on_topic
        }

    def _request(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            raise self._client_error(error_of(error), doing) from error
        except (ValueError, TypeError) as error:
            raise ClientError(f"{doing} failed: {error}") from error

    def _result(self, future: Future[T], doing: str, topic: str) -> T:
        try:
            return future.result()
        except KafkaException as error:
            raise self._client_error(error_of(error), doing, topic) from error

    def _client_error(self, error: KafkaError, doing: str, topic: str | None = None) -> ClientError:
        return client_error(error, doing=doing, bootstrap=self._bootstrap, topic=topic)


def _check_counts(partitions: int | None, replication_factor: int | None = None) -> None:
    if partitions is not None and not 1 <= partitions <= _MOST_PARTITIONS:
        raise ClientError(f"a topic must have 1 to {_MOST_PARTITIONS} partitions, not {partitions}")
    if replication_factor is not None and not 1 <= replication_factor <= _MOST_REPLICAS:
        raise ClientError(f"a partition must have 1 to {_MOST_REPLICAS} replicas, not {replication_factor}")


def _entry_name(entry: Any) -> str:
    name: str = entry.name
    return name


def _node_id(node: Node | None) -> int | None:
    return None if node is None or node.id < 0 else node.id
