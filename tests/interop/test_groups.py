"""Consumer groups with real clients: fleets whose members come, go and die under load, and what each of them saw.

TAILRACE_GROUP_MEMBERS and TAILRACE_GROUP_SECONDS make the fleets larger and their unrest longer;
TAILRACE_GROUP_SEED repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewPartitions

from tests.interop.conftest import EXTERNAL, Broker, ExternalBroker
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.groups import fleet as kinds
from tests.support.groups.fleet import (
    Fleet,
    FleetError,
    Kind,
    Ownership,
    Place,
    check_exclusive,
    check_order,
    churn,
    fleet,
    ownerships_of,
)
from tests.support.records import Record
from tests.support.topics import create_topic, eventually

MEMBERS = int(os.environ.get("TAILRACE_GROUP_MEMBERS", "4"))
SECONDS = float(os.environ.get("TAILRACE_GROUP_SECONDS", "4"))
SEED = int(os.environ.get("TAILRACE_GROUP_SEED") or random.SystemRandom().randrange(1_000_000))
#: Enough for a partition for each member; a third of them is a whole number.
PARTITIONS = 12 * -(-MEMBERS // 12)
PATIENCE_SECONDS = kinds.PATIENCE_SECONDS

ALL = [
    kinds.CONFLUENT_RANGE,
    kinds.CONFLUENT_COOPERATIVE,
    kinds.CONFLUENT_CONSUMER,
    kinds.KAFKA_PYTHON,
    kinds.KAFKA_PYTHON_COOPERATIVE,
    kinds.AIOKAFKA,
    kinds.JAVA_COOPERATIVE,
    kinds.JAVA_CONSUMER,
    kinds.KAFKAJS,
    kinds.PLATFORMATIC,
]
#: Both ways to find topics: by the client in the classic protocol, by the broker in the newer one.
SUBSCRIBERS = [kinds.CONFLUENT_RANGE, kinds.CONFLUENT_CONSUMER, kinds.KAFKA_PYTHON, kinds.AIOKAFKA, kinds.JAVA_CONSUMER]
ROLLS = [
    (kinds.CONFLUENT_RANGE, kinds.CONFLUENT_CONSUMER),
    (kinds.CONFLUENT_COOPERATIVE, kinds.CONFLUENT_CONSUMER),
    (kinds.JAVA_COOPERATIVE, kinds.JAVA_CONSUMER),
]
#: Sessions that outlast the pauses of a busy machine; in the newer protocol the broker decides.
PATIENT_MS = 120_000


def each(some: list[Kind]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", some, ids=lambda kind: kind.name)


def broker_with_sessions(directory: Path, session_timeout_ms: int) -> Iterator[Broker]:
    if EXTERNAL is not None:
        yield ExternalBroker(EXTERNAL)
        return
    config = {
        "group.initial.rebalance.delay.ms": "300",
        "group.consumer.session.timeout.ms": str(session_timeout_ms),
        "group.consumer.heartbeat.interval.ms": str(kinds.HEARTBEAT_INTERVAL_MS),
    }
    with BrokerProcess(directory / "data", config=config) as process:
        yield process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose groups form sooner than by default, for tests without kills."""
    yield from broker_with_sessions(tmp_path_factory.mktemp("groups"), kinds.CALM_SESSION_TIMEOUT_MS)


@pytest.fixture(scope="module")
def impatient_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose groups also notice dead members sooner."""
    yield from broker_with_sessions(tmp_path_factory.mktemp("impatient"), kinds.SESSION_TIMEOUT_MS)


@pytest.fixture(scope="module")
def patient_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with long sessions."""
    if EXTERNAL is not None:
        pytest.skip("needs a broker that this suite starts")
    yield from broker_with_sessions(tmp_path_factory.mktemp("patient"), PATIENT_MS)


@pytest.fixture(scope="module", autouse=True)
def java_program(tmp_path_factory: pytest.TempPathFactory) -> None:
    kinds.compile_java(tmp_path_factory.mktemp("member"))


@pytest.fixture
def topic(broker: Broker, topic_name: Callable[[], str]) -> str:
    return create_topic(broker.bootstrap, topic_name(), partitions=PARTITIONS)


@pytest.fixture
def crew(broker: Broker, topic: str, tmp_path: Path) -> Iterator[Fleet]:
    """A group on the topic, without members yet."""
    with fleet(broker.bootstrap, f"group-{topic}", [topic], tmp_path, kinds.CALM_SESSION_TIMEOUT_MS) as made:
        yield made


