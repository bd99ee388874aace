"""Configuration and partitions changed while the broker runs: who may change what, what it does at once, what stays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.broker.handlers.config_changes import Operation, ResourceType
from tailrace.cluster.store import Check, TooLarge, Write
from tailrace.errors import ErrorCode, StorageError
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.memory import MemoryStore
from tailrace.wire.messages import alter_configs, incremental_alter_configs
from tailrace.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tailrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tailrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tailrace.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tailrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from tailrace.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tailrace.wire.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from tailrace.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker

SET, DELETE, APPEND, SUBTRACT = Operation
TOPIC, BROKER, BROKER_LOGGER = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.BROKER_LOGGER
Change = tuple[str, int, str | None]
Outcome = tuple[ErrorCode, str | None]
DONE: Outcome = (ErrorCode.NONE, None)


async def change(
    broker: TestedBroker, kind: int, name: str, *changes: Change, validate_only: bool = False, version: int = 1
) -> Outcome:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    response = await broker.ask(request, version, incremental_alter_configs.IncrementalAlterConfigsResponse)
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return ErrorCode(answer.error_code), answer.error_message


async def replace_all(
    broker: TestedBroker, kind: int, name: str, version: int = 2, validate_only: bool = False, **configs: str
) -> Outcome:
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            alter_configs.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )
    request = alter_configs.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = await broker.ask(request, version, alter_configs.AlterConfigsResponse)
    (answer,) = response.responses
    return ErrorCode(answer.error_code), answer.error_message


async def describe(
    broker: TestedBroker, kind: int, name: str, keys: list[str] | None = None, version: int = 4
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    return (await broker.ask(request, version, DescribeConfigsResponse)).results[0]


async def entry(broker: TestedBroker, kind: int, name: str, key: str) -> DescribeConfigsResourceResult:
    (found,) = (await describe(broker, kind, name, [key])).configs
    return found


def configs_of(broker: TestedBroker, topic: str = "orders") -> dict[str, str]:
    return dict(broker.broker.metadata.image.topics[topic].configs)


# --- topics


def test_topic_configs_are_set_and_deleted_and_apply_to_open_logs(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2, retention_ms="77")
        logs = [broker.broker.partitions.find("orders", number).log for number in (0, 1)]
        for version in (0, 1):
            changes: list[Change] = [("max.message.bytes", SET, "100"), ("retention.ms", DELETE, None)]
            assert await change(broker, TOPIC, "orders", *changes, version=version) == DONE
        assert configs_of(broker) == {"max.message.bytes": "100"}
        for log in logs:
            assert (log.config.max_message_bytes, log.config.retention_ms) == (100, 14 * 24 * 3_600_000)
        assert (await broker.produce(records=20)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await change(broker, TOPIC, "orders", ("max.message.bytes", DELETE, None)) == DONE
        assert (await broker.produce(records=20)).error_code == ErrorCode.NONE

    with_broker(tmp_path, test)


def test_segments_timestamps_and_replicas_follow_the_topic_at_once(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        partition = broker.broker.partitions.find("orders", 0)
        big = bytes(build_batch([NewRecord(b"v" * 600_000, timestamp=SystemClock().wall_ms())]))
        for _ in range(3):
            await broker.produce(data=big)
        assert partition.log.segments.count == 1
        assert await change(broker, TOPIC, "orders", ("segment.bytes", SET, "1048576")) == DONE
        for _ in range(3):
            await broker.produce(data=big)
        assert partition.log.segments.count == 4
        old = bytes(build_batch([NewRecord(b"v", timestamp=1)]))
        assert (await broker.produce(data=old)).error_code == ErrorCode.NONE
        assert await change(broker, TOPIC, "orders", ("message.timestamp.before.max.ms", SET, "1000")) == DONE
        assert (await broker.produce(data=old)).error_code == ErrorCode.INVALID_TIMESTAMP
        assert await change(broker, TOPIC, "orders", ("message.timestamp.type", SET, "LogAppendTime")) == DONE
        assert (await broker.produce(data=old)).log_append_time_ms > 0
        assert await change(broker, TOPIC, "orders", ("min.insync.replicas", SET, "2")) == DONE
        assert (await broker.produce()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS

    with_broker(tmp_path, test)


def test_retention_goes_by_the_newest_configuration(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        old = bytes(build_batch([NewRecord(b"v", timestamp=SystemClock().wall_ms() - 60_000)]))
        await broker.produce(data=old)
        await broker.broker.partitions.remove_expired()
        assert broker.broker.partitions.find("orders", 0).log.start_offset == 0
        assert await change(broker, TOPIC, "orders", ("retention.ms", SET, "1000")) == DONE
        await broker.broker.partitions.remove_expired()
        assert broker.broker.partitions.find("orders", 0).log.start_offset == 1

    with_broker(tmp_path, test)


def test_a_producer_that_waits_for_a_sync_no_longer_does_when_none_is_asked_for(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", flush_messages="1")
        partition = broker.broker.partitions.find("orders", 0)
        waiting = asyncio.ensure_future(broker.ask(produce_request("orders"), 9, ProduceResponse))
        await asyncio.sleep(0)
        partition.log.flushed_offset = 0
        assert partition.high_watermark == 0
        topic = broker.broker.metadata.image.topics["orders"]
        partition.directory.reconfigure(partition.log, broker.broker.config.topic_config({}))
        assert partition.high_watermark == 1
        assert (await waiting).responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert topic.configs == {"flush.messages": "1"}

    with_broker(tmp_path, test)


def test_lists_are_appended_to_and_subtracted_from(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        # What is not set yet begins with the default.
        for operation, items, policies in (
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact, delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ):
            assert await change(broker, TOPIC, "orders", ("cleanup.policy", operation, items)) == DONE
            assert configs_of(broker) == {"cleanup.policy": policies}
        config = broker.broker.partitions.find("orders", 0).log.config
        assert (config.compact, config.delete_expired) == (True, False)
        code, message = await change(broker, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "compact"))
        assert code is ErrorCode.INVALID_CONFIG
        assert message is not None
        assert "cleanup.policy" in message
        assert configs_of(broker) == {"cleanup.policy": "compact"}
        assert await change(broker, TOPIC, "orders", ("retention.ms", APPEND, "5")) == (
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        )
        assert await change(broker, BROKER, "", ("message.max.bytes", SUBTRACT, "5")) == (
            ErrorCode.INVALID_CONFIG,
            "Config value subtract is not allowed for config key: message.max.bytes",
        )

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    ("kind", "name", "changes", "outcome"),
    [
        (
            TOPIC,
            "nobody",
            [("retention.ms", SET, "1")],
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nobody' does not exist."),
        ),
        (
            TOPIC,
            "",
            [("retention.ms", SET, "1")],
            (ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
        ),
        (
            TOPIC,
            "a b",
            [("retention.ms", SET, "1")],
            (
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
                "'.', '_' and '-'",
            ),
        ),
        (
            TOPIC,
            "orders",
            [("retention.ms", SET, "soon")],
            (ErrorCode.INVALID_CONFIG, "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ),
        (
            TOPIC,
            "orders",
            [("retention.ms", SET, "5"), ("no.such", SET, "1")],
            (ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such"),
        ),
        (
            TOPIC,
            "orders",
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys"),
        ),
        (
            TOPIC,
            "orders",
            [("retention.ms", SET, None), ("segment.ms", APPEND, None)],
            (ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms, segment.ms"),
        ),
        (TOPIC, "orders", [("retention.ms", 7, "1")], (ErrorCode.INVALID_REQUEST, "Unknown operations type 7")),
        (
            BROKER,
            "x",
            [("message.max.bytes", SET, "1")],
            (ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        ),
        (
            BROKER,
            "99",
            [("message.max.bytes", SET, "1")],
            (ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 99"),
        ),
        (
            BROKER,
            "1",
            [("log.dirs", SET, "/tmp")],
            (ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: Set(log.dirs)"),
        ),
        (
            BROKER,
            "",
            [("message.max.bytes", SET, "-1")],
            (
                ErrorCode.INVALID_REQUEST,
                "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
            ),
        ),
        (32, "group", [("a", SET, "1")], (ErrorCode.INVALID_REQUEST, "Unknown resource type 32")),
        (0, "", [], (ErrorCode.INVALID_REQUEST, "Unknown resource type 0")),
        (
            BROKER_LOGGER,
            "1",
            [("tailrace.broker", SET, "LOUD")],
            (
                ErrorCode.INVALID_CONFIG,
                "Cannot set the log level of tailrace.broker to LOUD as it is not a supported log level. "
                "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
            ),
        ),
        (BROKER_LOGGER, "1", [("nobody", SET, "INFO")], (ErrorCode.INVALID_CONFIG, "Logger nobody does not exist!")),
        (
            BROKER_LOGGER,
            "1",
            [("root", DELETE, None)],
            (ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        ),
        (
            BROKER_LOGGER,
            "1",
            [("root", APPEND, "INFO")],
            (ErrorCode.INVALID_REQUEST, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
        ),
        (
            BROKER_LOGGER,
            "2",
            [("root", SET, "INFO")],
            (ErrorCode.INVALID_REQUEST, "Unexpected node id. Expected 1, but received 2"),
        ),
    ],
)
def test_what_cannot_be_changed_is_refused_in_kafkas_words_and_stays(
    tmp_path: Path, kind: int, name: str, changes: list[Change], outcome: Outcome
) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", max_message_bytes="1000")
        before = broker.broker.metadata.image
        assert await change(broker, kind, name, *changes) == outcome
        assert await change(broker, kind, name, *changes, validate_only=True) == outcome
        assert broker.broker.metadata.image is before

    with_broker(tmp_path, test)


def test_to_validate_changes_nothing(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        before = broker.broker.metadata.image
        assert await change(broker, TOPIC, "orders", ("retention.ms", SET, "5"), validate_only=True) == DONE
        assert await change(broker, BROKER, "1", ("message.max.bytes", SET, "5"), validate_only=True) == DONE
        assert await replace_all(broker, TOPIC, "orders", validate_only=True, retention_ms="6") == DONE
        assert await change(broker, BROKER_LOGGER, "1", ("tailrace.broker", SET, "TRACE"), validate_only=True) == DONE
        assert logging.getLogger("tailrace.broker").level != 5
        assert broker.broker.metadata.image is before

    with_broker(tmp_path, test)


@pytest.mark.parametrize("version", range(3))
def test_the_older_request_replaces_everything(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", retention_ms="5", max_message_bytes="100")
        assert await replace_all(broker, TOPIC, "orders", version, segment_ms="9") == DONE
        assert configs_of(broker) == {"segment.ms": "9"}
        assert await replace_all(broker, TOPIC, "orders", version) == DONE
        assert configs_of(broker) == {}
        assert await replace_all(broker, BROKER, "1", version, message_max_bytes="100") == DONE
        assert await replace_all(broker, BROKER, "1", version, max_connections="100") == DONE
        assert dict(broker.broker.metadata.image.configs_of("1")) == {"max.connections": "100"}
        assert await replace_all(broker, BROKER_LOGGER, "1", version, root="INFO") == (
            ErrorCode.INVALID_REQUEST,
            "Unknown resource type 8",
        )

    with_broker(tmp_path, test)


def test_a_resource_that_is_named_twice_is_changed_by_neither(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        for name in ("orders", "payments"):
            await broker.create(name)
        config = incremental_alter_configs.AlterableConfig(name="retention.ms", value="5")
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
                for name in ("orders", "payments", "orders")
            ]
        )
        response = await broker.ask(request, 1, incremental_alter_configs.IncrementalAlterConfigsResponse)
        assert [(answer.error_code, answer.error_message) for answer in response.responses] == [
            (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."),
            DONE,
            (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."),
        ]
        assert (configs_of(broker), configs_of(broker, "payments")) == ({}, {"retention.ms": "5"})

    with_broker(tmp_path, test)


def test_of_many_who_change_different_keys_at_once_none_undoes_another(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        keys = ["retention.ms", "segment.ms", "max.message.bytes", "flush.ms", "retention.bytes"]
        outcomes = await asyncio.gather(*(change(broker, TOPIC, "orders", (key, SET, "7")) for key in keys))
        assert outcomes == [DONE] * len(keys)
        assert configs_of(broker) == dict.fromkeys(keys, "7")

    with_broker(tmp_path, test)


def test_topics_brokers_and_partitions_are_as_they_were_changed_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders")
        assert await change(broker, TOPIC, "orders", ("retention.ms", SET, "5000")) == DONE
        assert await change(broker, BROKER, "", ("log.segment.bytes", SET, "1048576")) == DONE
        assert await change(broker, BROKER, "1", ("message.max.bytes", SET, "5555")) == DONE
        assert await add_partitions(broker, "orders", 3) == DONE

    async def second(broker: TestedBroker) -> None:
        for number in range(3):
            config = broker.broker.partitions.find("orders", number).log.config
            assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (5000, 1048576, 5555)
        assert broker.broker.config.get_int("message.max.bytes") == 5555
        assert await change(broker, BROKER, "1", ("message.max.bytes", DELETE, None)) == DONE

    async def third(broker: TestedBroker) -> None:
        assert broker.broker.partitions.find("orders", 2).log.config.max_message_bytes == 1_048_588

    for test in (first, second, third):
        with_broker(tmp_path, test, store=store)


# --- brokers


def test_broker_configs_apply_to_every_log_without_a_restart_and_topics_go_before_them(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 60)
        await broker.create("own", max_message_bytes="70")
        assert await change(broker, BROKER, "", ("message.max.bytes", SET, "100")) == DONE
        sizes = {partition.log.config.max_message_bytes for partition in broker.broker.partitions}
        assert sizes == {100, 70}
        assert (await broker.produce(records=20, partition=59)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await change(broker, BROKER, "1", ("message.max.bytes", SET, "5000")) == DONE
        assert (await broker.produce(records=20, partition=59)).error_code == ErrorCode.NONE
        await broker.create("later")
        assert broker.broker.partitions.find("later", 0).log.config.max_message_bytes == 5000

    with_broker(tmp_path, test)


def test_what_counts_and_where_it_comes_from_is_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await change(broker, BROKER, "", ("log.retention.ms", SET, "3000"), ("max.connections", SET, "50"))
        await change(broker, BROKER, "1", ("log.retention.ms", SET, "2000"))
        await change(broker, TOPIC, "orders", ("retention.ms", SET, "1000"))
        of_topic = await entry(broker, TOPIC, "orders", "retention.ms")
        assert (of_topic.value, of_topic.config_source, of_topic.read_only) == ("1000", 1, False)
        synonyms = [(synonym.source, synonym.name, synonym.value) for synonym in of_topic.synonyms]
        behind = [
            (2, "log.retention.ms", "2000"),
            (3, "log.retention.ms", "3000"),
            (4, "log.retention.hours", "24"),
            (5, "log.retention.hours", "336"),
        ]
        assert synonyms == [(1, "retention.ms", "1000"), *behind]
        of_broker = await entry(broker, BROKER, "1", "log.retention.ms")
        assert (of_broker.value, of_broker.config_source, of_broker.read_only) == ("2000", 2, False)
        assert [(synonym.source, synonym.name, synonym.value) for synonym in of_broker.synonyms] == behind
        shared = await describe(broker, BROKER, "")
        assert [(config.name, config.value, config.config_source) for config in shared.configs] == [
            ("log.retention.ms", "3000", 3),
            ("max.connections", "50", 3),
        ]
        assert [synonym.source for synonym in shared.configs[0].synonyms] == [3]
        static = await entry(broker, BROKER, "1", "log.retention.hours")
        assert (static.value, static.config_source, static.read_only) == ("24", 4, True)
        assert static.documentation
        assert (await entry(broker, BROKER, "1", "num.partitions")).config_source == 5

    with_broker(tmp_path, test, log_retention_hours="24")


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION, None),
        (BROKER, "x", ErrorCode.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (BROKER, "9", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 or empty string, but received 9"),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST, "Broker id must not be empty"),
        (BROKER_LOGGER, "9", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 9"),
        (16, "metrics", ErrorCode.INVALID_REQUEST, "Unsupported resource type: CLIENT_METRICS"),
        (77, "x", ErrorCode.INVALID_REQUEST, "Unsupported resource type: 77"),
    ],
)
def test_what_has_no_configuration_is_not_described(
    tmp_path: Path, kind: int, name: str, code: ErrorCode, message: str | None
) -> None:
    async def test(broker: TestedBroker) -> None:
        result = await describe(broker, kind, name)
        assert (result.error_code, result.configs) == (code, [])
        assert message is None or result.error_message == message

    with_broker(tmp_path, test)


def test_the_number_of_connections_may_change(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        port = broker.broker.metadata.image.brokers[1].endpoints[0].port

        async def is_served() -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            # ApiVersions, version 0, without a client id.
            writer.write(bytes([0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255]))
            try:
                return len(await reader.read(4)) == 4
            except ConnectionError:
                return False
            finally:
                writer.close()

        assert await is_served()
        assert await change(broker, BROKER, "1", ("max.connections", SET, "0")) == DONE
        assert not await is_served()
        assert await change(broker, BROKER, "1", ("max.connections", DELETE, None)) == DONE
        assert await is_served()

    with_broker(tmp_path, test)


# --- loggers


@pytest.fixture
def levels() -> Iterator[None]:
    names = ["tailrace", "tailrace.broker"]
    before = [logging.getLogger(name).level for name in names]
    yield
    for name, level in zip(names, before, strict=True):
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("levels")
def test_the_levels_of_loggers_are_described_and_set(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        assert await change(broker, BROKER_LOGGER, "1", ("tailrace.broker", SET, "DEBUG")) == DONE
        assert logging.getLogger("tailrace.broker").isEnabledFor(logging.DEBUG)
        found = {config.name: config for config in (await describe(broker, BROKER_LOGGER, "1")).configs}
        assert (found["tailrace.broker"].value, found["tailrace.broker"].config_source) == ("DEBUG", 6)
        assert "root" in found
        assert all(name == "root" or name.split(".")[0] == "tailrace" for name in found)
        assert await change(broker, BROKER_LOGGER, "1", ("tailrace.broker", SET, "FATAL")) == DONE
        assert (await entry(broker, BROKER_LOGGER, "1", "tailrace.broker")).value == "FATAL"
        assert await change(broker, BROKER_LOGGER, "1", ("tailrace.broker", DELETE, None)) == DONE
        assert logging.getLogger("tailrace.broker").level == logging.NOTSET

    with_broker(tmp_path, test)


# --- partitions


async def add_partitions(
    broker: TestedBroker,
    topic: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    validate_only: bool = False,
    version: int = 3,
) -> Outcome:
    wanted = CreatePartitionsTopic(
        name=topic,
        count=count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
    )
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=1000, validate_only=validate_only)
    (result,) = (await broker.ask(request, version, CreatePartitionsResponse)).results
    return ErrorCode(result.error_code), result.error_message


@pytest.mark.parametrize("version", range(4))
def test_a_topic_gets_more_partitions_that_are_served_at_once(tmp_path: Path, version: int) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2, retention_ms="99")
        await broker.produce(partition=1)
        topic_id = broker.broker.metadata.image.topics["orders"].topic_id
        assert (await broker.produce(partition=2)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await add_partitions(broker, "orders", 4, version=version) == DONE
        for number in (2, 3):
            assert (await broker.produce(partition=number)).base_offset == 0
            assert broker.broker.partitions.find_by_id(topic_id, number).log.config.retention_ms == 99
        assert (await broker.produce(partition=1)).base_offset == 1
        assert await add_partitions(broker, "orders", 5, [[1]], version=version) == DONE
        assert len(broker.broker.metadata.image.topics["orders"].partitions) == 5

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    ("topic", "count", "assignments", "outcome"),
    [
        ("orders", 2, None, (ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s).")),
        (
            "orders",
            1,
            None,
            (
                ErrorCode.INVALID_PARTITIONS,
                "The topic orders currently has 2 partition(s); 1 would not be an increase.",
            ),
        ),
        (
            "orders",
            4,
            [[1]],
            (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
            ),
        ),
        (
            "orders",
            3,
            [[9]],
            (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes broker 9, but no such broker is registered.",
            ),
        ),
        (
            "orders",
            3,
            [[1, 1]],
            (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes the broker 1 more than once.",
            ),
        ),
        (
            "orders",
            3,
            [[]],
            (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes an empty replica list.",
            ),
        ),
        (
            "orders",
            2**31 - 1,
            None,
            (ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."),
        ),
        (
            "nobody",
            3,
            None,
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."),
        ),
    ],
)
def test_partitions_that_cannot_be_added_are_refused_in_kafkas_words(
    tmp_path: Path, topic: str, count: int, assignments: list[list[int]] | None, outcome: Outcome
) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        assert await add_partitions(broker, topic, count, assignments) == outcome
        assert await add_partitions(broker, topic, count, assignments, validate_only=True) == outcome
        assert await add_partitions(broker, "orders", 3, validate_only=True) == DONE
        assert len(broker.broker.metadata.image.topics["orders"].partitions) == 2

    with_broker(tmp_path, test)


def test_a_topic_that_is_to_grow_twice_in_one_request_does_not_grow(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        wanted = [CreatePartitionsTopic(name="orders", count=count, assignments=None) for count in (2, 3)]
        response = await broker.ask(CreatePartitionsRequest(topics=wanted), 3, CreatePartitionsResponse)
        assert [(result.error_code, result.error_message) for result in response.results] == [
            (ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        ]

    with_broker(tmp_path, test)


def test_a_change_to_a_topic_does_not_begin_its_partitions_anew_whose_disk_is_offline(tmp_path: Path) -> None:
    store = MemoryStore()
    offline: list[int] = []

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders", 4)
        for number in range(4):
            await broker.produce(partition=number)

    async def second(broker: TestedBroker) -> None:
        assert await change(broker, TOPIC, "orders", ("retention.ms", SET, "5000")) == DONE
        assert await change(broker, BROKER, "", ("message.max.bytes", SET, "5000")) == DONE
        assert await add_partitions(broker, "orders", 5) == DONE
        for number in range(5):
            answer = await broker.produce(partition=number)
            expected = (ErrorCode.KAFKA_STORAGE_ERROR, -1) if number in offline else (ErrorCode.NONE, int(number < 4))
            assert (answer.error_code, answer.base_offset) == expected

    async def third(broker: TestedBroker) -> None:
        for number in range(4):
            assert (await broker.produce(partition=number)).base_offset == (1 if number in offline else 2)
            assert broker.broker.partitions.find("orders", number).log.config.retention_ms == 5000

    both = ("one", "two")
    with_broker(tmp_path, first, store=store, directories=both)
    offline += [int(path.name.rpartition("-")[2]) for path in (tmp_path / "two").glob("orders-*")]
    assert 0 < len(offline) < 4
    (tmp_path / "two").rename(tmp_path / "aside")
    (tmp_path / "two").write_text("in the way")
    with_broker(tmp_path, second, store=store, directories=both)
    (tmp_path / "two").unlink()
    (tmp_path / "aside").rename(tmp_path / "two")
    with_broker(tmp_path, third, store=store, directories=both)


# --- what is there


def test_topics_and_partitions_come_page_by_page(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        for name, partitions in (("c", 1), ("a", 3), ("b", 2)):
            await broker.create(name, partitions)

        async def pages(limit: int, *names: str) -> list[list[tuple[str | None, int, list[int]]]]:
            found = []
            cursor: Cursor | None = None
            while True:
                request = DescribeTopicPartitionsRequest(
                    topics=[DescribedTopic(name=name) for name in names],
                    response_partition_limit=limit,
                    cursor=cursor,
                )
                response = await broker.ask(request, 0, DescribeTopicPartitionsResponse)
                found.append(
                    [
                        (topic.name, topic.error_code, [each.partition_index for each in topic.partitions])
                        for topic in response.topics
                    ]
                )
                cursor = response.next_cursor
                if cursor is None:
                    return found

        assert await pages(2000) == [[("a", 0, [0, 1, 2]), ("b", 0, [0, 1]), ("c", 0, [0])]]
        assert await pages(2) == [[("a", 0, [0, 1])], [("a", 0, [2]), ("b", 0, [0])], [("b", 0, [1]), ("c", 0, [0])]]
        assert await pages(3) == [[("a", 0, [0, 1, 2])], [("b", 0, [0, 1]), ("c", 0, [0])]]
        assert await pages(0) == [[("a", 0, [0])], [("a", 0, [1])], [("a", 0, [2])], *(await pages(1))[3:]]
        assert await pages(9, "c", "nobody", "a", "x y") == [
            [("a", 0, [0, 1, 2]), ("c", 0, [0]), ("nobody", 3, []), ("x y", 17, [])]
        ]

    with_broker(tmp_path, test)


def test_a_page_is_never_larger_than_the_broker_allows_and_describes_partitions(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 5)
        response = await broker.ask(DescribeTopicPartitionsRequest(), 0, DescribeTopicPartitionsResponse)
        (topic,) = response.topics
        assert topic.topic_id == broker.broker.metadata.image.topics["orders"].topic_id
        assert topic.topic_authorized_operations == 3576
        assert response.next_cursor == Cursor(topic_name="orders", partition_index=3)
        first = topic.partitions[0]
        assert (first.leader_id, first.leader_epoch, first.replica_nodes, first.isr_nodes) == (1, 0, [1], [1])
        assert (first.eligible_leader_replicas, first.last_known_elr, first.offline_replicas) == ([], [], [])

    with_broker(tmp_path, test, max_request_partition_size_limit="3")


def test_a_cursor_that_does_not_belong_to_the_question_is_refused(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        for cursor in (Cursor(topic_name="other"), Cursor(topic_name="orders", partition_index=-1)):
            request = DescribeTopicPartitionsRequest(topics=[DescribedTopic(name="orders")], cursor=cursor)
            response = await broker.ask(request, 0, DescribeTopicPartitionsResponse)
            assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
        # Of all topics the one at the cursor may have been deleted since.
        request = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="gone", partition_index=7))
        response = await broker.ask(request, 0, DescribeTopicPartitionsResponse)
        assert [topic.name for topic in response.topics] == ["orders"]

    with_broker(tmp_path, test)


@pytest.mark.parametrize("version", range(1, 5))
def test_log_directories_are_described_with_sizes_and_room(tmp_path: Path, version: int) -> None:
    def size_of(log: str) -> int:
        return sum(path.stat().st_size for path in tmp_path.glob(f"*/{log}/*.log"))

    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        await broker.create("payments")
        for _ in range(3):
            await broker.produce(partition=1)
        response = await broker.ask(DescribeLogDirsRequest(topics=None), version, DescribeLogDirsResponse)
        assert sorted(result.log_dir for result in response.results) == [str(tmp_path / "one"), str(tmp_path / "two")]
        found = {
            (topic.name, partition.partition_index): partition
            for result in response.results
            for topic in result.topics
            for partition in topic.partitions
        }
        assert sorted(found) == [("orders", 0), ("orders", 1), ("payments", 0)]
        assert (found["orders", 1].partition_size, found["orders", 0].partition_size) == (size_of("orders-1"), 0)
        assert {(each.offset_lag, each.is_future_key) for each in found.values()} == {(0, False)}
        for result in response.results:
            assert (result.total_bytes > result.usable_bytes > 0) == (version >= 4)
        some = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="orders", partitions=[1, 7])])
        chosen = await broker.ask(some, version, DescribeLogDirsResponse)
        assert [
            (topic.name, partition.partition_index)
            for result in chosen.results
            for topic in result.topics
            for partition in topic.partitions
        ] == [("orders", 1)]

    with_broker(tmp_path, test, directories=("one", "two"))


def test_a_log_directory_that_failed_says_so_and_others_are_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        failed, sound = broker.broker.partitions.directories
        failed.fail(StorageError("broken by the test"))
        response = await broker.ask(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse)
        by_path = {result.log_dir: result for result in response.results}
        assert by_path[failed.path].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (by_path[failed.path].topics, by_path[failed.path].total_bytes) == ([], -1)
        assert by_path[sound.path].error_code == ErrorCode.NONE
        assert len(by_path[sound.path].topics) == 1

    with_broker(tmp_path, test, directories=("one", "two"))


def test_idempotent_producers_are_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", 2)
        now = SystemClock().wall_ms()
        for sequence in (0, 2):
            records = [NewRecord(b"v", timestamp=now)] * 2
            data = build_batch(records, producer_id=42, producer_epoch=3, base_sequence=sequence)
            await broker.produce(data=bytes(data))
        request = DescribeProducersRequest(topics=[TopicRequest(name="orders", partition_indexes=[0, 1, 5])])
        (topic,) = (await broker.ask(request, 0, DescribeProducersResponse)).topics
        first, second, third = topic.partitions
        (producer,) = first.active_producers
        assert now <= producer.last_timestamp <= SystemClock().wall_ms()
        assert producer == ProducerState(
            producer_id=42,
            producer_epoch=3,
            last_sequence=3,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=-1,
            current_txn_start_offset=-1,
        )
        assert (second.error_code, second.active_producers) == (ErrorCode.NONE, [])
        assert third.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(tmp_path, test)


def test_config_resources_are_listed_by_type(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")

        async def listed(version: int, *types: int) -> tuple[int, list[tuple[int, str]]]:
            request = ListConfigResourcesRequest(resource_types=list(types))
            response = await broker.ask(request, version, ListConfigResourcesResponse)
            found = [(resource.resource_type, resource.resource_name) for resource in response.config_resources]
            return response.error_code, sorted(found)

        assert await listed(0) == (ErrorCode.NONE, [])
        assert await listed(1) == (ErrorCode.NONE, [(2, "orders"), (4, "1"), (8, "1")])
        assert await listed(1, TOPIC) == (ErrorCode.NONE, [(2, "orders")])
        assert await listed(1, 16, 32) == (ErrorCode.NONE, [])
        assert await listed(1, 77) == (ErrorCode.UNSUPPORTED_VERSION, [])

    with_broker(tmp_path, test)


# --- deleting records


def test_records_of_a_compacted_topic_are_not_deleted(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=3)
        partition = broker.broker.partitions.find("orders", 0)
        for policies, code in (("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE)):
            assert await change(broker, TOPIC, "orders", ("cleanup.policy", SET, policies)) == DONE
            wanted = DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(offset=2)])
            response = await broker.ask(DeleteRecordsRequest(topics=[wanted]), 2, DeleteRecordsResponse)
            assert response.topics[0].partitions[0].error_code == code
        assert partition.log.start_offset == 2

    with_broker(tmp_path, test)


def test_internal_topics_keep_their_records_and_their_number_of_partitions(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("__transaction_state")
        assert (await add_partitions(broker, "__transaction_state", 5))[0] is ErrorCode.INVALID_PARTITIONS
        wanted = DeleteRecordsTopic(name="__transaction_state", partitions=[DeleteRecordsPartition(offset=-1)])
        response = await broker.ask(DeleteRecordsRequest(topics=[wanted]), 2, DeleteRecordsResponse)
        assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        described = await broker.ask(DescribeTopicPartitionsRequest(), 0, DescribeTopicPartitionsResponse)
        assert [(topic.name, topic.is_internal) for topic in described.topics] == [("__transaction_state", True)]

    with_broker(tmp_path, test)


def test_the_log_start_is_on_disk_before_a_deletion_is_acknowledged(tmp_path: Path) -> None:
    store = MemoryStore()
    checkpoint = tmp_path / "data" / "log-start-offset-checkpoint"

    async def first(broker: TestedBroker) -> None:
        await broker.create("orders")
        await broker.produce(records=5)
        wanted = DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(offset=-1)])
        response = await broker.ask(DeleteRecordsRequest(topics=[wanted]), 2, DeleteRecordsResponse)
        assert response.topics[0].partitions[0].low_watermark == 5
        kept.append(checkpoint.read_bytes())

    async def second(broker: TestedBroker) -> None:
        partition = broker.broker.partitions.find("orders", 0)
        assert (partition.log.start_offset, partition.log.end_offset) == (5, 5)
        assert (await broker.produce()).base_offset == 5

    kept: list[bytes] = []
    with_broker(tmp_path, first, store=store)
    # As a kill right after the answer would leave it: what was written then, and no clean stop.
    checkpoint.write_bytes(kept[0])
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    for log in (tmp_path / "data" / "orders-0").glob("*.log"):
        log.write_bytes(b"")
    with_broker(tmp_path, second, store=store)


def test_ids_of_topics_are_new_after_they_were_deleted(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("orders", retention_ms="5")
        ids: list[UUID] = [broker.broker.metadata.image.topics["orders"].topic_id]
        await broker.broker.metadata.delete_topic(broker.broker.metadata.image.topics["orders"])
        await broker.create("orders")
        ids.append(broker.broker.metadata.image.topics["orders"].topic_id)
        assert ids[0] != ids[1]
        assert configs_of(broker) == {}

    with_broker(tmp_path, test)


def test_values_are_bounded_before_the_store_has_to_refuse_them(tmp_path: Path) -> None:
    async def test(tested: TestedBroker) -> None:
        async def create(
            partitions: int, assignments: int = 0, version: int = 7, **configs: str
        ) -> CreatableTopicResult:
            topic = CreatableTopic(
                name="large",
                num_partitions=-1 if assignments else partitions,
                replication_factor=-1 if assignments else 1,
                assignments=[
                    CreatableReplicaAssignment(partition_index=number, broker_ids=[1]) for number in range(assignments)
                ],
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
            )
            (result,) = (await tested.ask(CreateTopicsRequest(topics=[topic]), version, CreateTopicsResponse)).topics
            return result

        # Kafka's words. A value counts as it is stored, where some characters take more than on the wire.
        for value in ("1" * 600_000, "é" * 20_000):
            refused = await create(1, **{"retention.ms": value})
            assert refused.error_code == ErrorCode.INVALID_CONFIG
            assert "exceeds the maximum value size of 32767 bytes" in (refused.error_message or "")
        # What is quoted of it still fits into the answer.
        refused = await create(1, version=4, **{"retention.ms": "x" * 32_700})
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert len(refused.error_message or "") < 2_000
        assert (await create(2_000_000_000)).error_code == ErrorCode.POLICY_VIOLATION
        assert (await create(0, assignments=20_000)).error_code == ErrorCode.POLICY_VIOLATION
        await tested.create("small")

    with_broker(tmp_path, test)


def test_what_the_store_calls_too_large_is_refused_and_costs_nothing_else(tmp_path: Path) -> None:
    class Small(MemoryStore):
        """A store that takes less than others."""

        async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
            if sum(len(write.value or b"") for write in writes) > 2_000:
                raise TooLarge("this is more than I take")
            return await super().txn(checks, writes)

    async def test(tested: TestedBroker) -> None:
        for names in (["a"], ["b", "c"]):
            topics = [CreatableTopic(name=name, num_partitions=1_000, replication_factor=1) for name in names]
            answer = await tested.ask(CreateTopicsRequest(topics=topics), 7, CreateTopicsResponse)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.POLICY_VIOLATION] * len(names)
            assert "more than I take" in (answer.topics[0].error_message or "")
        await tested.create("small")
        wanted = CreatePartitionsTopic(name="small", count=1_000, assignments=None)
        grown = await tested.ask(CreatePartitionsRequest(topics=[wanted], timeout_ms=1000), 3, CreatePartitionsResponse)
        assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION
        assert len(tested.broker.metadata.image.topics["small"].partitions) == 1

    def prepare(tested: TestedBroker) -> None:
        tested.broker.on_fatal = _unexpected

    with_broker(tmp_path, test, store=Small(), prepare=prepare)


def _unexpected(error: BaseException) -> None:
    raise error
