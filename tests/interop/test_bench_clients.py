"""The benchmark's two C clients do what they report: built here, run against a real broker, checked from outside."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.workloads.groups import newest_librdkafka
from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.topics import create_topic

SOURCES = Path(__file__).parents[2] / "bench" / "c"
TIMEOUT_SECONDS = 180


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both programs, built by their own Makefile."""
    folder = tmp_path_factory.mktemp("programs")
    made = subprocess.run(["make", "-C", str(SOURCES), f"BUILD={folder}"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that neither stop nor pause it."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may pause or kill."""
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    if running.is_running:
        os.kill(running.pid, signal.SIGCONT)
        running.stop()


_numbers = itertools.count(1)
_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nobody_left_behind() -> Iterator[None]:
    """Ends what a failed test has left running."""
    yield
    for process in _started:
        with process:
            process.kill()
    _started.clear()


@pytest.fixture
def topic() -> str:
    return f"bench-{next(_numbers)}"


def arguments(**options: object) -> list[str]:
    """`batch_bytes=100, one_message=True` as the programs take them."""
    words: list[str] = []
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


class Programs:
    """Runs the programs against one broker and topic."""

    def __init__(self, folder: Path, port: int, topic: str) -> None:
        self.folder = folder
        self.where = {
            "rdbench": arguments(bootstrap=f"127.0.0.1:{port}", topic=topic),
            "rawbench": arguments(port=port, topic=topic),
        }

    def command(self, program: str, workload: str, **options: object) -> list[str]:
        return [str(self.folder / program), workload, *self.where[program], *arguments(**options)]

    def run(self, program: str, workload: str, **options: object) -> dict[str, Any]:
        """What the program reports: one JSON object on one line."""
        ended = self.end(program, workload, **options)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("\n") == 1
        report = json.loads(ended.stdout)
        assert isinstance(report, dict)
        return report

    def refusal(self, program: str, workload: str, **options: object) -> tuple[int, str]:
        """Run a program that must fail without a report; return its exit code and reason."""
        ended = self.end(program, workload, **options)
        assert ended.stdout == ""
        return ended.returncode, ended.stderr

    def end(self, program: str, workload: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(program, workload, **options),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )

    def start(self, program: str, workload: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(program, workload, **options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _started.append(process)
        return process


@pytest.fixture
def bench(programs: Path, broker: BrokerProcess, topic: str) -> Programs:
    return Programs(programs, broker.port, topic)


def records_of(broker: BrokerProcess, topic: str, partitions: int, count: int) -> list[Message]:
    """All records, read with CRC checks by a client that shares no code with the raw one; more than count fail."""
    consumer = ConfluentClient(broker.bootstrap).consumer(check_crcs=True)
    try:
        assigned = [TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = [consumer.get_watermark_offsets(one, timeout=TIMEOUT_SECONDS)[1] for one in assigned]
        assert sum(ends) == count
        consumer.assign(assigned)
        found: list[Message] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.consume(count - len(found), timeout=1)
    finally:
        consumer.close()
    assert len(found) == count
    assert [message.error() for message in found if message.error() is not None] == []
    return found


def log_bytes(broker: BrokerProcess, topic: str) -> int:
    return sum(path.stat().st_size for path in broker.data_dir.glob(f"{topic}-*/*.log"))


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.005)


def limited_topic(broker: BrokerProcess, topic: str) -> None:
    """A topic that refuses batches above 2,000 bytes."""
    create_topic(broker.bootstrap, topic, max_message_bytes="2000")


def test_rdbench_produces_messages_of_the_size_asked_for_over_all_partitions_in_turn(
    bench: Programs, broker: BrokerProcess, topic: str
) -> None:
    report = bench.run("rdbench", "produce", partitions=3, count=3000, size=100)
    found = records_of(broker, topic, 3, 3000)
    assert Counter(message.partition() for message in found) == {0: 1000, 1: 1000, 2: 1000}
    assert {len(message.value()) for message in found} == {100}
    assert len({message.value() for message in found}) == 3000
    assert (report["messages"], report["bytes"], report["complete"]) == (3000, 300_000, True)
    assert report["messages_s"] == pytest.approx(3000 / report["seconds"], rel=0.01)
    assert report["throughput_mb_s"] == pytest.approx(0.3 / report["seconds"], rel=0.01)
    assert report["client_cpu_s"] >= 0


def test_rdbench_sends_the_same_bytes_at_every_run(programs: Path, broker: BrokerProcess, topic: str) -> None:
    runs: list[list[bytes]] = []
    for name in (f"{topic}-first", f"{topic}-second"):
        Programs(programs, broker.port, name).run("rdbench", "produce", count=200, size=77)
        runs.append([message.value() for message in records_of(broker, name, 1, 200)])
    assert runs[0] == runs[1]


def test_rdbench_sends_lz4_that_halves_its_payload(bench: Programs, broker: BrokerProcess, topic: str) -> None:
    bench.run("rdbench", "produce", count=2000, size=1000, codec="lz4")
    assert 0.45 < log_bytes(broker, topic) / 2_000_000 < 0.65
    assert {len(message.value()) for message in records_of(broker, topic, 1, 2000)} == {1000}


def test_rdbench_sends_plain_payloads_that_do_not_compress(bench: Programs, broker: BrokerProcess, topic: str) -> None:
    bench.run("rdbench", "produce", count=500, size=1000)
    together = b"".join(message.value() for message in records_of(broker, topic, 1, 500))
    assert len(lz4.frame.compress(together)) >= len(together)


def test_rdbench_counts_the_requests_that_the_batch_size_makes(bench: Programs) -> None:
    small = bench.run("rdbench", "produce", count=20_000, size=1000, batch_bytes=16_384)
    large = bench.run("rdbench", "produce", count=20_000, size=1000, batch_bytes="default", linger_ms=500)
    # 16 messages of 1,000 bytes fit in 16 KiB, and hundreds in the default of a million bytes.
    assert small["requests"] >= 20_000 / 16
    assert large["requests"] < small["requests"] / 10
    assert small["requests_s"] == pytest.approx(small["requests"] / small["seconds"], rel=0.01)


@pytest.mark.parametrize("in_flight", [1, 5])
def test_rdbench_one_message_requests_carry_one_message_each(
    bench: Programs, broker: BrokerProcess, topic: str, in_flight: int
) -> None:
    report = bench.run("rdbench", "produce", count=500, size=100, one_message=True, in_flight=in_flight)
    assert report["requests"] == report["messages"] == 500
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    # Little's law: no more than the window over the mean round trip, which is at least half the median.
    assert report["requests_s"] <= 2 * in_flight / (report["p50_ms"] / 1000)
    # One batch header for each record: they were not batched.
    assert log_bytes(broker, topic) >= 500 * (61 + 100)


def test_rdbench_takes_further_properties_of_librdkafka_and_they_have_the_last_word(
    bench: Programs, broker: BrokerProcess, topic: str
) -> None:
    bench.run("rdbench", "produce", count=2000, size=1000, codec="lz4", producer="compression.codec=none,linger.ms=1")
    assert log_bytes(broker, topic) > 2_000_000
    report = bench.run("rdbench", "consume", count=2000, from_beginning=True, consumer="fetch.message.max.bytes=50000")
    assert report["messages"] == 2000
    for properties, word in (("no.such.property=1", "no.such.property"), ("linger.ms", "not NAME=VALUE")):
        code, reason = bench.refusal("rdbench", "produce", count=1, size=10, producer=properties)
        assert code == 1
        assert word in reason


def test_rdbench_produce_stops_when_its_time_is_over_and_says_so(
    bench: Programs, broker: BrokerProcess, topic: str
) -> None:
    report = bench.run("rdbench", "produce", count=1_000_000_000, size=10, seconds=0.2)
    assert report["complete"] is False
    assert 0 < report["messages"] < 1_000_000_000
    consumed = bench.run("rdbench", "consume", count=report["messages"], size=10, from_beginning=True)
    assert consumed["messages"] == report["messages"]


def test_rdbench_fails_when_a_message_is_not_delivered(bench: Programs, broker: BrokerProcess, topic: str) -> None:
    limited_topic(broker, topic)
    code, reason = bench.refusal("rdbench", "produce", count=10, size=5000)
    assert code == 1
    assert "not delivered" in reason


def test_rdbench_consumes_what_was_produced(bench: Programs) -> None:
    bench.run("rdbench", "produce", partitions=6, count=6000, size=100)
    report = bench.run("rdbench", "consume", partitions=6, count=6000, size=100, from_beginning=True)
    assert (report["messages"], report["bytes"], report["complete"]) == (6000, 600_000, True)
    assert 0 < report["first_message_s"] <= report["seconds"]


def test_rdbench_consumes_in_small_fetches_too(bench: Programs) -> None:
    bench.run("rdbench", "produce", count=2000, size=1000, batch_bytes=4000)
    report = bench.run("rdbench", "consume", count=2000, from_beginning=True, fetch_max_bytes=5000)
    assert report["bytes"] == 2_000_000


def test_rdbench_consume_fails_on_a_message_of_another_size(bench: Programs) -> None:
    bench.run("rdbench", "produce", count=10, size=100)
    code, reason = bench.refusal("rdbench", "consume", count=10, size=101, from_beginning=True)
    assert code == 1
    assert "has 100 bytes, not 101" in reason


def test_rdbench_consume_starts_at_the_end_unless_told_otherwise(bench: Programs) -> None:
    bench.run("rdbench", "produce", count=10, size=100)
    code, reason = bench.refusal("rdbench", "consume", count=10, seconds=0.5)
    assert code == 1
    assert "no message" in reason


def test_rdbench_refuses_a_topic_with_another_number_of_partitions(bench: Programs) -> None:
    bench.run("rdbench", "produce", partitions=2, count=10, size=100)
    for program, options in (("rdbench", {"count": 10, "size": 100}), ("rawbench", {"requests": 1, "batch_bytes": 99})):
        code, reason = bench.refusal(program, "produce", partitions=3, **options)
        assert code == 1
        assert "has 2 partitions, not 3" in reason


def test_rdbench_latency_receives_every_message_at_the_rate_asked_for(bench: Programs) -> None:
    report = bench.run("rdbench", "latency", rate=500, seconds=1, warmup_seconds=0.2, size=100, partitions=2)
    assert (report["messages"], report["lost"]) == (500, 0)
    assert 0 < report["p50_ms"] <= report["p90_ms"] <= report["p99_ms"] <= report["p999_ms"] <= report["max_ms"]
    assert report["send_late_p50_ms"] <= report["p50_ms"]
    # Nothing is sent before its time, so that the rate can only be missed from below.
    assert report["achieved_rate"] <= 500.5


def test_rdbench_latency_counts_a_stall_for_every_message_it_delayed(
    programs: Path, own_broker: BrokerProcess, topic: str
) -> None:
    paused_seconds = 2
    process = Programs(programs, own_broker.port, topic).start(
        "rdbench", "latency", rate=200, seconds=8, warmup_seconds=0, size=100
    )
    wait_until(lambda: log_bytes(own_broker, topic) > 0, "messages are being written")
    os.kill(own_broker.pid, signal.SIGSTOP)
    time.sleep(paused_seconds)
    os.kill(own_broker.pid, signal.SIGCONT)
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, errors
    report = json.loads(output)
    assert report["messages"] == 1600
    # A closed loop would have seen one slow message in 1,600. Here the 400 due meanwhile waited, half of them longer
    # than half the pause: so did more than a tenth of all.
    assert report["max_ms"] > paused_seconds * 1000 * 0.9
    assert report["p90_ms"] > paused_seconds * 1000 / 3


def test_rdbench_tail_waits_for_the_slowest_of_its_consumers(bench: Programs, broker: BrokerProcess) -> None:
    report = bench.run("rdbench", "tail", partitions=2, count=20_000, size=500, consumers=3)
    assert (report["messages"], report["bytes"], report["consumers"]) == (20_000, 10_000_000, 3)
    assert report["slowest_consumer_mb_s"] == pytest.approx(10 / report["slowest_consumer_s"], rel=0.01)
    # A second run reads only its own messages, not those of the first.
    again = bench.run("rdbench", "tail", partitions=2, count=1000, size=100, consumers=2)
    assert again["bytes"] == 100_000


@pytest.mark.parametrize(
    ("batch_bytes", "records_per_batch"), [(69, 1), (100, 1), (200, 1), (1000, 7), (16_384, 16), (131_072, 1000)]
)
def test_rawbench_produces_valid_batches_of_the_size_asked_for(
    bench: Programs, broker: BrokerProcess, topic: str, batch_bytes: int, records_per_batch: int
) -> None:
    report = bench.run(
        "rawbench", "produce", partitions=2, batch_bytes=batch_bytes, records_per_batch=records_per_batch, requests=20
    )
    assert report["requests"] == 20
    assert report["records"] == 20 * records_per_batch
    assert batch_bytes - 2 <= report["batch_bytes"] <= batch_bytes
    # Each partition also has the small record that showed that it was ready.
    found = records_of(broker, topic, 2, 20 * records_per_batch + 2)
    assert Counter(message.partition() for message in found) == dict.fromkeys(range(2), 10 * records_per_batch + 1)
    assert report["bytes"] == 20 * report["batch_bytes"]
    assert report["bytes"] < log_bytes(broker, topic) <= report["bytes"] + 2 * 100
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    assert report["requests_s"] == pytest.approx(20 / report["seconds"], rel=0.01)


def test_rawbench_refuses_more_records_than_a_batch_can_hold(bench: Programs) -> None:
    code, reason = bench.refusal("rawbench", "produce", batch_bytes=100, records_per_batch=20, requests=1)
    assert code == 2
    assert "do not fit" in reason


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (1, 50), (7, 3), (40, 2)])
def test_rawbench_sends_exactly_the_requests_asked_for_over_any_connections(
    bench: Programs, broker: BrokerProcess, topic: str, connections: int, in_flight: int
) -> None:
    options = {"partitions": 3, "connections": connections, "in_flight": in_flight, "batch_bytes": 500}
    assert bench.run("rawbench", "produce", requests=301, **options)["complete"] is True
    found = Counter(message.partition() for message in records_of(broker, topic, 3, 301 + 3))
    assert found == {0: 102, 1: 101, 2: 101}


def test_rawbench_survives_sockets_that_take_only_part_of_its_requests(
    bench: Programs, broker: BrokerProcess, topic: str
) -> None:
    # Ten megabytes in flight are more than the buffers of a connection hold.
    options = {"batch_bytes": 1_000_000, "records_per_batch": 10, "in_flight": 10}
    assert bench.run("rawbench", "produce", requests=30, **options)["bytes"] == pytest.approx(30e6, abs=60)
    assert len(records_of(broker, topic, 1, 301)) == 301


def test_rawbench_holds_idle_connections_open_while_it_measures(
    programs: Path, own_broker: BrokerProcess, topic: str
) -> None:
    descriptors = Path(f"/proc/{own_broker.pid}/fd")

    def open_sockets() -> int:
        count = 0
        for path in descriptors.iterdir():
            try:
                count += os.readlink(path).startswith("socket:")
            except FileNotFoundError:
                # Closed between the listing and the check.
                continue
        return count

    before = open_sockets()
    process = Programs(programs, own_broker.port, topic).start(
        "rawbench", "produce", batch_bytes=200, requests=1_000_000_000, seconds=5, connections=2, idle_connections=50
    )
    # More than the one record that comes before the connections: requests are being answered.
    wait_until(
        lambda: log_bytes(own_broker, topic) > 1000 and open_sockets() - before >= 52,
        "records are being written while all connections are open",
    )
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(output)["complete"] is False


def test_rawbench_fails_on_the_first_error_code(bench: Programs, broker: BrokerProcess, topic: str) -> None:
    limited_topic(broker, topic)
    code, reason = bench.refusal("rawbench", "produce", batch_bytes=5000, requests=10)
    assert code == 1
    assert "error 10" in reason


def test_rawbench_fetches_from_the_offsets_asked_for(bench: Programs) -> None:
    bench.run("rawbench", "produce", partitions=2, batch_bytes=1000, records_per_batch=5, requests=40)
    # One batch at a time, each of them once, behind the first small record at offset 0.
    stepped = bench.run(
        "rawbench", "fetch", partitions=2, offset=1, offset_step=5, offset_end=101, max_bytes=1000, requests=40
    )
    assert stepped["bytes"] == 40 * 1000
    # The steps begin again at the end, else the broker would have nothing to give.
    assert bench.run(
        "rawbench", "fetch", partitions=2, offset=1, offset_step=5, offset_end=101, max_bytes=1000, requests=90
    )["complete"]
    whole = bench.run(
        "rawbench", "fetch", partitions=2, offset=1, max_bytes=10_000_000, requests=50, connections=3, in_flight=4
    )
    assert whole["bytes"] == 50 * 20 * 1000
    assert whole["throughput_mb_s"] == pytest.approx(1.0 / whole["seconds"], rel=0.01)


@pytest.mark.parametrize(("offset", "reason"), [(1000, "error 1"), (6, "no records at offset 6")])
def test_rawbench_fetch_fails_where_there_is_nothing_to_read(bench: Programs, offset: int, reason: str) -> None:
    bench.run("rawbench", "produce", batch_bytes=500, records_per_batch=5, requests=1)
    code, said = bench.refusal("rawbench", "fetch", offset=offset, requests=1, max_wait_ms=1)
    assert code == 1
    assert reason in said


def admin_of(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def committed(broker: BrokerProcess, group: str) -> dict[int, int]:
    """The committed offsets of a group by partition, as another client sees them."""
    # Without a reference, the admin client would be collected before the answer.
    admin = admin_of(broker)
    found = (
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        .result(TIMEOUT_SECONDS)
        .topic_partitions
    )
    return {item.partition: item.offset for item in found}


@pytest.mark.parametrize(("groups", "members"), [(20, 1), (1, 20), (4, 5)])
def test_rawbench_commits_in_turn_for_every_member_of_every_group(
    bench: Programs, broker: BrokerProcess, topic: str, groups: int, members: int
) -> None:
    report = bench.run("rawbench", "commit", groups=groups, members=members, partitions=20, requests=60, connections=7)
    assert (report["requests"], report["groups"], report["members"]) == (60, groups, members)
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    # Three turns: the first of them commits 1. Over several connections a turn's commits may pass the next one's.
    for number in range(groups):
        found = committed(broker, f"{topic}-{number:06d}")
        assert set(found) == set(range(number * members, (number + 1) * members))
        assert set(found.values()) <= {1, 2, 3}


def test_rawbench_commits_rise_on_one_connection(bench: Programs, broker: BrokerProcess, topic: str) -> None:
    bench.run("rawbench", "commit", groups=2, members=2, partitions=3, requests=40)
    # The fourth member shares a partition with the first, but not a group.
    assert committed(broker, f"{topic}-000000") == {0: 10, 1: 10}
    assert committed(broker, f"{topic}-000001") == {2: 10, 0: 10}


def test_rawbench_heartbeats_are_those_of_members_and_all_of_them_leave(
    programs: Path, broker: BrokerProcess, topic: str
) -> None:
    process = Programs(programs, broker.port, topic).start(
        "rawbench", "heartbeat", groups=3, members=4, requests=120, connections=5, hold=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    names = [f"{topic}-{number:06d}" for number in range(3)]
    admin = admin_of(broker)

    def members_and_state() -> set[tuple[int, str]]:
        described = admin.describe_consumer_groups(names)
        results = [future.result(TIMEOUT_SECONDS) for future in described.values()]
        return {(len(result.members), result.state.name) for result in results}

    assert members_and_state() == {(4, "STABLE")}
    process.stdin.write("begin\n")
    process.stdin.flush()
    report = json.loads(process.stdout.readline())
    assert (report["requests"], report["complete"]) == (120, True)
    # It stays until its standard input ends.
    assert members_and_state() == {(4, "STABLE")}
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output, errors) == (0, "", "")
    assert members_and_state() == {(0, "EMPTY")}


def test_rawbench_heartbeat_fails_when_a_member_is_no_more(programs: Path, broker: BrokerProcess, topic: str) -> None:
    process = Programs(programs, broker.port, topic).start("rawbench", "heartbeat", requests=10, hold=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    group = f"{topic}-000000"
    # Another that joins makes the group rebalance, which each heartbeat is told.
    other = ConfluentClient(broker.bootstrap).consumer(group_id=group, auto_offset_reset="earliest")
    try:
        other.subscribe([topic])
        wait_until(lambda: group_state(broker, group) != "STABLE", "the group rebalances")
        output, errors = process.communicate("begin\n", timeout=TIMEOUT_SECONDS)
    finally:
        other.close()
    assert (process.returncode, output) == (1, "")
    assert "error 27" in errors


def group_state(broker: BrokerProcess, group: str) -> str:
    admin = admin_of(broker)
    return str(admin.describe_consumer_groups([group])[group].result(TIMEOUT_SECONDS).state.name)


@pytest.mark.parametrize(
    ("event", "protocol", "figures"),
    [
        ("kill", "eager", {"takeover_s", "kept_pause_ms"}),
        ("join", "cooperative", {"settled_s", "kept_pause_ms"}),
        ("restart", "consumer", {"restart_s", "longest_gap_ms", "typical_gap_ms"}),
    ],
)
def test_rdbench_group_reports_what_a_change_of_the_group_cost(
    bench: Programs, broker: BrokerProcess, topic: str, event: str, protocol: str, figures: set[str]
) -> None:
    # Longer than a busy machine delays heartbeats: only the killed member may lose its session.
    command = bench.command(
        "rdbench", "group", event=event, protocol=protocol, members=2, partitions=6, session_ms=15_000
    )
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT_SECONDS,
        env={**os.environ, "LD_PRELOAD": str(newest_librdkafka())},
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert figures <= set(report)
    assert all(report[name] > 0 for name in figures)
    if event == "kill":
        # The session is over after 15 seconds, counted from a heartbeat that was about half a second before.
        assert report["takeover_s"] > 10
        # A member of two had three of the six, and the other kept its own.
        assert report["kept_partitions"] == 3
    if event == "restart":
        assert report["typical_gap_ms"] <= report["longest_gap_ms"] <= report["restart_s"] * 1000 + 2000
    # Nobody is left behind, and what was read was committed.
    assert group_state(broker, topic) == "EMPTY"
    assert set(committed(broker, topic)) == set(range(6))


def test_rdbench_group_fails_with_the_broker(programs: Path, own_broker: BrokerProcess, topic: str) -> None:
    process = Programs(programs, own_broker.port, topic).start(
        "rdbench", "group", event="kill", protocol="eager", members=2, partitions=4, session_ms=60_000
    )
    wait_until(lambda: log_bytes(own_broker, topic) > 1000, "messages are being written")
    own_broker.kill()
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output) == (1, "")
    assert "failed" in errors


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("rdbench", {"count": 1_000_000_000, "size": 100, "one_message": True, "in_flight": 1, "seconds": 50}),
        ("rawbench", {"requests": 100_000_000, "batch_bytes": 200, "seconds": 50}),
    ],
)
def test_a_broker_that_dies_is_a_failure_and_not_a_result(
    programs: Path, own_broker: BrokerProcess, topic: str, program: str, options: dict[str, object]
) -> None:
    process = Programs(programs, own_broker.port, topic).start(program, "produce", **options)
    wait_until(lambda: log_bytes(own_broker, topic) > 1000, "records are being written")
    own_broker.kill()
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, output) == (1, "")
    assert f"{program}: " in errors


