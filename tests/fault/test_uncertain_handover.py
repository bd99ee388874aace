"""A metadata store that stops answering while leadership is handed over: nothing acknowledged is lost.

`tailrace cluster start`, whose supervisor is the store. It is stopped with SIGSTOP between the transactions of a
preferred leader election. The leader gets no answer and gives up after 5 s; the store applies what it was sent when it
goes on, 1.5 s later. The leader's lease is good all that time. A leader that took records in between would acknowledge
what its heir, which leads by then, does not have; above all where the heir is slow, and copies nothing meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.client.cluster import ReplicaState, describe_cluster
from tailrace.client.errors import ClientError
from tailrace.cluster.decisions import ElectionType
from tailrace.cluster.store import MAX_OPERATIONS
from tailrace.errors import ErrorCode
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tests.support.brokers.broker_process import EXECUTABLE
from tests.support.brokers.cluster_load import TimedSender
from tests.support.brokers.cluster_process import ClusterBroker
from tests.support.brokers.local_cluster import free_ports, running_cluster
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.raw_client import RawClient, request_frame
from tests.support.history import Load, check_sender, read_everything
from tests.support.topics import eventually

PATIENCE_SECONDS = 180
#: Longer than the store's client waits for an answer, which is 5 s.
STOPPED_SECONDS = 6.5
#: Long enough for a lease that is a third over when the store stops to outlast the stop.
SESSION_MS = 30_000
#: How often the store must stop during a handover, and how often this is tried at most.
STOPS, ATTEMPTS = 3, 5
#: The store handles everything within this time after it continues; otherwise the stop came too early or too late.
MISSED_SECONDS = 10
#: The number of topics in a transaction: one check for all, and a check and a write for each topic.
TOPICS_IN_TRANSACTION = (MAX_OPERATIONS - 1) // 2
#: The first of each transaction's topics is written to: whichever of them is not answered, one is in it.
TRANSACTIONS = 2
TOPICS = [f"topic-{number:03}" for number in range(TRANSACTIONS * TOPICS_IN_TRANSACTION)]
LOADED = TOPICS[::TOPICS_IN_TRANSACTION]
SESSION_IS_OVER = "The session in the metadata store has expired"
#: The broker that should lead, and the one that does meanwhile.
HEIR, LEADER = 1, 2
ELECT_LEADERS_VERSION = 2


class LocalCluster:
    """The processes of `tailrace cluster start`, and their output."""

    def __init__(self, directory: Path, port: int, supervisor: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.port = port
        self.bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
        self._supervisor = supervisor

    @contextmanager
    def stopped_store(self) -> Iterator[None]:
        """Stop the supervisor, and the store with it, for as long as the block runs."""
        self._supervisor.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._supervisor.send_signal(signal.SIGCONT)

    def end_broker(self, number: int) -> None:
        """Stop a broker cleanly, and return when the supervisor reports its end."""
        command = [str(EXECUTABLE), "cluster", "status", "--bootstrap", self.bootstrap, "--json"]
        said = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=True).stdout
        (pid,) = [int(each["pid"]) for each in json.loads(said)["brokers"] if each["id"] == number]
        os.kill(pid, signal.SIGTERM)
        assert self._supervisor.stderr is not None
        assert any(f"broker {number} (pid {pid}) exited" in line for line in self._supervisor.stderr)

    def store_writes(self) -> tuple[int, int]:
        """A value that changes with every transaction of the store."""
        found = os.stat(self.directory / "metadata.sqlite-wal")
        return found.st_mtime_ns, found.st_size

    def wait_for(self, condition: Callable[[Sequence[ReplicaState]], bool], what: str) -> Sequence[ReplicaState]:
        seen: list[Sequence[ReplicaState]] = []

        def holds() -> bool:
            try:
                seen.append(describe_cluster(self.bootstrap).partitions)
            except ClientError:  # on a busy machine an answer may take too long once
                return False
            return condition(seen[-1])

        assert eventually(holds, timeout_seconds=PATIENCE_SECONDS), f"waited in vain for {what}: {seen[-1:]}"
        return seen[-1]

    def wait_until_whole(self) -> Sequence[ReplicaState]:
        count = len(TOPICS) * ATTEMPTS
        return self.wait_for(
            lambda found: len(found) == count and not any(each.is_under_replicated for each in found),
            "all replicas to be in sync",
        )


def test_nothing_is_lost_when_the_store_stops_in_the_midst_of_a_handover(tmp_path: Path) -> None:
    directory, port = tmp_path / "cluster", free_ports(3)
    with running_cluster(directory, port, 3, "--set", f"broker.session.timeout.ms={SESSION_MS}") as supervisor:
        cluster = LocalCluster(directory, port, supervisor)
        create_topics(cluster)
        with heir_that_no_longer_leads(cluster) as heir:
            assert {each.leader for each in cluster.wait_until_whole()} == {LEADER}
            senders = [start_sender(cluster, topic, acks) for topic in LOADED for acks in ("1", "2")]
            try:
                stops = 0
                for attempt in range(ATTEMPTS):
                    stops += stop_store_in_handover(cluster, heir, senders, attempt)
                    if stops == STOPS:
                        break
                promised = [(sender.load, sender.finish()) for sender in senders]
            finally:
                for sender in senders:
                    sender.send_no_more()
            cluster.wait_until_whole()
            logs = read_everything(cluster.bootstrap, dict.fromkeys(LOADED, ATTEMPTS))
            for load, acknowledged in promised:
                check_sender(load, acknowledged, logs)
            assert stops == STOPS, f"the store was stopped in the midst of a handover only {stops} times"
            troubles = [line for line in said_by(directory, LEADER) if SESSION_IS_OVER in line or "Traceback" in line]
            assert not troubles, troubles
            assert "Traceback" not in heir.all_error_output(), heir.all_error_output()[-4000:]


def said_by(directory: Path, number: int) -> list[str]:
    return (directory / f"broker-{number}.log").read_text().splitlines()


def create_topics(cluster: LocalCluster) -> None:
    """Topics that one broker should lead, with a partition for each attempt."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    # If a third replica confirmed records, those with acks=2 could be lost as well.
    replicas = {name: [HEIR, LEADER, 3] if name in LOADED else [HEIR, LEADER] for name in TOPICS}
    wanted = [NewTopic(name, ATTEMPTS, replica_assignment=[replicas[name]] * ATTEMPTS) for name in TOPICS]
    for created in admin.create_topics(wanted, operation_timeout=60).values():
        created.result(90)
    cluster.wait_until_whole()
    # When all followers have these, none is ahead of the next leader.
    producer = ConfluentClient(cluster.bootstrap).producer(acks="all")
    for topic in LOADED:
        for partition in range(ATTEMPTS):
            producer.produce(topic, b"first:0:", partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


@contextmanager
def heir_that_no_longer_leads(cluster: LocalCluster) -> Iterator[ClusterBroker]:
    """Stop the broker that should lead, so that another one does, and start it again."""
    cluster.end_broker(HEIR)
    store = f"unix://{cluster.directory / 'store.sock'}"
    config = {"broker.session.timeout.ms": str(SESSION_MS)}
    heir = ClusterBroker(HEIR, cluster.directory / f"broker-{HEIR}", store, config)
    heir.port = cluster.port + HEIR - 1
    with heir:
        yield heir


def start_sender(cluster: LocalCluster, topic: str, acks: str) -> TimedSender:
    load = Load(
        f"{topic}-acks-{acks}",
        topic,
        {"acks": acks, "topic_metadata_refresh_fast_interval_ms": 50},
        is_idempotent=False,
        partitions=ATTEMPTS,
        keeps_order=False,
        pause_seconds=0.02,
    )
    sender = TimedSender(cluster.bootstrap, load)
    sender.start()
    return sender


def stop_store_in_handover(
    cluster: LocalCluster, heir: ClusterBroker, senders: Sequence[TimedSender], partition: int
) -> bool:
    """Stop the store while one partition of all topics is handed over; whether it did that after it was given up."""
    for sender in senders:
        sender.wait_for_more()
    election = ElectLeadersRequest(
        election_type=ElectionType.PREFERRED,
        topic_partitions=[TopicPartitions(topic=name, partitions=[partition]) for name in TOPICS],
    )
    own = f"127.0.0.1:{cluster.port + LEADER - 1}"
    with RawClient(cluster.port + LEADER - 1) as client, ExitStack() as slow_heir:
        before = cluster.store_writes()
        client.send(request_frame(election, ELECT_LEADERS_VERSION))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while cluster.store_writes() == before:
            assert time.monotonic() < deadline, "nothing is handed over"
        with cluster.stopped_store():
            stopped = time.monotonic()
            if partition:  # in all attempts but the first
                heir.pause()
                slow_heir.callback(heir.resume)
            answer = client.read_answer(ELECT_LEADERS_VERSION, ElectLeadersResponse)
            kept = [topic for topic in LOADED if leader_of(own, topic, partition) == LEADER]
            # The store is away for that long; a leader that is wrong takes records meanwhile.
            time.sleep(max(0.0, stopped + STOPPED_SECONDS - time.monotonic()))
        codes = {result.error_code for each in answer.replica_election_results for result in each.partition_result}
        is_amid = ErrorCode.REQUEST_TIMED_OUT in codes and eventually(
            lambda: any(leader_of(own, topic, partition) == HEIR for topic in kept), timeout_seconds=MISSED_SECONDS
        )
    print(f"partition {partition}: answered {codes}; {len(kept)} topics kept; amid a handover: {is_amid}")
    for sender in senders:
        sender.wait_for_more()
    return is_amid


def leader_of(bootstrap: str, topic: str, partition: int) -> int | None:
    return describe_cluster(bootstrap, topic).partitions[partition].leader