def places_of(topic: str, partitions: int = PARTITIONS) -> set[Place]:
    return {(topic, number) for number in range(partitions)}


def committed(crew: Fleet, places: set[Place]) -> dict[Place, int]:
    """The committed offsets of the group, as another client sees them."""
    consumer = Consumer({"bootstrap.servers": crew.bootstrap, "group.id": crew.group, "log_level": 0})
    try:
        asked = [TopicPartition(topic, number) for topic, number in sorted(places)]
        return {(one.topic, one.partition): one.offset for one in consumer.committed(asked, timeout=PATIENCE_SECONDS)}
    finally:
        consumer.close()


def wait_until_committed(crew: Fleet, ends: Mapping[Place, int]) -> None:
    """Wait until the group has committed everything; members may read a part again after a rebalance."""
    different: dict[Place, tuple[int, int]] = {}

    def is_committed() -> bool:
        found = committed(crew, set(ends))
        different.clear()
        different.update({place: (found[place], end) for place, end in ends.items() if found[place] != end})
        return not different

    try:
        crew.wait("everything should be committed", is_committed)
    except FleetError as error:
        raise FleetError(f"committed and written: {different}\n{error}") from None


def write_once_more(crew: Fleet, ends: Mapping[Place, int]) -> dict[Place, int]:
    """Write one more record to each partition; return the ends after that."""
    for topic in {topic for topic, _ in ends}:
        numbers = [number for name, number in sorted(ends) if name == topic]
        ConfluentClient(crew.bootstrap).produce(topic, [Record(b"x", partition=number) for number in numbers])
    return {place: end + 1 for place, end in ends.items()}


def group_of(crew: Fleet) -> ConsumerGroupDescription:
    # Without a reference, the client would be collected before the answer.
    admin = AdminClient({"bootstrap.servers": crew.bootstrap, "log_level": 0})
    group: ConsumerGroupDescription = admin.describe_consumer_groups([crew.group])[crew.group].result(PATIENCE_SECONDS)
    return group


