"""Situations that nobody wants, with real processes: another cluster's disk, an empty one, an older one, a store that
is gone, leaders that are stopped, brokers that live and do not fetch. Nothing acknowledged is lost in any of them.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.errors import ErrorCode
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.support.brokers.broker_process import EXECUTABLE, free_port
from tests.support.brokers.cluster_load import IDEMPOTENT, TimedSender
from tests.support.brokers.cluster_process import ClusterBroker, ClusterProcess, Status, coordination_store
from tests.support.brokers.watched_broker import PRODUCE_VERSION, produce_request, small_batch
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient
from tests.support.clients.line_bridge import to_text
from tests.support.clients.raw_client import RawClient
from tests.support.history import Acknowledged, Load, Sender, check_sender, read_everything
from tests.support.network.fetch_barrier import FetchBarrier
from tests.support.records import Received, Record, RefusedError
from tests.support.stores.etcd_process import EtcdCluster
from tests.support.topics import create_topic, eventually

PARTITIONS = 3
ALL = {1, 2, 3}
#: Longer than a busy machine delays a replica that must stay in sync.
LAG_MS = 8000
PATIENCE_SECONDS = 180
#: How often to retry on a machine that is too busy.
ATTEMPTS = 5
SESSION_IS_OVER = "The session in the metadata store has expired"
NOT_ENOUGH_REPLICAS = ErrorCode.NOT_ENOUGH_REPLICAS
NOT_ENOUGH_REPLICAS_AFTER_APPEND = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class Guarded:
    """Three brokers on a local store, and the doors by which their replica fetchers can be held back.

    Sessions are long: a broker that hangs is missed by those whose records it does not fetch, not by the store. One
    that dies is missed at once all the same, as its connection to the store ends.
    """

    def __init__(self, directory: Path, url: str, stack: ExitStack) -> None:
        self.cluster = ClusterProcess(
            directory,
            url,
            min_insync_replicas="2",
            replica_lag_time_max_ms=str(LAG_MS),
            broker_session_timeout_ms="30000",
        )
        self.doors = {broker.number: stack.enter_context(FetchBarrier(broker.port)) for broker in self.cluster.brokers}
        for broker in self.cluster.brokers:
            broker.configure(advertised_listeners=f"PLAINTEXT://127.0.0.1:{self.doors[broker.number].port}")
        stack.enter_context(self.cluster)

    def hold(self, number: int) -> None:
        """Stop a broker's fetches from all others."""
        for door in self.doors.values():
            door.hold(number)

    def release(self) -> None:
        for door in self.doors.values():
            door.release()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        url = stack.enter_context(coordination_store("local", directory / "store"))
        made = Guarded(directory, url, stack)
        yield made
        made.release()
        assert_untroubled(made.cluster)


@pytest.fixture
def cluster(guarded: Guarded) -> Iterator[ClusterProcess]:
    """The cluster, complete before and after each test."""
    guarded.cluster.wait_until_whole()
    yield guarded.cluster
    guarded.release()
    guarded.cluster.heal()


@pytest.fixture
def start_sender(cluster: ClusterProcess) -> Iterator[Callable[[Load], TimedSender]]:
    """Starts senders that stop at the end of the test, even if it fails."""
    started: list[TimedSender] = []

    def start(load: Load) -> TimedSender:
        started.append(TimedSender(cluster.bootstrap, load))
        started[-1].start()
        return started[-1]

    yield start
    for sender in started:
        sender.send_no_more()


def assert_untroubled(cluster: ClusterProcess) -> None:
    for broker in cluster.brokers:
        assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


