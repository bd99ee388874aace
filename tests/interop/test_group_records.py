"""Kafka's own group coordinator and tools read the group records that we write, and we read theirs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings

from tailrace.groups.records import (
    VALUE_OF_KEY,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    Key,
    OffsetCommitKey,
    OffsetCommitValue,
    Value,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tailrace.groups.subscription import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    encode_assignment,
    encode_subscription,
)
from tailrace.wire.codec import Struct
from tests.interop.conftest import Broker
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import CONSOLE_CONSUMER, DUMP_LOG, ROOT, JavaBridge, run_tool
from tests.support.records import Record
from tests.support.topics import create_topic
from tests.unit.wire.strategies import structs, version_id

SOURCE = ROOT / "tests/interop/java/GroupRecords.java"
SOME = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
VERSIONS = [
    (key, version) for key, value in VALUE_OF_KEY.items() for version in range(value.MIN_VERSION, value.MAX_VERSION + 1)
]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBridge]:
    """A JVM with Kafka's group coordinator."""
    bridge = JavaBridge(tmp_path_factory.mktemp("coordinator"), SOURCE)
    yield bridge
    bridge.close()


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def text(content: Any) -> str:
    return base64.b64encode(content).decode()


def documents(output: str) -> Iterator[Any]:
    """JSON documents that follow each other without anything between."""
    position = 0
    while position < len(output.rstrip()):
        document, position = json.JSONDecoder().raw_decode(output, position)
        yield document


def as_json(struct: Struct, version: int) -> dict[str, Any]:
    """A struct as Kafka's tools print it: tagged fields only where they are not the default."""
    return {
        camel_case(name): _value_as_json(getattr(struct, name), version)
        for name, field in struct.FIELDS.items()
        if field.in_version(version) and (field.tag is None or getattr(struct, name) != field.new_default())
    }


def _value_as_json(value: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return as_json(value, version)
    if isinstance(value, list):
        return [_value_as_json(item, version) for item in value]
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, bytes | bytearray | memoryview):
        return text(value)
    return value


@pytest.mark.parametrize(("key_type", "version"), VERSIONS, ids=version_id)
def test_kafka_decodes_what_we_encode_and_encodes_the_same_bytes(
    coordinator: JavaBridge, key_type: type[Key], version: int
) -> None:
    value_type = VALUE_OF_KEY[key_type]

    @SOME
    @given(structs(key_type, 0), structs(value_type, version))
    def holds(key: Any, value: Any) -> None:
        key_bytes = encode_key(key)
        value_bytes = version.to_bytes(2, "big") + value.encode(version)
        answer = coordinator.call({"op": "decode", "key": text(key_bytes), "value": text(value_bytes)})
        assert answer == {
            "type": key_type.API_KEY,
            "key": as_json(key, 0),
            "version": version,
            "value": as_json(value, version),
        }
        encoded = coordinator.call(
            {
                "op": "encode",
                "key_name": key_type.__name__,
                "key": as_json(key, 0),
                "value_name": value_type.__name__,
                "version": version,
                "value": as_json(value, version),
            }
        )
        theirs = base64.b64decode(encoded["key"]), base64.b64decode(encoded["value"])
        assert theirs == (key_bytes, value_bytes)
        assert decode_key(theirs[0]) == key
        assert decode_value(key, theirs[1]) == value

    holds()


def test_what_the_coordinator_itself_makes_is_what_we_would_write(coordinator: JavaBridge) -> None:
    seen = []
    for record in coordinator.call({"op": "written"}):
        key_bytes, value_bytes = base64.b64decode(record["key"]), base64.b64decode(record["value"])
        key = decode_key(key_bytes)
        assert key is not None
        value: Value = decode_value(key, value_bytes)
        assert encode_key(key) == key_bytes
        assert encode_value(value) == value_bytes
        seen.append((key, value))
    topic_id = UUID(bytes=bytes(7) + b"\x03" + bytes(7) + b"\x04")
    offset = OffsetCommitKey(group="group", topic="topic", partition=5)
    committed_ms = 1_700_000_000_000
    assert seen[:3] == [
        (
            offset,
            OffsetCommitValue(
                offset=42, leader_epoch=7, metadata="note", commit_timestamp=committed_ms, topic_id=topic_id
            ),
        ),
        (offset, OffsetCommitValue(offset=42, commit_timestamp=committed_ms)),
        (
            offset,
            OffsetCommitValue(
                offset=42, metadata="note", commit_timestamp=committed_ms, expire_timestamp=committed_ms + 123
            ),
        ),
    ]
    assert [type(key).__name__ for key, _ in seen[3:]] == [
        "GroupMetadataKey",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMemberKey",
    ]


SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["orders"], owned_partitions=[TopicPartitions(topic="orders", partitions=[2])], generation_id=2, rack_id="r"
)
ASSIGNMENT = ConsumerProtocolAssignment(assigned_partitions=[TopicPartitions(topic="orders", partitions=[1, 2])])
#: Offsets, a classic group, a newer group with a classic member, and an offset taken away.
RECORDS: list[tuple[Key, Value | None]] = [
    (
        OffsetCommitKey(group="readers", topic="orders", partition=2),
        OffsetCommitValue(offset=1234, leader_epoch=5, metadata="halfway", commit_timestamp=1_700_000_000_000),
    ),
    (
        GroupMetadataKey(group="readers"),
        GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader="member-1",
            current_state_timestamp=1_700_000_000_001,
            members=[
                GroupMetadataMember(
                    member_id="member-1",
                    group_instance_id="instance-1",
                    client_id="client",
                    client_host="/127.0.0.1",
                    rebalance_timeout=60_000,
                    session_timeout=45_000,
                    subscription=encode_subscription(SUBSCRIPTION),
                    assignment=encode_assignment(ASSIGNMENT),
                )
            ],
        ),
    ),
    (ConsumerGroupMetadataKey(group_id="newer"), ConsumerGroupMetadataValue(epoch=2, metadata_hash=77)),
    (
        ConsumerGroupMemberMetadataKey(group_id="newer", member_id="m"),
        ConsumerGroupMemberMetadataValue(
            classic_member_metadata=ClassicMemberMetadata(supported_protocols=[ClassicProtocol(name="range")])
        ),
    ),
    (OffsetCommitKey(group="readers", topic="orders", partition=2), None),
]


def produce_records(broker: Broker, topic: str) -> None:
    """Put the records into a topic, as a coordinator would put them into its own."""
    ConfluentClient(broker.bootstrap).produce(
        topic, [Record(None if value is None else encode_value(value), encode_key(key)) for key, value in RECORDS]
    )


def shown(index: int, version: int = 0) -> dict[str, Any]:
    """A record as the console consumer prints it."""
    key, value = RECORDS[index]
    return {
        "key": {"type": key.API_KEY, "data": as_json(key, 0)},
        "value": None if value is None else {"version": version, "data": as_json(value, version)},
    }


def dumped(index: int, version: int = 0) -> tuple[Any, Any]:
    """A record as the log dump prints it: numbers before the data are text there."""
    record = shown(index, version)
    record["key"]["type"] = str(record["key"]["type"])
    if record["value"] is not None:
        record["value"]["version"] = str(version)
    return record["key"], record["value"]


def test_the_console_consumers_formatters_print_our_records(broker: Broker, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    produce_records(broker, topic)

    def printed(formatter: str) -> list[Any]:
        output = run_tool(
            CONSOLE_CONSUMER,
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--partition", "0", "--offset", "0"),
            *("--max-messages", str(len(RECORDS)), "--timeout-ms", "120000"),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
        )
        return list(documents(output))

    assert printed("OffsetsMessageFormatter") == [shown(0, version=4), shown(4)]
    assert printed("GroupMetadataMessageFormatter") == [shown(1, version=3)]


def test_the_log_dump_decodes_our_records(broker: Broker, data_dir: Path, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    produce_records(broker, topic)
    segment = data_dir / f"{topic}-0" / f"{0:020}.log"
    output = run_tool(DUMP_LOG, "--offsets-decoder", "--files", str(segment))
    found = [
        (json.loads(key), None if value == "<DELETE>" else json.loads(value))
        for key, value in re.findall(r"^\| offset: .* key: (\{.*\}) payload: (.*)$", output, re.MULTILINE)
    ]
    # The dump decodes what a classic member subscribes to and is assigned, too.
    (member,) = found[1][1]["data"]["members"]
    assert member["subscription"] == as_json(SUBSCRIPTION, 3)
    assert member["assignment"] == as_json(ASSIGNMENT, 3)
    member["subscription"] = text(encode_subscription(SUBSCRIPTION))
    member["assignment"] = text(encode_assignment(ASSIGNMENT))
    assert found == [dumped(0, version=4), dumped(1, version=3), dumped(2), dumped(3), dumped(4)]
