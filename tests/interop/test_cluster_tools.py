"""Apache Kafka's command line tools, unmodified, on three brokers: their output is correct."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.interop.test_consumer_groups_tool import Tool as GroupsTool
from tests.interop.test_java_tools import Configs
from tests.support.brokers.cluster_process import ClusterProcess, coordination_store
from tests.support.clients import java_client as java
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import CLASS_PATH, JVM, run_tool
from tests.support.records import Record, RefusedError
from tests.support.topics import create_topic, eventually

PATIENCE_SECONDS = 180


class Described(NamedTuple):
    """A partition as `kafka-topics --describe` prints it."""

    leader: str
    replicas: list[int]
    isr: set[int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three brokers for all tests of this file, complete again after each."""
    directory = tmp_path_factory.mktemp("cluster")
    config = {
        # The tests assert who leads, so no broker may lose its session because the machine is busy. A killed broker
        # is noticed at once nevertheless.
        "broker_session_timeout_ms": "30000",
        # Tests request elections. An automatic one, every five minutes, would disturb a test.
        "auto_leader_rebalance_enable": "false",
    }
    with coordination_store("local", directory / "store") as url, ClusterProcess(directory, url, **config) as made:
        yield made
        for broker in made.brokers:
            assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


@pytest.fixture(autouse=True)
def whole_again(cluster: ClusterProcess) -> Iterator[None]:
    """Restarts brokers that a failed test has left dead."""
    yield
    cluster.heal()


def server(cluster: ClusterProcess, number: int = 1) -> tuple[str, str]:
    return "--bootstrap-server", cluster.broker(number).bootstrap


def topics(cluster: ClusterProcess, *arguments: str, number: int = 1) -> str:
    return run_tool(java.TOPICS, *server(cluster, number), *arguments)


