"""The command line and the Python client against a real broker, each command in a process of its own."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pytest

from tailrace.client import (
    DeliveryError,
    Message,
    Producer,
    Timestamp,
    TopicExistsError,
    Topics,
    UnknownTopicError,
    partition_for_key,
    read,
)
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess

TIMEOUT_SECONDS = 180
MOMENT_MS = 1769860800000
MOMENT_ISO = "2026-01-31T12:00:00Z"


class Addressed(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Tailrace:
    """The `tailrace` command, told where the broker is by its environment."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "TAILRACE_BOOTSTRAP": bootstrap}
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [EXECUTABLE, *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """The output of a command that must succeed."""
        result = self.run(*arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout

    def objects(self, *arguments: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        """The JSON lines of a command that must succeed."""
        return [json.loads(line) for line in self.ok(*arguments, "--json", stdin=stdin).splitlines()]

    def refusal(self, *arguments: str, stdin: bytes = b"") -> str:
        """The message of a command that must fail with exit code 1 and only this message on stderr."""
        result = self.run(*arguments, stdin=stdin)
        assert result.returncode == 1
        message = result.stderr.decode()
        assert "Traceback" not in message
        assert "%" not in message, "librdkafka's own logging reached the terminal"
        return message

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [EXECUTABLE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End started processes that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=TIMEOUT_SECONDS)


@pytest.fixture
def tailrace(broker: Addressed) -> Iterator[Tailrace]:
    tailrace = Tailrace(broker.bootstrap)
    yield tailrace
    tailrace.end()


@pytest.fixture
def topic(broker: Addressed, topic_name: Callable[[], str]) -> str:
    """A topic of three partitions."""
    name = topic_name()
    Topics(broker.bootstrap).create(name, partitions=3)
    return name


@pytest.fixture
def follower(tailrace: Tailrace, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `consume --follow` that has already printed the record `first`."""
    tailrace.ok("produce", topic, "--value", "first")
    process = tailrace.start("consume", topic, "--follow")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_SECONDS)


def test_a_topic_is_created_listed_described_and_deleted(tailrace: Tailrace, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    config = ("--config", "retention.ms=3600000", "--config", "max.message.bytes=5000")
    created = tailrace.objects("topic", "create", name, "--partitions", "2", "--replication-factor", "1", *config)
    assert created == [{"topic": name, "created": True}]

    listed = {topic["topic"]: topic for topic in tailrace.objects("topic", "list")}
    assert listed[name] == {"topic": name, "partitions": 2, "replication_factor": 1}

    tailrace.ok("produce", name, "--partition", "1", stdin=b"a\nb\nc\n")
    (described,) = tailrace.objects("topic", "describe", name)
    assert described["configs"] == {"max.message.bytes": "5000", "retention.ms": "3600000"}
    (leader,) = described["partitions"][0]["replicas"]
    assert described["partitions"] == [
        {
            "partition": number,
            "leader": leader,
            "replicas": [leader],
            "isr": [leader],
            "earliest_offset": 0,
            "latest_offset": latest,
        }
        for number, latest in ((0, 0), (1, 3))
    ]

    assert tailrace.objects("topic", "delete", name) == [{"topic": name, "deleted": True}]
    assert name not in [topic["topic"] for topic in tailrace.objects("topic", "list")]


def test_output_for_people_has_aligned_columns(tailrace: Tailrace, topic: str) -> None:
    tailrace.ok("produce", topic, "--partition", "2", "--value", "x")
    lines = tailrace.ok("topic", "describe", topic).decode().splitlines()
    assert lines[0].startswith(f"{topic}: 3 partitions, id ")
    assert lines[1].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "EARLIEST", "LATEST"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
    assert [line.split()[-1] for line in lines[2:]] == ["0", "0", "1"]
    assert len({len(line) for line in lines[1:]}) == 1
    header, *rows = tailrace.ok("topic", "list").decode().splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "REPLICATION"]
    assert [topic, "3", "1"] in [row.split() for row in rows]


def test_creating_a_topic_twice_fails_unless_that_is_fine(tailrace: Tailrace, topic: str) -> None:
    assert f"topic '{topic}' already exists" in tailrace.refusal("topic", "create", topic)
    assert tailrace.objects("topic", "create", topic, "--if-not-exists") == [{"topic": topic, "created": False}]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--config", "no.such.key=1"), "no.such.key"),
        (("--config", "retention.ms=soon"), "retention.ms"),
        (("--replication-factor", "3"), "only 1 broker(s) are registered"),
    ],
)
def test_what_the_broker_refuses_is_told_in_its_words(
    tailrace: Tailrace, topic_name: Callable[[], str], arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in tailrace.refusal("topic", "create", topic_name(), *arguments).lower()


def test_a_topic_that_does_not_exist_is_named(tailrace: Tailrace, topic: str, topic_name: Callable[[], str]) -> None:
    absent = topic_name()
    for command in (("topic", "describe"), ("topic", "delete"), ("consume",)):
        assert f"topic '{absent}' does not exist" in tailrace.refusal(*command, absent)
    assert absent not in [listed["topic"] for listed in tailrace.objects("topic", "list")]
    assert f"topic '{topic}' has no partition 7" in tailrace.refusal("consume", topic, "--partition", "7")


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_deleting_asks_on_a_terminal(tailrace: Tailrace, topic: str, answer: bytes, code: int) -> None:
    terminal, its_end = pty.openpty()
    try:
        os.write(terminal, answer)
        result = subprocess.run(
            [EXECUTABLE, "topic", "delete", topic],
            stdin=its_end,
            capture_output=True,
            env=tailrace.environment,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(its_end)
    assert result.returncode == code
    assert f"Delete {topic} and every record in it?" in result.stderr.decode()
    kept = topic in [listed["topic"] for listed in tailrace.objects("topic", "list")]
    assert kept == (code == 1)


def test_deleting_goes_on_after_a_topic_that_does_not_exist(
    tailrace: Tailrace, topic: str, topic_name: Callable[[], str]
) -> None:
    absent = topic_name()
    result = tailrace.run("topic", "delete", absent, topic, "--json")
    assert result.returncode == 1
    assert [json.loads(line)["deleted"] for line in result.stdout.splitlines()] == [False, True]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back_as_they_were_sent(tailrace: Tailrace, topic: str, compression: str) -> None:
    lines = b"one\n\n\xff not text \xfe\nlast"
    result = tailrace.run("produce", topic, "--partition", "0", "--compression", compression, stdin=lines)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"4 records acknowledged\n")
    assert tailrace.ok("consume", topic) == lines + b"\n"


@pytest.mark.parametrize(
    ("acks", "said"), [("0", "2 records sent, none acknowledged (--acks 0)"), ("1", "2 records acknowledged")]
)
def test_fewer_acknowledgements_can_be_asked_for(tailrace: Tailrace, topic: str, acks: str, said: str) -> None:
    result = tailrace.run("produce", topic, "--acks", acks, stdin=b"a\nb\n")
    assert (result.returncode, result.stderr.decode()) == (0, f"{said}\n")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    # With acks 0 nothing tells when the records are there.
    while len(lines := tailrace.ok("consume", topic).splitlines()) < 2 and time.monotonic() < deadline:
        pass
    assert sorted(lines) == [b"a", b"b"]


def test_every_part_of_a_record_comes_back(tailrace: Tailrace, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "records.txt"
    source.write_text("k1:v1\nk2:NIL\n")
    tailrace.ok(
        *("produce", topic, "--file", str(source), "--key-separator", ":", "--null-marker", "NIL"),
        *("--header", "tag=x", "--header", "tag=y", "--timestamp", MOMENT_ISO, "--partition", "1"),
    )
    common = {"topic": topic, "partition": 1, "timestamp": MOMENT_MS, "headers": {"tag": ["x", "y"]}}
    assert tailrace.objects("consume", topic) == [
        {**common, "offset": 0, "key": "k1", "value": "v1"},
        {**common, "offset": 1, "key": "k2", "value": None},
    ]
    columns = ("--timestamps", "--offsets", "--keys", "--headers")
    assert tailrace.ok("consume", topic, *columns).decode().splitlines() == [
        "2026-01-31T12:00:00.000Z\t1:0\tk1\ttag=x,tag=y\tv1",
        "2026-01-31T12:00:00.000Z\t1:1\tk2\ttag=x,tag=y\tnull",
    ]


def test_json_goes_in_as_it_comes_out(tailrace: Tailrace, topic: str) -> None:
    packed = base64.b64encode(b"\xff\x00").decode()
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": {"a": "1"}, "partition": 2, "timestamp": MOMENT_MS},
        {"key_base64": packed, "value_base64": packed, "partition": 2, "timestamp": MOMENT_MS + 1},
        {"key": None, "value": None, "partition": 0, "timestamp": MOMENT_MS + 2},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    assert tailrace.objects("produce", topic, "--input", "json", stdin=lines) == [{"topic": topic, "acknowledged": 3}]
    printed = tailrace.ok("consume", topic, "--json")
    tailrace.ok("produce", topic, "--input", "json", stdin=printed)
    twice = [{**json.loads(line), "offset": 0} for line in tailrace.ok("consume", topic, "--json").splitlines()]
    counted = Counter(json.dumps(record, sort_keys=True) for record in twice)
    assert list(counted.values()) == [2, 2, 2]


def test_keys_go_to_the_partitions_that_murmur2_gives_them(tailrace: Tailrace, topic: str) -> None:
    keys = [f"key-{number}" for number in range(30)]
    tailrace.ok("produce", topic, "--key-separator", "=", stdin="".join(f"{key}=v\n" for key in keys).encode())
    found = {record["key"]: record["partition"] for record in tailrace.objects("consume", topic)}
    assert found == {key: partition_for_key(key.encode(), 3) for key in keys}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["0", "1", "2", "3", "4"]),
        (("--from-beginning", "--count", "2"), ["0", "1"]),
        (("--count", "0"), []),
        (("--offset", "3"), ["3", "4"]),
        (("--offset", "5"), []),
        (("--from-end",), []),
        (("--from-timestamp", str(MOMENT_MS + 2)), ["2", "3", "4"]),
        (("--from-timestamp", "2026-01-31T13:00:00.003+01:00"), ["3", "4"]),
        (("--from-timestamp", "2027-01-01"), []),
        (("--partition", "1"), ["0", "1", "2", "3", "4"]),
        (("--partition", "0", "--partition", "2"), []),
    ],
    ids=" ".join,
)
def test_reading_starts_where_it_is_told_and_stops_at_the_end(
    tailrace: Tailrace, broker: Addressed, topic: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(5):
            producer.send(topic, str(number), partition=1, timestamp_ms=MOMENT_MS + number)
    assert tailrace.ok("consume", topic, *arguments).decode().split() == expected


def test_following_shows_records_as_they_come_and_ends_at_ctrl_c(
    tailrace: Tailrace, topic: str, follower: subprocess.Popen[bytes]
) -> None:
    assert follower.stdout is not None
    assert follower.stderr is not None
    for value in ("second", "third"):
        tailrace.ok("produce", topic, "--value", value)
        assert follower.stdout.readline() == f"{value}\n".encode()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(TIMEOUT_SECONDS) == 130
    assert follower.stdout.read() == b""
    assert follower.stderr.read().strip() == b""


def test_following_says_when_the_broker_is_lost_and_when_it_is_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        tailrace = Tailrace(broker.bootstrap)
        tailrace.ok("produce", "lines", "--value", "first")
        process = tailrace.start("consume", "lines", "--follow")
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"first\n"
            broker.kill()
            lost = process.stderr.readline().decode()
            assert lost.startswith(f"Warning: lost the broker: cannot reach a broker at {broker.bootstrap}")
            assert "waiting for it to come back" in lost
            broker.start()
            tailrace.ok("produce", "lines", "--value", "second")
            assert process.stdout.readline() == b"second\n"
            assert process.stderr.readline() == b"Warning: resumed reading 'lines'\n"
        finally:
            tailrace.end()


def test_a_record_may_be_as_large_as_its_topic_allows(tailrace: Tailrace, topic: str) -> None:
    large = b"x" * 3_000_000 + b"\n"
    said = tailrace.refusal("produce", topic, "--partition", "0", stdin=large)
    assert f"Message size too large for topic '{topic}'" in said
    assert f"tailrace config set topic {topic} max.message.bytes=" in said
    tailrace.ok("config", "set", "topic", topic, "max.message.bytes=4000000")
    tailrace.ok("produce", topic, "--partition", "0", stdin=large)
    assert tailrace.ok("consume", topic) == large


def test_reading_from_beyond_the_end_is_refused(tailrace: Tailrace, topic: str) -> None:
    tailrace.ok("produce", topic, "--partition", "1", stdin=b"a\nb\n")
    assert tailrace.ok("consume", topic, "--offset", "1") == b"b\n"
    assert tailrace.ok("consume", topic, "--offset", "2") == b""  # where the next record will be
    said = tailrace.refusal("consume", topic, "--offset", "3")
    assert said == f"Error: topic '{topic}' has no offset 3: its longest partition ends at offset 2\n"


@pytest.mark.parametrize(
    "command", [("consume",), ("produce", "--value", "x"), ("topic", "describe"), ("topic", "create")]
)
@pytest.mark.parametrize("name", ["", "a b"])
def test_a_name_that_no_topic_can_have_is_refused_in_words(
    tailrace: Tailrace, command: tuple[str, ...], name: str
) -> None:
    assert "topic name is invalid: " in tailrace.refusal(*command, name)


def test_following_ends_after_the_count(tailrace: Tailrace, topic: str) -> None:
    tailrace.ok("produce", topic, "--partition", "0", stdin=b"a\nb\nc\n")
    assert tailrace.ok("consume", topic, "--follow", "--count", "2") == b"a\nb\n"


def test_a_reader_that_has_seen_enough_ends_consume_quietly(
    tailrace: Tailrace, topic: str, follower: subprocess.Popen[bytes]
) -> None:
    assert follower.stdout is not None
    assert follower.stderr is not None
    follower.stdout.close()
    tailrace.ok("produce", topic, "--value", "unread")
    assert follower.wait(TIMEOUT_SECONDS) == 0
    assert follower.stderr.read() == b""


def test_what_was_typed_before_ctrl_c_is_acknowledged(tailrace: Tailrace, topic: str) -> None:
    reader = tailrace.start("consume", topic, "--follow", "--count", "1")
    process = tailrace.start("produce", topic)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"typed\n")
    process.stdin.flush()
    assert reader.communicate(timeout=TIMEOUT_SECONDS)[0] == b"typed\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_SECONDS) == 130
    assert b"1 record acknowledged" in process.stderr.read()
    process.communicate()


@pytest.mark.parametrize(
    ("arguments", "stdin", "reason"),
    [
        (("--partition", "9"), b"a\n", "has no such partition"),
        ((), bytes(1_500_000), "Message size too large"),
        (("--key-separator", ":"), b"k:v\nnothing\n", "line 2: it has no key separator"),
        (("--input", "json"), b'{"value": 1}\nnothing\n', "line 2: it is not JSON"),
    ],
)
def test_a_record_that_cannot_be_sent_ends_with_1_and_the_reason(
    tailrace: Tailrace, topic: str, arguments: tuple[str, ...], stdin: bytes, reason: str
) -> None:
    message = tailrace.refusal("produce", topic, *arguments, stdin=stdin)
    assert reason in message
    acknowledged = len(tailrace.ok("consume", topic).splitlines())
    assert f"{acknowledged} record{'' if acknowledged == 1 else 's'} acknowledged" in message


def test_the_brokers_refusal_of_a_record_ends_with_1(tailrace: Tailrace, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    tailrace.ok("topic", "create", name, "--config", "max.message.bytes=1000")
    assert "1 record was not acknowledged" in tailrace.refusal("produce", name, "--value", "x" * 2000)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_live_log_can_be_dumped_and_holds_batches_as_they_were_compressed(
    tailrace: Tailrace, topic: str, data_dir: Path, compression: str
) -> None:
    # librdkafka does not compress a batch if that would not make it smaller.
    values = ["a" * 1000, "b" * 1000]
    tailrace.ok("produce", topic, "--partition", "0", "--compression", compression, stdin="\n".join(values).encode())
    path = data_dir / f"{topic}-0" / "00000000000000000000.log"
    batches = tailrace.objects("log", "dump", str(path), "--records")
    assert [record["value"] for batch in batches for record in batch["records"]] == values
    assert {(batch["compression"], batch["crc_valid"]) for batch in batches} == {(compression, True)}


def test_the_client_reads_back_what_it_sent(broker: Addressed, topic: str) -> None:
    with Producer(broker.bootstrap, linger_ms=1) as producer:
        producer.send(topic, "text", key="ä", headers=[("tag", "x"), ("tag", b"\xff"), ("none", None)], partition=0)
        producer.send(topic, b"\xff", timestamp_ms=MOMENT_MS, partition=1)
        producer.send(topic, None, key=b"gone", partition=2)
    assert producer.acknowledged == 3
    messages = sorted(read(topic, bootstrap=broker.bootstrap), key=lambda message: message.partition)
    headers = (("tag", b"x"), ("tag", b"\xff"), ("none", None))
    assert messages == [
        Message(topic, 0, 0, messages[0].timestamp_ms, "ä".encode(), b"text", headers),
        Message(topic, 1, 0, MOMENT_MS, None, b"\xff", ()),
        Message(topic, 2, 0, messages[2].timestamp_ms, b"gone", None, ()),
    ]
    assert abs(messages[0].timestamp_ms - time.time() * 1000) < 60_000


def test_a_bounded_read_ends_where_the_log_ended_when_it_was_opened(broker: Addressed, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(2000):
            producer.send(topic, str(number), partition=number % 3)
        producer.flush()
        messages = read(topic, bootstrap=broker.bootstrap)
        producer.send(topic, "late", partition=0)
        producer.flush()
        assert sorted(int(message.value or b"") for message in messages) == list(range(2000))


def test_latest_means_the_moment_the_reader_was_opened(broker: Addressed, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, "before", partition=0)
        producer.flush()
        with read(topic, bootstrap=broker.bootstrap, start="latest", follow=True, timeout=120) as messages:
            producer.send(topic, "after", partition=0)
            producer.flush()
            assert next(messages).value == b"after"


def test_following_from_beyond_the_end_waits_for_that_offset(broker: Addressed, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        messages = read(topic, bootstrap=broker.bootstrap, start=2, partitions=[0], follow=True, timeout=120)
        for value in ("0", "1", "2"):
            producer.send(topic, value, partition=0)
        producer.flush()
        assert next(messages).offset == 2
        messages.close()
        assert list(messages) == []


def test_a_follower_with_a_timeout_ends_when_nothing_comes(broker: Addressed, topic: str) -> None:
    assert list(read(topic, bootstrap=broker.bootstrap, follow=True, timeout=0.5)) == []


def test_a_read_may_start_at_a_time(broker: Addressed, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(3):
            producer.send(topic, str(number), partition=0, timestamp_ms=MOMENT_MS + number * 1000)
    moment = datetime.fromtimestamp(MOMENT_MS / 1000 + 1, UTC)
    for start in (moment, Timestamp(MOMENT_MS + 500)):
        assert [message.value for message in read(topic, bootstrap=broker.bootstrap, start=start)] == [b"1", b"2"]


def test_the_client_names_what_is_wrong_with_a_topic(
    broker: Addressed, topic: str, topic_name: Callable[[], str]
) -> None:
    topics = Topics(broker.bootstrap)
    with pytest.raises(TopicExistsError):
        topics.create(topic)
    with pytest.raises(UnknownTopicError):
        topics.describe(topic_name())
    with pytest.raises(UnknownTopicError):
        read(topic_name(), bootstrap=broker.bootstrap)


def test_a_delivery_that_the_broker_refuses_is_raised(broker: Addressed, topic_name: Callable[[], str]) -> None:
    name = topic_name()
    Topics(broker.bootstrap).create(name, configs={"max.message.bytes": "1000"})
    producer = Producer(broker.bootstrap)
    producer.send(name, "small")
    producer.send(name, "x" * 2000)
    with pytest.raises(DeliveryError) as caught:
        producer.close()
    assert 1 <= caught.value.count <= 2
    assert "too large" in caught.value.reason.lower()
