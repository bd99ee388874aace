"""`kafka-consumer-groups` of Apache Kafka, unmodified, on groups of both rebalance protocols, and its other tools on
the offsets topic as the coordinator writes it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.interop.conftest import Broker
from tests.support.clients import java_client as java
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import run_tool
from tests.support.records import Record
from tests.support.topics import create_topic, eventually

PROTOCOLS = ("classic", "consumer")
STAMP_MS = 1_700_000_000_000
RECORDS = 12
PATIENCE_SECONDS = 180
COMMITTED = {0: RECORDS, 1: 5}


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """Two partitions of twelve records each, a second apart."""
    name = create_topic(broker.bootstrap, f"consumer-groups-tool-{time.time_ns()}", partitions=2, retention_ms="-1")
    ConfluentClient(broker.bootstrap).produce(
        name,
        [
            Record(b"%d" % number, partition=partition, timestamp_ms=STAMP_MS + 1000 * number)
            for number in range(RECORDS)
            for partition in range(2)
        ],
    )
    return name


@pytest.fixture
def group(topic_name: Callable[[], str]) -> str:
    return f"group-{topic_name()}"


class Tool:
    """The tool with its server, and its tables as rows by their headings."""

    def __init__(self, broker: Broker) -> None:
        self._server = ("--bootstrap-server", broker.bootstrap, "--timeout", "60000")

    def run(self, *arguments: str) -> str:
        return run_tool(java.CONSUMER_GROUPS, *self._server, *arguments, timeout_seconds=PATIENCE_SECONDS)

    def table(self, *arguments: str) -> list[dict[str, str]]:
        output = self.run(*arguments)
        lines = [line.split() for line in output.splitlines() if line.strip()]
        (begin,) = [number for number, words in enumerate(lines) if words[0] == "GROUP"]
        headings = [word for word in lines[begin] if not word.startswith("(")]
        # The coordinator is shown as an address and, in brackets, an id of its own.
        rows = [[word for word in words if not re.fullmatch(r"\(\d+\)", word)] for words in lines[begin + 1 :]]
        assert all(len(words) == len(headings) for words in rows), output
        return [dict(zip(headings, words, strict=True)) for words in rows]


@pytest.fixture
def tool(broker: Broker) -> Tool:
    return Tool(broker)


@contextmanager
def reader(broker: Broker, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """A consumer that has read a part of the topic, committed, and stays in the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "log_level": 0,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "billing",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # It stays while the tools run, and does not poll meanwhile.
            "max.poll.interval.ms": 1_800_000,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while consumer.poll(0.2) is None:
            assert time.monotonic() < deadline
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in COMMITTED.items()]
        consumer.commit(offsets=offsets, asynchronous=False)
        yield consumer
    finally:
        consumer.close()