def partitions_in(output: str) -> dict[int, Described]:
    found = re.findall(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: ([\d,]+)\s+Isr: ([\d,]*)\s", output)
    return {
        int(number): Described(leader, [*map(int, replicas.split(","))], {int(one) for one in isr.split(",") if one})
        for number, leader, replicas, isr in found
    }


def described(cluster: ClusterProcess, topic: str, *options: str, number: int = 1) -> dict[int, Described]:
    return partitions_in(topics(cluster, "--describe", "--topic", topic, *options, number=number))


def status_of(cluster: ClusterProcess, topic: str) -> dict[int, Described]:
    """The same from our own command."""
    return {
        each["partition"]: Described(
            "none" if each["leader"] is None else str(each["leader"]), each["replicas"], set(each["isr"])
        )
        for each in cluster.status()["partitions"]
        if each["topic"] == topic
    }


def test_kafka_topics_creates_describes_and_adds_partitions_of_three_replicas(
    cluster: ClusterProcess, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    create = ("--create", "--topic", topic, "--partitions", "4")
    with pytest.raises(
        RefusedError,
        match=r"Unable to replicate the partition 4 time\(s\): The target replication factor of 4 cannot be reached "
        r"because only 3 broker\(s\) are registered",
    ):
        topics(cluster, *create, "--replication-factor", "4")
    created = topics(cluster, *create, "--replication-factor", "3", "--config", "min.insync.replicas=2", number=2)
    assert f"Created topic {topic}." in created
    cluster.wait_until_whole()
    printed = topics(cluster, "--describe", "--topic", topic, number=3)
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 3\s+Configs: min\.insync\.replicas=2", printed)
    at_first = partitions_in(printed)
    assert at_first == status_of(cluster, topic)
    assert sorted(at_first) == [0, 1, 2, 3]
    assert {one.leader for one in at_first.values()} == {"1", "2", "3"}
    for one in at_first.values():
        assert sorted(one.replicas) == [1, 2, 3]
        assert one.isr == {1, 2, 3}
        assert one.leader == str(one.replicas[0])

    topics(cluster, "--alter", "--topic", topic, "--partitions", "7")
    cluster.wait_until_whole()
    grown = described(cluster, topic, number=2)
    assert {number: one for number, one in grown.items() if number < 4} == at_first
    assert sorted(grown) == list(range(7))
    assert grown == status_of(cluster, topic)
    leaders = [one.leader for one in grown.values()]
    assert sorted(map(leaders.count, "123")) == [2, 2, 3]
    with pytest.raises(RefusedError, match=r"currently has 7 partition\(s\); 5 would not be an increase"):
        topics(cluster, "--alter", "--topic", topic, "--partitions", "5")


def test_kafka_topics_finds_what_is_missing_and_preferred_leaders_are_elected(
    cluster: ClusterProcess, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=3, min_insync_replicas="2")
    alone = topic_name()
    topics(cluster, "--create", "--topic", alone, "--replica-assignment", "3")
    whole = cluster.wait_until_whole()["partitions"]
    at_first = status_of(cluster, topic)
    assert described(cluster, topic, "--under-replicated-partitions") == {}
    with_three = {(each["topic"], each["partition"]) for each in whole if 3 in each["replicas"]}

    cluster.broker(3).kill()
    cluster.wait_for(lambda state: len(state["under_replicated"]) == len(with_three) - 1 and bool(state["offline"]))
    # For all topics, the tool lists only partitions that lack a replica.
    listed = topics(cluster, "--describe", "--under-replicated-partitions")
    assert {(name, int(number)) for name, number in re.findall(r"Topic: (\S+)\s+Partition: (\d+)", listed)} == (
        with_three
        - {
            (alone, 0)  # its only replica is in its ISR, dead as it is
        }
    )
    without = described(cluster, topic, "--at-min-isr-partitions")
    assert without == status_of(cluster, topic)
    assert all(one.isr == {1, 2} and one.leader in "12" for one in without.values())
    assert described(cluster, topic, "--under-min-isr-partitions") == {}
    unavailable = topics(cluster, "--describe", "--unavailable-partitions")
    assert re.findall(r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: (\S+)", unavailable) == [(alone, "0", "none")]

    cluster.broker(3).start()
    cluster.wait_until_whole()
    assert topics(cluster, "--describe", "--under-replicated-partitions").strip() == ""
    assert topics(cluster, "--describe", "--unavailable-partitions").strip() == ""
    back = status_of(cluster, topic)
    away = [number for number, one in back.items() if one.leader != str(one.replicas[0])]
    assert away == [number for number, one in at_first.items() if one.leader == "3"]

    def elect(*arguments: str) -> str:
        return run_tool(java.LEADER_ELECTION, *server(cluster), "--election-type", "preferred", *arguments)

    wanted = tmp_path / "elections.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": topic, "partition": number} for number in at_first]}))
    printed = elect("--path-to-json-file", str(wanted))
    (completed,) = re.findall(
        r"^Successfully completed leader election \(PREFERRED\) for partitions (.*)$", printed, re.M
    )
    (idle,) = re.findall(r"^Valid replica already elected for partitions (.*)$", printed, re.M)
    assert set(completed.split(", ")) == {f"{topic}-{number}" for number in away}
    assert set(idle.split(", ")) == {f"{topic}-{number}" for number in at_first if number not in away}
    after = described(cluster, topic, number=3)
    assert all(one.leader == str(one.replicas[0]) and one.isr == {1, 2, 3} for one in after.values())
    assert (
        elect("--topic", topic, "--partition", "1").strip() == f"Valid replica already elected for partitions {topic}-1"
    )
    elect("--all-topic-partitions")
    assert elect("--all-topic-partitions").strip() == "", (
        "an election for all partitions leaves out those that need none"
    )
    with pytest.raises(RefusedError, match="UnknownTopicOrPartitionException"):
        elect("--topic", f"no-{topic}", "--partition", "0")