@pytest.mark.parametrize(
    ("program", "options"), [("rdbench", {"count": 1, "size": 1}), ("rawbench", {"requests": 1, "batch_bytes": 200})]
)
def test_no_broker_is_a_failure(programs: Path, topic: str, program: str, options: dict[str, object]) -> None:
    code, reason = Programs(programs, free_port(), topic).refusal(program, "produce", **options)
    assert code == 1
    assert f"{program}: " in reason


@pytest.mark.parametrize(
    ("program", "workload", "options"),
    [
        ("rdbench", "measure", {}),
        ("rdbench", "produce", {"count": 1}),
        ("rdbench", "produce", {"count": "many", "size": 1}),
        ("rdbench", "produce", {"count": 1, "size": 0}),
        ("rdbench", "produce", {"count": 1, "size": 1, "acks": 2}),
        ("rdbench", "produce", {"count": 1, "size": 1, "codec": "zip"}),
        ("rdbench", "consume", {"count": 1, "unknown": 1}),
        ("rdbench", "latency", {"rate": 10, "size": 8, "seconds": 1}),
        ("rawbench", "measure", {}),
        ("rawbench", "produce", {"requests": 1}),
        ("rawbench", "produce", {"requests": 1, "batch_bytes": 200, "acks": 0}),
        ("rawbench", "fetch", {"requests": "1x"}),
        ("rawbench", "commit", {"requests": 1, "groups": 0}),
        ("rawbench", "heartbeat", {"requests": 1, "groups": 1000, "members": 1000}),
        ("rdbench", "group", {"event": "pause", "protocol": "eager", "members": 2, "partitions": 4}),
        ("rdbench", "group", {"event": "kill", "protocol": "lazy", "members": 2, "partitions": 4}),
        ("rdbench", "group", {"event": "kill", "protocol": "eager", "members": 1, "partitions": 4}),
        ("rdbench", "group", {"event": "join", "protocol": "eager", "members": 4, "partitions": 4}),
    ],
)
def test_wrong_options_are_refused(bench: Programs, program: str, workload: str, options: dict[str, object]) -> None:
    code, reason = bench.refusal(program, workload, **options)
    assert code == 2
    assert reason