def create(cluster: ClusterProcess, name: str, assignment: list[list[int]] | None = None) -> Load:
    """A topic of three replicas, and the load for it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    config = {"min.insync.replicas": "2"}
    if assignment is None:
        topic = NewTopic(name, PARTITIONS, 3, config=config)
    else:
        topic = NewTopic(name, len(assignment), replica_assignment=assignment, config=config)
    admin.create_topics([topic], operation_timeout=60)[name].result(90)
    cluster.wait_for(lambda state: isrs(state, name) != {}, "the topic to be known")
    cluster.wait_until_whole()
    return Load("exact", name, IDEMPOTENT, is_idempotent=True, pause_seconds=0.003)


def isrs(state: Status, topic: str) -> dict[int, set[int]]:
    return {each["partition"]: set(each["isr"]) for each in state["partitions"] if each["topic"] == topic}


def consume(cluster: ClusterProcess, topic: str, partition: int, count: int) -> list[Received]:
    return ConfluentClient(cluster.bootstrap).consume(topic, partition, count, timeout_seconds=PATIENCE_SECONDS)


def in_sync(state: Status, topic: str) -> set[int]:
    """Every broker that is in some ISR of a topic."""
    return set().union(*isrs(state, topic).values())


def fill(cluster: ClusterProcess, topic: str, count: int = 3000) -> tuple[Load, Acknowledged]:
    """Records of ten kilobytes, so that a copy takes a while."""
    load = Load("large", topic, IDEMPOTENT, is_idempotent=True, value_bytes=10_000)
    sender = Sender(cluster.bootstrap, load)
    sender.start()
    try:
        enough = eventually(
            lambda: sender.acknowledged >= count or sender.error is not None, timeout_seconds=PATIENCE_SECONDS
        )
        assert enough, f"{sender.acknowledged} of {count}"
        return load, sender.finish()
    finally:
        sender.send_no_more()


def check_alone(cluster: ClusterProcess, number: int, promised: list[tuple[Load, Acknowledged]]) -> None:
    """Check that one broker has everything acknowledged: kill the others, and read from it."""
    cluster.wait_until_whole()
    for broker in cluster.brokers:
        if broker.number != number:
            broker.kill()
    alone = cluster.broker(number)
    (topic,) = {load.topic for load, _ in promised}
    cluster.wait_for(
        lambda state: all(each["leader"] == number for each in state["partitions"] if each["topic"] == topic),
        f"broker {number} to lead everything",
    )
    logs = read_everything(alone.bootstrap, {topic: PARTITIONS})
    for load, acknowledged in promised:
        check_sender(load, acknowledged, logs)
    for broker in cluster.brokers:
        if broker.number != number:
            broker.start()


# --- disks


def refusal_of(number: int, data_dir: Path, url: str) -> str:
    """Start a broker that must not start; return its output."""
    done = subprocess.run(
        [
            *(str(EXECUTABLE), "serve", "--node-id", str(number), "--data-dir", str(data_dir)),
            *("--port", str(free_port()), "--coordination", url),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_disk_of_another_cluster_is_refused_and_not_harmed(cluster: ClusterProcess, tmp_path: Path) -> None:
    load = create(cluster, "kept")
    victim = cluster.broker(3)
    before = len(victim.all_error_output())
    with (
        coordination_store("local", tmp_path / "other") as other,
        coordination_store("local", tmp_path / "new") as new,
        ClusterBroker(1, tmp_path / "stranger", other, {}) as stranger,
    ):
        create_topic(stranger.bootstrap, "something")
        (theirs, ours) = (cluster_id(stranger.data_dir), cluster_id(victim.data_dir))
        assert theirs != ours
        sent = ConfluentClient(cluster.bootstrap).produce(
            load.topic, [Record(b"%d" % number, partition=number % PARTITIONS) for number in range(90)]
        )
        assert len(sent) == 90
        marker = victim.data_dir / CLEAN_SHUTDOWN
        # Whether it was stopped or killed before, the refusal leaves the disk unchanged.
        for end, is_clean in ((victim.stop, True), (victim.kill, False)):
            end()
            assert marker.exists() == is_clean
            said = refusal_of(3, victim.data_dir, other)
            assert f"says cluster.id={ours} but this broker has cluster.id={theirs}" in said
            assert "belongs to another cluster" in said
            assert "--data-dir" in said
            said = refusal_of(3, victim.data_dir, new)
            assert "the metadata store is empty but the log directories hold partitions" in said
            assert marker.exists() == is_clean
            victim.start()
            cluster.wait_until_whole()
        listed = AdminClient({"bootstrap.servers": stranger.bootstrap, "log_level": 0}).list_topics(timeout=60)
        assert (set(listed.topics), set(listed.brokers)) == ({"something"}, {1})
    assert "older copy" not in victim.all_error_output()[before:]
    for partition in range(PARTITIONS):
        received = consume(cluster, load.topic, partition, 30)
        assert [one.value for one in received] == [b"%d" % number for number in range(partition, 90, PARTITIONS)]


def cluster_id(data_dir: Path) -> str:
    lines = (data_dir / "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("cluster.id="))


def test_a_broker_back_with_an_empty_disk_counts_only_when_it_has_copied_everything(
    guarded: Guarded, cluster: ClusterProcess, start_sender: Callable[[Load], TimedSender]
) -> None:
    load = create(cluster, "emptied")
    large, filled = fill(cluster, load.topic)
    sender = start_sender(load)
    sender.wait_for_more()
    victim = cluster.broker(2)
    victim.kill()
    shutil.rmtree(victim.data_dir)
    guarded.hold(2)
    victim.start()
    # It is there, and was in every ISR when it was last seen. While it has fetched nothing it is in none.
    wait_until_back_but_not_in_sync(cluster, load.topic, 2)
    for _ in range(3):
        sender.wait_for_more()
        assert 2 not in in_sync(cluster.status(), load.topic)
    guarded.release()
    cluster.wait_for(lambda state: all(isr == ALL for isr in isrs(state, load.topic).values()), "the copy")
    sender.wait_for_more()
    check_alone(cluster, 2, [(load, sender.finish()), (large, filled)])


def wait_until_back_but_not_in_sync(cluster: ClusterProcess, topic: str, number: int) -> None:
    """Wait until who is asked has learnt both, which may be later than who leads has."""
    cluster.wait_for(
        lambda state: len(state["brokers"]) == 3 and number not in in_sync(state, topic),
        f"broker {number} to be back and not in sync",
    )


def test_a_broker_back_with_an_older_disk_catches_up_and_nothing_is_lost(
    guarded: Guarded, cluster: ClusterProcess, tmp_path: Path, start_sender: Callable[[Load], TimedSender]
) -> None:
    load = create(cluster, "older")
    sender = start_sender(load)
    sender.wait_for_more()
    victim = cluster.broker(2)
    victim.stop()
    shutil.copytree(victim.data_dir, tmp_path / "earlier")
    victim.start()
    cluster.wait_until_whole()
    sender.wait_for_more()
    # By now it has been in the ISR with records that the copy does not have, and stops as it should.
    victim.stop()
    shutil.rmtree(victim.data_dir)
    shutil.copytree(tmp_path / "earlier", victim.data_dir)
    before = len(victim.all_error_output())
    guarded.hold(2)
    victim.start()
    assert "they are an older copy" in victim.all_error_output()[before:]
    wait_until_back_but_not_in_sync(cluster, load.topic, 2)
    sender.wait_for_more()
    assert 2 not in in_sync(cluster.status(), load.topic)
    guarded.release()
    cluster.wait_until_whole()
    sender.wait_for_more()
    check_alone(cluster, 2, [(load, sender.finish())])


# --- leaders that are stopped


def test_leaders_that_are_stopped_hand_over_without_a_loss(
    cluster: ClusterProcess, start_sender: Callable[[Load], TimedSender]
) -> None:
    load = create(cluster, "handed-over")
    sender = start_sender(load)
    for victim in cluster.brokers:
        state = cluster.wait_until_whole()
        led = [
            each["partition"]
            for each in state["partitions"]
            if each["topic"] == load.topic and each["leader"] == victim.number
        ]
        sender.wait_for_more()
        begin = time.monotonic()
        victim.stop()
        sender.wait_for_more()
        gaps = [sender.longest_gap(partition, begin) for partition in led]
        shown = ", ".join(f"{gap * 1000:.0f}" for gap in gaps)
        print(
            f"broker {victim.number} stopped, leader of {len(led)}: longest time without an acknowledgement {shown} ms"
        )
        victim.start()
    cluster.wait_until_whole()
    check_alone(cluster, 1, [(load, sender.finish())])


def test_a_broker_whose_starter_is_gone_stops_as_it_should(tmp_path: Path) -> None:
    data_dir, errors = tmp_path / "data", tmp_path / "stderr"
    command = [str(EXECUTABLE), "serve", "--data-dir", str(data_dir), "--port", str(free_port())]
    with errors.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        assert b" ready on " in process.stdout.readline()
        process.stdout.close()  # as after the death of a supervisor: nobody reads the output
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0, errors.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "Error" not in errors.read_text()
    assert (data_dir / CLEAN_SHUTDOWN).exists()


# --- replicas that do not follow


class Answers:
    """The answers to records that were sent without waiting, with their times."""

    def __init__(self) -> None:
        self.errors: dict[str, KafkaError | None] = {}
        self.times: dict[str, float] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        name = message.value().decode()
        self.errors[name], self.times[name] = error, time.monotonic()


def produce(cluster: ClusterProcess, topic: str, value: str, acks: str, answers: Answers) -> Any:
    """Send one record to partition 0, once."""
    producer = ConfluentClient(cluster.broker(1).bootstrap).producer(
        acks=acks, retries=0, request_timeout_ms=90_000, message_timeout_ms=150_000
    )
    producer.produce(topic, value, partition=0, on_delivery=answers)
    producer.poll(0)
    return producer


def test_a_follower_that_lives_but_does_not_fetch_leaves_the_isr_and_writes_go_on(
    guarded: Guarded, cluster: ClusterProcess
) -> None:
    for attempt in range(ATTEMPTS):
        load = create(cluster, f"half-dead-{attempt}", [[1, 2, 3]])
        answers = Answers()
        produce(cluster, load.topic, "before", "all", answers).flush(PATIENCE_SECONDS)
        guarded.hold(2)
        waiting = produce(cluster, load.topic, "on all", "all", answers)
        produce(cluster, load.topic, "on two", "2", answers).flush(PATIENCE_SECONDS)
        if isrs(cluster.status(), load.topic) == {0: ALL}:
            break
        # The machine was so slow that the ISR had changed by then: try again.
        waiting.flush(PATIENCE_SECONDS)
        guarded.release()
        cluster.wait_until_whole()
    else:
        pytest.fail("two replicas were not enough for acks=2 while three were in sync")
    waiting.flush(PATIENCE_SECONDS)
    assert answers.errors == {"before": None, "on all": None, "on two": None}
    # Two replicas had it at once; all that are in sync only when the one that does not fetch was no longer one of them.
    assert answers.times["on two"] < answers.times["on all"]
    state = cluster.status()
    assert isrs(state, load.topic) == {0: {1, 3}}
    assert [each["id"] for each in state["brokers"]] == [1, 2, 3]
    assert "changing the ISR from [1, 2, 3] to [1, 3]" in cluster.broker(1).all_error_output()
    # It answers requests, and only its fetches are stopped.
    with RawClient(cluster.broker(2).port) as client:
        answer = client.ask(MetadataRequest(topics=None), 9, MetadataResponse)
        assert load.topic in [topic.name for topic in answer.topics]
    produce(cluster, load.topic, "after", "all", answers).flush(PATIENCE_SECONDS)
    assert answers.errors["after"] is None
    guarded.release()
    cluster.wait_until_whole()
    first, *middle, last = [one.value for one in consume(cluster, load.topic, 0, 4)]
    # Two producers sent them.
    assert (first, sorted(middle), last) == (b"before", [b"on all", b"on two"], b"after")


def test_too_few_replicas_in_sync_are_told_to_clients_before_and_after_the_append(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    load = create(cluster, "too-few", [[1, 2, 3]])
    answers = Answers()
    produce(cluster, load.topic, "0 before", "all", answers).flush(PATIENCE_SECONDS)
    cluster.broker(3).pause()
    produce(cluster, load.topic, "1 one stopped", "all", answers).flush(PATIENCE_SECONDS)
    assert answers.errors == {"0 before": None, "1 one stopped": None}
    assert isrs(cluster.status(), load.topic) == {0: {1, 2}}

    cluster.broker(2).pause()
    produce(cluster, load.topic, "2 appended", "all", answers).flush(PATIENCE_SECONDS)
    assert code_of(answers.errors["2 appended"]) == NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert isrs(cluster.status(), load.topic) == {0: {1}}
    for acks in ("all", "2"):
        produce(cluster, load.topic, f"refused {acks}", acks, answers).flush(PATIENCE_SECONDS)
        assert code_of(answers.errors[f"refused {acks}"]) == NOT_ENOUGH_REPLICAS
    bridge = JavaBridge(tmp_path)
    try:
        java = JavaClient(cluster.broker(1).bootstrap, bridge)
        record = {"key": None, "value": to_text(b"x"), "partition": 0, "timestamp_ms": None, "headers": []}
        config: dict[str, object] = {"acks": "all", "retries": 0, "enable.idempotence": "false"}
        with pytest.raises(RefusedError, match="NotEnoughReplicasException") as refused:
            java.call("produce", topic=load.topic, records=[record], config=config)
        assert refused.value.code == NOT_ENOUGH_REPLICAS
    finally:
        bridge.close()
    # A client that needs only the leader is served.
    produce(cluster, load.topic, "3 leader", "1", answers).flush(PATIENCE_SECONDS)
    assert answers.errors["3 leader"] is None

    cluster.broker(2).resume()
    cluster.broker(3).resume()
    cluster.wait_until_whole()
    produce(cluster, load.topic, "4 after", "all", answers).flush(PATIENCE_SECONDS)
    assert answers.errors["4 after"] is None
    values = [one.value for one in consume(cluster, load.topic, 0, 5)]
    assert values == [b"0 before", b"1 one stopped", b"2 appended", b"3 leader", b"4 after"]


def code_of(error: KafkaError | None) -> int:
    assert error is not None
    code: int = error.code()
    return code


# --- a store that is gone


def test_what_is_safe_goes_on_while_the_store_is_away_and_all_is_well_when_it_is_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        url = f"etcd://{etcd.endpoints[0]}/tailrace?timeout-ms=2000"
        # Sessions end only because the store is down, and not because the machine is busy: no ISR changes then.
        config = {"min_insync_replicas": "2", "broker_session_timeout_ms": "9000"}
        cluster = stack.enter_context(ClusterProcess(tmp_path, url, **config))
        load = create(cluster, "orders")
        sender = TimedSender(cluster.bootstrap, load)
        stack.callback(sender.send_no_more)
        sender.start()
        sender.wait_for_more()
        (member,) = etcd.members
        for end, begin in ((member.pause, member.resume), (member.kill, etcd.start)):
            cluster.wait_until_whole()
            end()
            check_without_store(cluster, sender, load.topic)
            begin()
            began = time.monotonic()
            for broker in cluster.brokers:
                wait_until_well(broker)
            cluster.wait_until_whole()
            print(f"whole {time.monotonic() - began:.1f} s after the store was back")
            create_topic(cluster.bootstrap, f"created-after-{end.__name__}", partitions=3)
            sender.wait_for_more()
        promised = sender.finish()
        check_sender(load, promised, read_everything(cluster.bootstrap, {load.topic: PARTITIONS}))
        for broker in cluster.brokers:
            assert broker.all_error_output().count("Registered in the metadata store again") >= 2
        assert_untroubled(cluster)


def wait_until_well(broker: ClusterBroker) -> None:
    """Wait until a broker reaches the store again and sees all other brokers."""

    def is_well() -> bool:
        said = run("cluster", "status", "--bootstrap", broker.bootstrap)
        return said.returncode == 0 and not said.stderr and "3 brokers" in said.stdout

    assert eventually(is_well, timeout_seconds=PATIENCE_SECONDS), f"broker {broker.number} is not back"


def check_without_store(cluster: ClusterProcess, sender: TimedSender, topic: str) -> None:
    """Sessions end, all brokers say so; acks=all goes on, alone nobody acknowledges, and nothing can be created."""
    for broker in cluster.brokers:
        said = [run("cluster", "status", "--bootstrap", broker.bootstrap)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "cannot reach the metadata store" not in said[-1].stderr:
            assert time.monotonic() < deadline, f"broker {broker.number} does not say that it is cut off: {said[-1]}"
            said.append(run("cluster", "status", "--bootstrap", broker.bootstrap))
        assert said[-1].returncode == 0
        assert "Reads, and writes with acks=all, continue" in said[-1].stderr
        assert "3 brokers" in said[-1].stdout
        # Answers go by the clock; the line is written when the broker wakes up for it.
        assert eventually(lambda broker=broker: SESSION_IS_OVER in broker.all_error_output())
    state = cluster.status()
    assert (len(state["brokers"]), state["under_replicated"], state["offline"]) == (3, [], [])
    sender.wait_for_more()
    assert len(consume(cluster, topic, 0, 10)) == 10
    with RawClient(cluster.leader_of(topic, 0).port) as alone:
        answer = alone.ask(produce_request(topic, small_batch(), acks=1), PRODUCE_VERSION, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # A store that only hangs may do later what it was asked for: another name each time.
    created = run("topic", "create", f"impossible-{time.monotonic_ns()}", "--bootstrap", cluster.bootstrap)
    assert created.returncode == 1
    assert "lost its session in the metadata store" in created.stderr, created
    # A client that looks at what describes the cluster takes the words for no error.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    assert len(admin.describe_cluster().result(90).nodes) == 3
    sender.wait_for_more()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(EXECUTABLE), *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