def offsets_in(rows: list[dict[str, str]], column: str = "CURRENT-OFFSET") -> dict[int, int]:
    return {int(row["PARTITION"]): int(row[column]) for row in rows}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_with_a_member_is_listed_and_described(
    broker: Broker, tool: Tool, topic: str, group: str, protocol: str
) -> None:
    with reader(broker, group, topic, protocol):
        assert group in tool.run("--list").split()
        (row,) = [row for row in tool.table("--list", "--state", "--type") if row["GROUP"] == group]
        assert (row["TYPE"], row["STATE"]) == (protocol.capitalize(), "Stable")

        rows = tool.table("--describe", "--group", group, "--offsets", "--verbose")
        assert {row["TOPIC"] for row in rows} == {topic}
        assert offsets_in(rows) == COMMITTED
        assert offsets_in(rows, "LOG-END-OFFSET") == {0: RECORDS, 1: RECORDS}
        assert offsets_in(rows, "LAG") == {0: 0, 1: RECORDS - 5}
        assert {(row["CLIENT-ID"], row["HOST"]) for row in rows} == {("billing", "/127.0.0.1")}
        (member_id,) = {row["CONSUMER-ID"] for row in rows}

        (member,) = tool.table("--describe", "--group", group, "--members", "--verbose")
        assert (member["CONSUMER-ID"], member["CLIENT-ID"], member["#PARTITIONS"]) == (member_id, "billing", "2")
        assert member["CURRENT-ASSIGNMENT"] == f"{topic}:0,1"
        assert (member["CURRENT-EPOCH"] == "-") == (protocol == "classic")

        (state,) = tool.table("--describe", "--group", group, "--state")
        assert (state["STATE"], state["#MEMBERS"], state["COORDINATOR"]) == ("Stable", "1", broker.bootstrap)
        assert state["ASSIGNMENT-STRATEGY"] == {"classic": "range", "consumer": "uniform"}[protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_offsets_of_an_empty_group_are_reset_in_every_way_and_deleted(
    broker: Broker, tool: Tool, topic: str, group: str, protocol: str, tmp_path: Path
) -> None:
    with reader(broker, group, topic, protocol):
        pass
    (state,) = tool.table("--describe", "--group", group, "--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")

    plan = tmp_path / "plan.csv"
    plan.write_text(f'"{topic}",0,3\n"{topic}",1,8\n')
    moment = datetime.fromtimestamp((STAMP_MS + 7000) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    ways: list[tuple[tuple[str, ...], dict[int, int]]] = [
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--shift-by", "4"), {0: 4, 1: 4}),
        (("--to-offset", "9"), {0: 9, 1: 9}),
        (("--to-current",), {0: 9, 1: 9}),
        (("--to-datetime", moment), {0: 7, 1: 7}),
        (("--by-duration", "PT1S"), {0: RECORDS, 1: RECORDS}),
        (("--to-latest",), {0: RECORDS, 1: RECORDS}),
        (("--from-file", str(plan)), {0: 3, 1: 8}),
    ]
    for way, expected in ways:
        scope = () if way[0] == "--from-file" else ("--topic", topic)
        rows = tool.table("--reset-offsets", "--group", group, *scope, *way, "--execute")
        assert offsets_in(rows, "NEW-OFFSET") == expected, way
    assert offsets_in(tool.table("--describe", "--group", group)) == {0: 3, 1: 8}
    # A dry run changes nothing.
    tool.run("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--dry-run")
    assert "Successful" in tool.run("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert offsets_in(tool.table("--describe", "--group", group)) == {1: 8}
    assert f"('{group}') was successful" in tool.run("--delete", "--group", group)
    assert eventually(lambda: group not in tool.run("--list").split(), timeout_seconds=PATIENCE_SECONDS)
    assert f"GroupIdNotFoundException: Group {group} not found." in tool.run("--describe", "--group", group)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_taken_from_under_a_running_member(
    broker: Broker, tool: Tool, topic: str, group: str, protocol: str
) -> None:
    # The tool exits with 0 even on failure; only its output shows it.
    with reader(broker, group, topic, protocol):
        reset = tool.run("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
        assert f"can only be reset if the group '{group}' is inactive, but the current state is Stable" in reset
        removed = tool.run("--delete-offsets", "--group", group, "--topic", topic)
        assert removed.count("GroupSubscribedToTopicException: Deleting offsets of a topic is forbidden") == 2
        assert "GroupNotEmptyException: The group is not empty." in tool.run("--delete", "--group", group)
        assert offsets_in(tool.table("--describe", "--group", group)) == COMMITTED


def test_the_offsets_topic_is_read_by_the_console_consumer_and_the_log_dump(
    broker: Broker, data_dir: Path, topic: str, group: str
) -> None:
    with reader(broker, group, topic, "classic"):
        pass
    with reader(broker, f"{group}-newer", topic, "consumer"):
        pass
    names = (group, f"{group}-newer")
    expected = {(name, topic, partition): offset for name in names for partition, offset in COMMITTED.items()}
    output = run_tool(
        java.CONSOLE_CONSUMER,
        *("--bootstrap-server", broker.bootstrap, "--topic", "__consumer_offsets", "--from-beginning"),
        *("--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter", "--timeout-ms", "30000"),
        timeout_seconds=PATIENCE_SECONDS,
    )
    shown = {}
    position = 0
    while position < len(output.rstrip()):
        record, position = json.JSONDecoder().raw_decode(output, position)
        key = record["key"]["data"]
        if record["value"] is not None and key["group"] in names:
            shown[key["group"], key["topic"], key["partition"]] = record["value"]["data"]["offset"]
    assert shown == expected

    files = sorted(str(path) for path in data_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    dump = run_tool(java.DUMP_LOG, "--offsets-decoder", "--files", ",".join(files), timeout_seconds=PATIENCE_SECONDS)
    dumped, kinds = {}, set()
    for key_text, payload in re.findall(r"^\| offset: .* key: (\{.*\}) payload: (.*)$", dump, re.MULTILINE):
        key, value = json.loads(key_text), None if payload == "<DELETE>" else json.loads(payload)
        data = key["data"]
        if data.get("group", data.get("groupId")) in names:
            kinds.add(int(key["type"]))
            if "partition" in data and value is not None:
                dumped[data["group"], data["topic"], data["partition"]] = value["data"]["offset"]
    assert dumped == expected
    # Offsets, the classic group, and of the newer one the group, its members, target and current assignments.
    assert {1, 2, 3, 5, 6, 7, 8} <= kinds
