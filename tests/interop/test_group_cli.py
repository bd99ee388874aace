"""`tailrace group` against a real broker, with real consumers of both rebalance protocols."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.client import GroupHasMembersError, Groups, UnknownGroupError
from tests.interop.conftest import Broker
from tests.interop.test_cli import Tailrace
from tests.support.topics import create_topic, delete_topic, eventually

PROTOCOLS = ("classic", "consumer")
STAMP_MS = 1_700_000_000_000
RECORDS = 12
DEADLINE_SECONDS = 180


@pytest.fixture
def tailrace(broker: Broker) -> Tailrace:
    return Tailrace(broker.bootstrap)


@pytest.fixture
def topic(broker: Broker, topic_name: Callable[[], str]) -> str:
    """Three partitions of twelve records each, a second apart."""
    name = create_topic(broker.bootstrap, topic_name(), partitions=3, retention_ms="-1")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(RECORDS):
        for partition in range(3):
            producer.produce(name, b"%d" % number, partition=partition, timestamp=STAMP_MS + 1000 * number)
    assert producer.flush(DEADLINE_SECONDS) == 0
    return name


@pytest.fixture
def group(topic_name: Callable[[], str]) -> str:
    return f"group-{topic_name()}"


def make_consumer(bootstrap: str, group: str, protocol: str, client: str = "reader") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": client,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # It stays while commands run, and does not poll meanwhile.
            "max.poll.interval.ms": 1_800_000,
        }
    )


@contextmanager
def member(bootstrap: str, group: str, protocol: str, topic: str, client: str = "reader") -> Iterator[Consumer]:
    """A consumer that reads all of a topic and stays in the group."""
    consumer = make_consumer(bootstrap, group, protocol, client)
    try:
        consumer.subscribe([topic])
        read = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while read < 3 * RECORDS:
            assert time.monotonic() < deadline, f"{read} records in {DEADLINE_SECONDS} s"
            message = consumer.poll(0.2)
            read += message is not None and message.error() is None
        yield consumer
    finally:
        consumer.close()


def commit_alone(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    """Commit one offset for each partition, as a consumer without a subscription does."""
    consumer = make_consumer(bootstrap, group, "classic")
    try:
        places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    """The committed offsets in three partitions, according to another client."""
    consumer = make_consumer(bootstrap, group, "classic")
    try:
        places = [TopicPartition(topic, number) for number in range(3)]
        return [each.offset for each in consumer.committed(places, timeout=DEADLINE_SECONDS)]
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_is_listed_and_described_while_it_reads_and_after(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, protocol: str
) -> None:
    with member(broker.bootstrap, group, protocol, topic, "billing-1") as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, RECORDS), TopicPartition(topic, 1, 5)], asynchronous=False)
        (listed,) = [each for each in tailrace.objects("group", "list") if each["group"] == group]
        assert listed == {"group": group, "type": protocol, "state": "Stable"}
        (described,) = tailrace.objects("group", "describe", group)
        assert (described["type"], described["state"], described["lag"]) == (protocol, "Stable", 7)
        assert described["coordinator"]["address"] == broker.bootstrap
        (only,) = described["members"]
        assert (only["client"], only["topics"], only["instance"]) == ("billing-1", [topic], None)
        assert (only["epoch"] is None) == (protocol == "classic")
        by_partition = {each["partition"]: each for each in described["partitions"]}
        assert [by_partition[n]["committed"] for n in range(3)] == [RECORDS, 5, None]
        assert [by_partition[n]["lag"] for n in range(3)] == [0, 7, None]
        assert {each["member"] for each in by_partition.values()} == {only["member"]}
        text = tailrace.ok("group", "describe", group).decode().splitlines()
        assert text[0].startswith(f"{group}: Stable, {protocol} protocol, 1 member, lag 7")
        assert text[1].split() == ["TOPIC", "PARTITION", "COMMITTED", "LOG-END", "LAG", "MEMBER", "CLIENT", "HOST"]
        assert text[3].split()[:5] == [topic, "1", "5", str(RECORDS), "7"]
        assert text[3].split()[6] == "billing-1"
        members = tailrace.ok("group", "describe", group, "--members").decode().splitlines()
        assert members[2].split()[-1] == f"{topic}:0,1,2"

        def lists_agree() -> bool:
            some = tailrace.objects("group", "list", "--state", "empty", "--type", protocol)
            every = tailrace.objects("group", "list")
            return some == [each for each in every if (each["state"], each["type"]) == ("Empty", protocol)]

        # The groups of other tests may become empty, or expire, between the two.
        assert eventually(lists_agree)
    (after,) = tailrace.objects("group", "describe", group)
    assert (after["state"], after["members"]) == ("Empty", [])
    assert [each["committed"] for each in after["partitions"]] == [RECORDS, 5]
    assert "no members" in tailrace.ok("group", "describe", group, "--members").decode()
    # Another client agrees.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    described_there = admin.describe_consumer_groups([group])[group].result(DEADLINE_SECONDS)
    assert (described_there.state.name, described_there.type.name) == ("EMPTY", protocol.upper())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_offsets_are_not_reset_under_members(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, protocol: str
) -> None:
    arguments = ("group", "reset-offsets", group, "--topic", topic, "--to", "2")
    with member(broker.bootstrap, group, protocol, topic, "billing-1") as consumer:
        consumer.commit(offsets=[TopicPartition(topic, n, 9) for n in range(3)], asynchronous=False)
        for way in ("--execute", "--dry-run"):
            message = tailrace.refusal(*arguments, way)
            assert f"group '{group}' has 1 member (billing-1)" in message
            assert f"stop them first and retry when this shows none: tailrace group describe {group}" in message
        refused = tailrace.refusal("group", "delete", group)
        assert f"group '{group}' has members; stop them first" in refused
        assert "read that topic" in tailrace.refusal("group", "delete", group, "--offsets", topic)
        # Even if the members were checked too early.
        with pytest.raises(GroupHasMembersError, match="has members; stop them first"):
            Groups(broker.bootstrap).set_offsets(group, {(topic, 0): 1})
    assert committed(broker.bootstrap, group, topic) == [9, 9, 9]
    plan = tailrace.run(*arguments)
    assert plan.returncode == 0
    assert plan.stderr == b"nothing was changed; add --execute to carry out the plan\n"
    assert plan.stdout.decode().splitlines()[1].split() == [topic, "0", "9", "2"]
    assert committed(broker.bootstrap, group, topic) == [9, 9, 9]
    done = tailrace.objects(*arguments, "--execute")
    assert [(each["before"], each["after"], each["executed"]) for each in done] == [(9, 2, True)] * 3
    assert committed(broker.bootstrap, group, topic) == [2, 2, 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_consumers_go_on_from_where_a_reset_put_them(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, protocol: str
) -> None:
    with member(broker.bootstrap, group, protocol, topic) as consumer:
        consumer.commit(asynchronous=False)
    tailrace.ok("group", "reset-offsets", group, "--topic", f"{topic}:1", "--to", "10", "--execute")
    consumer = make_consumer(broker.bootstrap, group, protocol)
    try:
        consumer.subscribe([topic])
        seen: list[tuple[int | None, int | None]] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(seen) < 2:
            assert time.monotonic() < deadline
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                seen.append((message.partition(), message.offset()))
    finally:
        consumer.close()
    assert seen == [(1, 10), (1, 11)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "earliest"], [0, 0, 0]),
        (["--to", "latest"], [12, 12, 12]),
        (["--to", "7"], [7, 7, 7]),
        (["--to", "99"], [12, 12, 12]),
        (["--shift", "2"], [5, 6, 7]),
        (["--shift", "-4"], [0, 0, 1]),
        # Half a second after record 4, and after the last one.
        (["--to-datetime", str(STAMP_MS + 4500)], [5, 5, 5]),
        (["--to-datetime", "2023-11-14T22:13:24.500Z"], [5, 5, 5]),
        (["--to-datetime", "2024-01-01"], [12, 12, 12]),
        (["--by-duration", "1h"], [12, 12, 12]),
        (["--by-duration", "P5200W"], [0, 0, 0]),
        (["--to", "current"], [3, 4, 5]),
    ],
)
def test_every_way_to_say_where(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, arguments: list[str], expected: list[int]
) -> None:
    commit_alone(broker.bootstrap, group, topic, 3, 4, 5)
    done = tailrace.objects("group", "reset-offsets", group, "--all-topics", *arguments, "--execute")
    assert [(each["partition"], each["after"]) for each in done] == list(enumerate(expected))
    assert committed(broker.bootstrap, group, topic) == expected


def test_an_offset_that_a_log_does_not_have_is_said_to_be_replaced(
    broker: Broker, tailrace: Tailrace, topic: str, group: str
) -> None:
    commit_alone(broker.bootstrap, group, topic, 3, 4, 5)
    result = tailrace.run("group", "reset-offsets", group, "--topic", f"{topic}:2", "--shift", "-6", "--execute")
    assert result.returncode == 0
    assert f"{topic}-2 has no offset -1; the nearest is 0" in result.stderr.decode()


def test_offsets_are_kept_in_a_file_and_put_back(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, tmp_path: Path
) -> None:
    commit_alone(broker.bootstrap, group, topic, 3, 4, 5)
    exported = tailrace.ok("group", "reset-offsets", group, "--all-topics", "--to", "current", "--export").decode()
    assert list(csv.reader(io.StringIO(exported))) == [[topic, str(n), str(n + 3)] for n in range(3)]
    tailrace.ok("group", "reset-offsets", group, "--all-topics", "--to", "latest", "--execute")
    assert committed(broker.bootstrap, group, topic) == [12, 12, 12]
    path = tmp_path / "offsets.csv"
    path.write_text(exported)
    tailrace.ok("group", "reset-offsets", group, "--from-file", str(path), "--execute")
    assert committed(broker.bootstrap, group, topic) == [3, 4, 5]
    one = f"{topic},1,8\n".encode()
    tailrace.ok("group", "reset-offsets", group, "--from-file", "-", "--execute", stdin=one)
    assert committed(broker.bootstrap, group, topic) == [3, 8, 5]
    assert "has no partition 9" in tailrace.refusal(
        "group", "reset-offsets", group, "--from-file", "-", stdin=f"{topic},9,8\n".encode()
    )


def test_a_group_may_be_given_offsets_before_its_first_consumer_comes(
    broker: Broker, tailrace: Tailrace, topic: str, group: str
) -> None:
    assert "has no committed offsets" in tailrace.refusal(
        "group", "reset-offsets", group, "--all-topics", "--to", "latest"
    )
    assert "no offset to shift" in tailrace.refusal("group", "reset-offsets", group, "--topic", topic, "--shift", "1")
    result = tailrace.run("group", "reset-offsets", group, "--topic", f"{topic}:0,1", "--to", "latest", "--execute")
    assert result.returncode == 0
    assert "did not exist; it was created" in result.stderr.decode()
    assert committed(broker.bootstrap, group, topic)[:2] == [12, 12]
    (described,) = tailrace.objects("group", "describe", group)
    assert (described["state"], described["type"], described["lag"]) == ("Empty", "classic", 0)


def test_groups_and_their_offsets_in_a_topic_are_deleted(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, topic_name: Callable[[], str]
) -> None:
    other = create_topic(broker.bootstrap, topic_name(), partitions=2)
    commit_alone(broker.bootstrap, group, topic, 3, 4, 5)
    commit_alone(broker.bootstrap, group, other, 0)
    told = tailrace.objects("group", "delete", group, "--offsets", other)
    assert told == [{"group": group, "topic": other, "deleted": True, "partitions": 1}]
    (described,) = tailrace.objects("group", "describe", group)
    assert {each["topic"] for each in described["partitions"]} == {topic}
    again = tailrace.ok("group", "delete", group, "--offsets", other).decode()
    assert again == f"deleted the offsets of group {group} in 0 partitions of {other}\n"
    assert "topic 'nothing-here' does not exist" in tailrace.refusal(
        "group", "delete", group, "--offsets", "nothing-here"
    )
    assert tailrace.ok("group", "delete", group).decode() == f"deleted group {group}\n"
    assert eventually(lambda: group not in {each["group"] for each in tailrace.objects("group", "list")})
    for arguments in (["describe", group], ["delete", group], ["delete", group, "--offsets", topic]):
        message = tailrace.refusal("group", *arguments)
        assert f"group '{group}' does not exist; list all groups with: tailrace group list" in message
    with pytest.raises(UnknownGroupError):
        Groups(broker.bootstrap).describe(group)


def test_one_group_that_cannot_be_deleted_does_not_keep_the_others(
    broker: Broker, tailrace: Tailrace, topic: str, group: str
) -> None:
    commit_alone(broker.bootstrap, group, topic, 1, 1, 1)
    result = tailrace.run("group", "delete", "nobody-knows", group)
    assert (result.returncode, result.stdout.decode()) == (1, f"deleted group {group}\n")
    assert "group 'nobody-knows' does not exist" in result.stderr.decode()


def test_offsets_of_a_topic_that_is_gone_go_with_it(
    broker: Broker, tailrace: Tailrace, topic: str, group: str, topic_name: Callable[[], str]
) -> None:
    gone = create_topic(broker.bootstrap, topic_name())
    commit_alone(broker.bootstrap, group, topic, 1, 1, 1)
    commit_alone(broker.bootstrap, group, gone, 0)
    delete_topic(broker.bootstrap, gone)

    def topics() -> set[str]:
        (described,) = tailrace.objects("group", "describe", group)
        return {each["topic"] for each in described["partitions"]}

    assert eventually(lambda: topics() == {topic})
    assert "does not exist" in tailrace.refusal("group", "reset-offsets", group, "--topic", gone, "--to", "earliest")