def test_unclean_leaders_are_elected_where_none_in_sync_is_alive_and_only_then(
    cluster: ClusterProcess, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    topics(cluster, "--create", "--topic", topic, "--replica-assignment", "2:3")
    cluster.wait_until_whole()
    client = ConfluentClient(cluster.bootstrap)

    def elect(kind: str) -> str:
        place = ("--topic", topic, "--partition", "0")
        return run_tool(java.LEADER_ELECTION, *server(cluster), "--election-type", kind, *place)

    def wait_for(leader: str, isr: set[int]) -> None:
        cluster.wait_for(lambda _: status_of(cluster, topic)[0] == Described(leader, [2, 3], isr), f"{leader}, {isr}")

    client.produce(topic, [Record(b"both have it")])
    assert "Valid replica already elected" in elect("unclean")
    cluster.broker(3).kill()
    wait_for("2", {2})
    client.produce(topic, [Record(b"broker 2 has it")])
    cluster.broker(2).kill()
    wait_for("none", {2})
    with pytest.raises(RefusedError, match="EligibleLeadersNotAvailableException"):
        elect("unclean")
    cluster.broker(3).start()
    assert described(cluster, topic, "--unavailable-partitions") == {0: Described("none", [2, 3], {2})}
    with pytest.raises(RefusedError, match="PreferredLeaderNotAvailableException"):
        elect("preferred")
    assert elect("unclean").strip() == f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0"
    wait_for("3", {3})
    client.produce(topic, [Record(b"broker 3 has it")])
    cluster.broker(2).start()
    wait_for("3", {2, 3})
    # Records that only broker 2 had are lost, as requested. Both replicas are equal now.
    assert "PREFERRED" in elect("preferred")
    wait_for("2", {2, 3})
    assert [one.value for one in client.consume(topic, 0, 2)] == [b"both have it", b"broker 3 has it"]
    assert client.offsets(topic, [0]) == {0: (0, 2)}
    cluster.wait_until_whole()


def test_kafka_configs_asked_of_any_broker_tells_and_changes_the_same(
    cluster: ClusterProcess, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=3)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    Configs(cluster.broker(1), *entity).alter("--add-config", "min.insync.replicas=3,retention.ms=70000")
    wanted = {"min.insync.replicas": "3", "retention.ms": "70000"}
    for broker in cluster.brokers[1:]:
        configs = Configs(broker, *entity)
        soon(lambda configs=configs: {name: value for name, (value, _) in configs.describe().items()}, wanted)
    # Dynamic configuration of one broker is that broker's alone, of all brokers everybody's; asked through another.
    second = Configs(cluster.broker(1), "--entity-type", "brokers", "--entity-name", "2")
    for_all = Configs(cluster.broker(3), "--entity-type", "brokers", "--entity-default")
    third = Configs(cluster.broker(2), "--entity-type", "brokers", "--entity-name", "3")
    second.alter("--add-config", "log.retention.ms=80000")
    for_all.alter("--add-config", "message.max.bytes=500000")
    default = "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=500000"
    own = {"log.retention.ms": "DYNAMIC_BROKER_CONFIG:log.retention.ms=80000", "message.max.bytes": default}
    soon(lambda: dynamic_of(second), own)
    soon(lambda: dynamic_of(third), {"message.max.bytes": default})
    # Every leader applies it, in all partitions.
    writer = ConfluentClient(cluster.bootstrap)

    def refused() -> list[int]:
        found = []
        for partition in range(3):
            try:
                writer.produce(topic, [Record(b"x" * 600_000, partition=partition)])
            except RefusedError:
                found.append(partition)
        return found

    soon(refused, [0, 1, 2])
    for_all.alter("--delete-config", "message.max.bytes")
    soon(refused, [])


def soon(look: Callable[[], object], expected: object) -> None:
    """Wait until the requested value shows: brokers that did not handle the change learn of it later."""
    seen: list[object] = []

    def is_seen() -> bool:
        seen[:] = [look()]
        return seen == [expected]

    assert eventually(is_seen, timeout_seconds=PATIENCE_SECONDS), f"{seen[0]} is not {expected}"


def dynamic_of(configs: Configs) -> dict[str, str]:
    """The keys of a broker that were set at run time, with the values that apply."""
    found = configs.describe("--all")
    return {name: synonyms[0] for name, (_, synonyms) in found.items() if synonyms and "DYNAMIC" in synonyms[0]}


def test_kafka_get_offsets_log_dirs_and_replica_verification_agree_with_what_was_written(
    cluster: ClusterProcess, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=3)
    counts = {0: 10, 1: 20, 2: 30}
    now_ms = int(time.time() * 1000)
    records = [
        Record(b"x" * 100, partition=partition, timestamp_ms=now_ms - 60_000 + number * 1000)
        for partition, count in counts.items()
        for number in range(count)
    ]
    ConfluentClient(cluster.bootstrap).produce(topic, records)
    cluster.wait_until_whole()
    for when, expected in (
        ("-1", counts),
        ("-2", dict.fromkeys(counts, 0)),
        ("-3", {partition: count - 1 for partition, count in counts.items()}),
        (str(now_ms - 60_000 + 5000), dict.fromkeys(counts, 5)),
    ):
        printed = run_tool(java.GET_OFFSETS, *server(cluster, 2), "--topic", topic, "--time", when)
        assert {int(number): int(offset) for number, offset in re.findall(r":(\d+):(\d+)$", printed, re.M)} == expected

    printed = run_tool(java.LOG_DIRS, *server(cluster, 3), "--describe", "--topic-list", topic)
    assert "Received log directory information from brokers 1,2,3" in printed
    brokers = json.loads(printed.splitlines()[-1])["brokers"]
    assert [one["broker"] for one in brokers] == [1, 2, 3]
    sizes = {}
    for one in brokers:
        (directory,) = one["logDirs"]
        data_dir = cluster.broker(one["broker"]).data_dir
        assert (directory["logDir"], directory["error"]) == (str(data_dir), None)
        assert all((log["offsetLag"], log["isFuture"]) == (0, False) for log in directory["partitions"])
        sizes[one["broker"]] = {log["partition"]: log["size"] for log in directory["partitions"]}
        assert sizes[one["broker"]] == {
            f"{topic}-{number}": sum(path.stat().st_size for path in data_dir.glob(f"{topic}-{number}/*.log"))
            for number in counts
        }
    # Every replica has the same bytes.
    assert sizes[1] == sizes[2] == sizes[3]
    assert verified(cluster, topic) == (0, 3)
    printed = run_tool(java.LOG_DIRS, *server(cluster, 1), "--describe", "--broker-list", "2", "--topic-list", topic)
    assert [one["broker"] for one in json.loads(printed.splitlines()[-1])["brokers"]] == [2]


def verified(cluster: ClusterProcess, topic: str) -> tuple[int, int]:
    """The largest lag that kafka-replica-verification finds when it has read all, and among how many partitions."""
    command = [
        *(*JVM, "-cp", CLASS_PATH, java.REPLICA_VERIFICATION, "--broker-list", cluster.bootstrap),
        *("--topics-include", re.escape(topic), "--time", "-2", "--report-interval-ms", "200"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        timer = threading.Timer(PATIENCE_SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                found = re.search(r"max lag is (\d+) for partition \S+ at offset (\d+) among (\d+) partitions", line)
                # It reports from the first fetch on, whatever each replica was read up to by then, and ends never.
                if found and int(found[1]) == 0 and int(found[2]) > 0:
                    return int(found[1]), int(found[3])
            raise AssertionError(f"nothing was verified: {said}")
        finally:
            timer.cancel()
            process.kill()


def test_kafka_consumer_groups_finds_groups_at_all_their_coordinators(
    cluster: ClusterProcess, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(cluster.bootstrap, topic_name(), partitions=3)
    ConfluentClient(cluster.bootstrap).produce(topic, [Record(b"x", partition=number % 3) for number in range(30)])
    tool = GroupsTool(cluster.broker(2))
    # Enough for every partition of the topic that has them, and so for every broker.
    groups = [f"{topic}-{number}" for number in range(12)]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
        wanted = [TopicPartition(topic, partition, 4 + partition) for partition in range(3)]

        def commits(consumer: Consumer = consumer, wanted: list[TopicPartition] = wanted) -> bool:
            try:
                consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException:
                return False  # the topic of all groups is only being made
            return True

        assert eventually(commits, timeout_seconds=PATIENCE_SECONDS)
        consumer.close()
    assert set(groups) <= set(tool.run("--list").split())
    # The tool prints a table for each group, with the coordinator's id in brackets behind its address.
    shown = tool.run("--describe", "--all-groups", "--state")
    found = re.findall(r"^(\S+)\s+(127\.0\.0\.1:\d+)\s+\((\d+)\)\s+.*?(\w+)\s+(\d+)\s*$", shown, re.MULTILINE)
    rows = {group: rest for group, *rest in found if group in groups}
    assert sorted(rows) == sorted(groups)
    assert all(rest[2:] == ["Empty", "0"] for rest in rows.values())
    coordinators = {group: int(number) for group, (_, number, _, _) in rows.items()}
    assert all(address == cluster.broker(int(number)).bootstrap for address, number, _, _ in rows.values())
    assert set(coordinators.values()) == {1, 2, 3}
    # One group of each coordinator, all asked of one broker.
    some = list({coordinator: group for group, coordinator in coordinators.items()}.values())
    named = [word for group in some for word in ("--group", group)]
    moved = tool.run("--reset-offsets", *named, "--topic", topic, "--shift-by", "2", "--execute")
    assert set(re.findall(rf"^(\S+)\s+{topic}\s+(\d+)\s+(\d+)\s*$", moved, re.MULTILINE)) == {
        (group, str(partition), str(6 + partition)) for group in some for partition in range(3)
    }
    shown = tool.run("--describe", *named)
    for group in some:
        for partition in range(3):
            assert re.search(
                rf"^{group}\s+{topic}\s+{partition}\s+{6 + partition}\s+10\s+{4 - partition}\s", shown, re.MULTILINE
            ), shown
    assert "was successful" in tool.run("--delete", *named)
    assert eventually(lambda: not set(some) & set(tool.run("--list").split()), timeout_seconds=PATIENCE_SECONDS)


def test_the_cluster_tool_and_the_versions_tool_show_every_broker(cluster: ClusterProcess) -> None:
    told = {run_tool(java.CLUSTER, "cluster-id", *server(cluster, number)) for number in (1, 3)}
    assert told == {f"Cluster ID: {cluster.status()['cluster_id']}\n"}
    listed = run_tool(java.CLUSTER, "list-endpoints", *server(cluster, 2))
    rows = [line.split() for line in listed.splitlines() if line[:1].isdigit()]
    assert rows == [
        [str(broker.number), "127.0.0.1", str(broker.port), "null", "unfenced", "broker"] for broker in cluster.brokers
    ]
    printed = run_tool(java.API_VERSIONS, *server(cluster, 1))
    heads = re.findall(r"^(\S+) \(id: (\d+) rack: null isFenced: false\) -> \($", printed, re.MULTILINE)
    assert sorted(heads) == sorted((broker.bootstrap, str(broker.number)) for broker in cluster.brokers)
    assert printed.count("Produce(0): ") == 3
    usable = re.findall(r"^\s+(ElectLeaders\(43\): .*?)\s*(?:,|$)", printed, re.MULTILINE)
    assert len(usable) == 3
    assert all("usable" in line for line in usable)