@each(ALL)
def test_members_come_go_and_die_under_load_and_nothing_is_lost(
    impatient_broker: Broker, topic_name: Callable[[], str], tmp_path: Path, kind: Kind
) -> None:
    print(f"repeat with TAILRACE_GROUP_SEED={SEED}")
    topic = create_topic(impatient_broker.bootstrap, topic_name(), partitions=PARTITIONS)
    with fleet(impatient_broker.bootstrap, f"group-{topic}", [topic], tmp_path) as crew:
        load = crew.load(topic, PARTITIONS)
        crew.wait_until_shared([crew.start(kind) for _ in range(max(MEMBERS * 3 // 4, 2))], places_of(topic))
        print(churn(crew, kind, most=MEMBERS, seconds=SECONDS, seed=SEED))
        ends = load.stop()
        crew.wait_until_processed(ends)
        crew.wait_until_shared(crew.running, places_of(topic))
        if kind.gives_late:
            # A former owner may have committed last, and lower. In a stable group, the owner's commit is the last one.
            ends = write_once_more(crew, ends)
            crew.wait_until_processed(ends)
        wait_until_committed(crew, ends)
        crew.stop()
        crew.check(ends)


def test_two_groups_on_one_topic_each_see_everything(crew: Fleet, topic: str, tmp_path: Path) -> None:
    with fleet(crew.bootstrap, f"other-{topic}", [topic], tmp_path, kinds.CALM_SESSION_TIMEOUT_MS) as other:
        load = crew.load(topic, PARTITIONS)
        crew.wait_until_shared([crew.start(kinds.CONFLUENT_RANGE) for _ in range(2)], places_of(topic))
        other.wait_until_shared([other.start(kinds.CONFLUENT_CONSUMER) for _ in range(3)], places_of(topic))
        ends = load.stop()
        assert min(ends.values()) > 0
        for group in (crew, other):
            group.wait_until_processed(ends)
            group.stop()
            group.check(ends)


@each([kind for kind in ALL if kind.is_incremental])
def test_members_go_on_with_what_they_keep_while_another_is_waited_for(
    patient_broker: Broker, topic_name: Callable[[], str], tmp_path: Path, kind: Kind
) -> None:
    topic = create_topic(patient_broker.bootstrap, topic_name(), partitions=PARTITIONS)
    with fleet(patient_broker.bootstrap, f"group-{topic}", [topic], tmp_path) as crew:
        config = kind.patience(PATIENT_MS)
        load = crew.load(topic, PARTITIONS)
        steady, stopped = crew.start(kind, config=config), crew.start(kind, config=config)
        crew.wait_until_shared([steady, stopped], places_of(topic))
        at_first = steady.owned
        stopped.send_signal(signal.SIGSTOP)
        newcomer = crew.start(kind, config=config)
        assert eventually(lambda: len(group_of(crew).members) == 3, timeout_seconds=PATIENCE_SECONDS)
        assert group_of(crew).state is not ConsumerGroupState.STABLE
        # By then it knows of the rebalance, has joined again and waits like the others.
        since = time.monotonic() + 2 * kinds.HEARTBEAT_INTERVAL_MS / 1000
        steady.wait(
            "should go on with all that it has",
            lambda: steady.owned <= steady.processed_since(since),
        )
        # The rebalance ran all the time: the member that it waits for is still paused and still a member.
        group = group_of(crew)
        assert (group.state is not ConsumerGroupState.STABLE, len(group.members)) == (True, 3)
        stopped.send_signal(signal.SIGCONT)
        crew.wait_until_shared([steady, stopped, newcomer], places_of(topic))
        ends = load.stop()
        crew.wait_until_processed(ends)
        kept = steady.owned & at_first
        assert len(kept) == PARTITIONS // 3
        for place in kept:
            (only,) = [one for one in ownerships_of(steady) if one.place == place]
            assert only.end == float("inf")
        crew.stop()
        crew.check(ends)


@each([kind for kind in ALL if kind.client in ("confluent", "java")])
def test_a_static_member_comes_back_without_a_rebalance(
    patient_broker: Broker, topic_name: Callable[[], str], tmp_path: Path, kind: Kind
) -> None:
    topic = create_topic(patient_broker.bootstrap, topic_name(), partitions=PARTITIONS)
    config = kind.patience(PATIENT_MS)
    with fleet(patient_broker.bootstrap, f"group-{topic}", [topic], tmp_path) as crew:
        load = crew.load(topic, PARTITIONS)
        first = crew.start(kind, instance="restarted", config=config)
        crew.wait_until_shared([first], places_of(topic))
        # The last to come: with its share it has been told everything. Who gives a share up is told once more when the
        # rebalance is over, which may be after the other has said what it was given.
        witness = crew.start(kind, instance="witness", config=config)
        crew.wait_until_shared([witness, first], places_of(topic))
        its_own, seen = first.owned, witness.rebalances
        if kind.is_consumer_protocol:
            # Its place is free at once if it left, and only after its session if it died.
            first.stop()
        else:
            first.kill()
        second = crew.start(kind, instance="restarted", config=config)
        second.wait_for_ownership(len(its_own))
        assert second.owned == its_own
        ends = load.stop()
        crew.wait_until_processed(ends)
        assert witness.rebalances == seen
        crew.stop()
        crew.check(ends)


@pytest.mark.parametrize(("classic", "newer"), ROLLS, ids=lambda kind: kind.name)
def test_a_fleet_rolls_to_the_consumer_protocol_and_back(crew: Fleet, topic: str, classic: Kind, newer: Kind) -> None:
    load = crew.load(topic, PARTITIONS)
    members = [crew.start(classic) for _ in range(2)]
    crew.wait_until_shared(members, places_of(topic))
    for kind, expected in ((newer, ConsumerGroupType.CONSUMER), (classic, ConsumerGroupType.CLASSIC)):
        for _ in range(2):
            members.pop(0).stop()
            members.append(crew.start(kind))
            crew.wait_until_shared(members, places_of(topic))
        assert group_of(crew).type is expected
    ends = load.stop()
    crew.wait_until_processed(ends)
    wait_until_committed(crew, ends)
    crew.stop()
    crew.check(ends)


@each(SUBSCRIBERS)
def test_partitions_that_are_added_are_read_from_their_start(
    broker: Broker, topic_name: Callable[[], str], tmp_path: Path, kind: Kind
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    with fleet(broker.bootstrap, f"group-{topic}", [topic], tmp_path, kinds.CALM_SESSION_TIMEOUT_MS) as crew:
        members = [crew.start(kind) for _ in range(2)]
        crew.wait_until_shared(members, places_of(topic, 2))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_partitions([NewPartitions(topic, 5)])[topic].result(PATIENCE_SECONDS)
        ConfluentClient(broker.bootstrap).produce(topic, [Record(b"x", partition=n % 5) for n in range(50)])
        crew.wait_until_shared(members, places_of(topic, 5))
        ends = dict.fromkeys(places_of(topic, 5), 10)
        crew.wait_until_processed(ends)
        crew.stop()
        crew.check(ends)


@each(SUBSCRIBERS)
def test_a_topic_that_matches_a_pattern_is_read_when_it_appears(
    broker: Broker, topic_name: Callable[[], str], tmp_path: Path, kind: Kind
) -> None:
    prefix = topic_name()
    first = create_topic(broker.bootstrap, f"{prefix}-first", partitions=2)
    pattern = f"^{prefix}-.*"
    with fleet(broker.bootstrap, f"group-{prefix}", [pattern], tmp_path, kinds.CALM_SESSION_TIMEOUT_MS) as crew:
        members = [crew.start(kind)]
        crew.wait_until_shared(members, places_of(first, 2))
        create_topic(broker.bootstrap, f"not-{prefix}-other", partitions=2)
        second = create_topic(broker.bootstrap, f"{prefix}-second", partitions=3)
        ConfluentClient(broker.bootstrap).produce(second, [Record(b"x", partition=n % 3) for n in range(30)])
        crew.wait_until_shared(members, places_of(first, 2) | places_of(second, 3))
        ends = dict.fromkeys(places_of(second, 3), 10)
        crew.wait_until_processed(ends)
        crew.stop()
        crew.check(ends)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
@pytest.mark.parametrize("where", ["below the log start", "beyond the end"])
def test_who_has_committed_out_of_range_goes_on_by_its_reset_rule(
    broker: Broker, topic_name: Callable[[], str], where: str, reset: str, protocol: str
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"x", partition=0)] * 20)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, 0, 10)]).values():
        future.result(PATIENCE_SECONDS)
    consumer = client.consumer(**{"group.id": f"group-{topic}", "group.protocol": protocol, "auto.offset.reset": reset})
    try:
        offset = 3 if where == "below the log start" else 1000
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_SECONDS
        message = consumer.poll(0.5)
        while message is None:
            assert time.monotonic() < deadline
            if reset == "latest":
                # Records after the reset are read; write several, because the time of the reset is unknown.
                client.produce(topic, [Record(b"x", partition=0)])
            message = consumer.poll(0.5)
        error = message.error()
        if reset == "error":
            assert error is not None
            assert error.code() == KafkaError._AUTO_OFFSET_RESET
        elif reset == "earliest":
            assert (error, message.offset()) == (None, 10)
        else:
            assert error is None
            assert message.offset() >= 20
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_commit_carries_metadata_up_to_the_brokers_limit(
    broker: Broker, topic_name: Callable[[], str], protocol: str
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    consumer = ConfluentClient(broker.bootstrap).consumer(**{"group.id": f"group-{topic}", "group.protocol": protocol})
    try:
        for note in ("halfway – ½", "x" * 4000, ""):
            consumer.commit(offsets=[TopicPartition(topic, 0, 7, note)], asynchronous=False)
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
            assert (found.offset, found.metadata or "") == (7, note)
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=[TopicPartition(topic, 0, 8, "x" * 5000)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
        assert found.offset == 7
    finally:
        consumer.close()


def test_the_checks_see_what_must_not_be() -> None:
    one, other = ("topic", 0), ("topic", 1)
    check_exclusive([Ownership("a", one, 1.0, 2.0), Ownership("b", one, 2.0), Ownership("a", other, 2.0)])
    check_exclusive([Ownership("a", one, 1.0, 4.0, was_lost=True), Ownership("b", one, 3.0)])
    with pytest.raises(FleetError, match="two owners"):
        check_exclusive([Ownership("b", one, 1.9), Ownership("a", one, 1.0, 2.0)])
    check_order([Ownership("a", one, 1.0, runs=[(5, 7), (8, 8), (9, 20)])])
    for runs in ([(5, 7), (9, 9)], [(5, 7), (7, 9)], [(5, 7), (5, 7)]):
        with pytest.raises(FleetError, match="after 7"):
            check_order([Ownership("a", one, 1.0, runs=runs)])
    # A client may repeat its last round, but only after a rebalance.
    check_order([Ownership("a", one, 1.0, runs=[(3, 4), (5, 7), (5, 7), (8, 8)], repeats_after={2})])
    for runs in ([(3, 4), (5, 7), (3, 9)], [(3, 4), (5, 7), (6, 9)], [(3, 4), (5, 7), (8, 9), (5, 7)]):
        with pytest.raises(FleetError, match=r"after [79]"):
            check_order([Ownership("a", one, 1.0, runs=runs, repeats_after={2})])
