"""Only the leader is cut off from the metadata store, while clients and followers still reach it.

Three real brokers on a real etcd; one reaches it through a line that is cut. Other brokers lead in its place, it sends
its clients there, and nothing acknowledged is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.client.cluster import describe_cluster
from tailrace.client.errors import ClientError
from tailrace.errors import ErrorCode
from tailrace.wire.messages.fetch import FetchResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.support.brokers.cluster_load import JavaSender, TimedSender
from tests.support.brokers.cluster_process import ClusterBroker, ClusterProcess
from tests.support.brokers.watched_broker import PRODUCE_VERSION, fetch_request, produce_request, small_batch
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.raw_client import RawClient
from tests.support.history import Follower, Load, check_sender, check_unchanged, read_everything
from tests.support.network.cuttable_line import CuttableLine
from tests.support.stores.etcd_process import EtcdCluster
from tests.support.topics import eventually

TOPIC, JAVA_TOPIC, PARTITIONS = "orders", "payments", 3
VICTIM = 1
FETCH_VERSION = 11
METADATA_VERSION = 9
PATIENCE_SECONDS = 180
#: Typical settings: acks=all, idempotent, and nothing that makes the client look elsewhere sooner.
DEFAULTS = {"enable_idempotence": True}


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[ClusterProcess, CuttableLine]]:
    """A cluster, and the line by which one of its brokers reaches the store."""
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        line = stack.enter_context(CuttableLine(etcd.members[0].client_port))
        cluster = ClusterProcess(tmp_path, f"etcd://{etcd.endpoints[0]}/tailrace", min_insync_replicas="2")
        cluster.broker(VICTIM).configure(tailrace_coordination=f"etcd://{line.endpoint}/tailrace")
        stack.enter_context(cluster)
        stack.callback(line.mend)
        yield cluster, line


def test_a_leader_cut_off_from_the_store_alone_sends_its_clients_elsewhere(
    line: tuple[ClusterProcess, CuttableLine], tmp_path: Path
) -> None:
    cluster, to_store = line
    victim = cluster.broker(VICTIM)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    # It leads all partitions, so no client is served anywhere until it redirects them.
    for name in (TOPIC, JAVA_TOPIC):
        wanted = NewTopic(name, PARTITIONS, replica_assignment=[[VICTIM, 2, 3]] * PARTITIONS)
        admin.create_topics([wanted], operation_timeout=60)[name].result(90)
    cluster.wait_for(lambda state: len(state["partitions"]) == 2 * PARTITIONS, "the topics to be known")
    cluster.wait_until_whole()
    with ExitStack() as stack:
        # Connected before the cut, and only to the broker that will be cut off.
        sender = start_sender(victim, "before", stack)
        reader = Follower(victim.bootstrap, {TOPIC: PARTITIONS})
        stack.callback(reader.read_no_more)
        reader.start()
        java = JavaSender(victim.bootstrap, JAVA_TOPIC, tmp_path)
        stack.callback(java.kill)
        java.start()
        wait_for(lambda: len(java.acknowledged) > 0, "the Java client to send")
        sender.wait_for_more()
        wait_for(lambda: reader.count > 0, "the first records to be read")

        to_store.cut()
        moment = time.monotonic()
        wait_for(lambda: leads_elsewhere(cluster.broker(2)), "other brokers to lead")
        say("others lead", moment)
        wait_for(lambda: fetch_error(victim) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "the victim to refuse its readers")
        say("the cut-off leader sends its clients elsewhere", moment)
        assert VICTIM not in leaders_told_by(victim)
        for acks in (1, -1):
            assert produce_error(victim, acks) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        sender.wait_for_more()
        say("a producer that was there goes on", moment)
        sent = len(java.acknowledged)
        wait_for(lambda: len(java.acknowledged) > sent + 100, "the Java client to go on")
        say("the Java client goes on", moment)
        read = reader.count
        wait_for(lambda: reader.count > read + 100, "the reader to go on")
        say("a consumer that was there goes on", moment)

        # A new client that knows only this broker finds the others.
        began = time.monotonic()
        later = start_sender(victim, "later", stack)
        later.wait_for_more()
        say("a new producer is served", began)
        received = ConfluentClient(victim.bootstrap).consume(TOPIC, 0, 100, timeout_seconds=PATIENCE_SECONDS)
        assert len(received) == 100
        say("a new consumer is served", began)
        assert fetch_error(victim) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert VICTIM not in leaders_told_by(victim)

        to_store.mend()
        cluster.wait_until_whole()
        sender.wait_for_more()
        promised = [(each.load, each.finish()) for each in (sender, later)]
        java.finish()
        logs = read_everything(victim.bootstrap, {TOPIC: PARTITIONS, JAVA_TOPIC: PARTITIONS})
        java.check(JAVA_TOPIC, logs)
        for load, acknowledged in promised:
            check_sender(load, acknowledged, logs)
        check_unchanged(reader.finish(), logs)
    for broker in cluster.brokers:
        assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


def start_sender(broker: ClusterBroker, name: str, stack: ExitStack) -> TimedSender:
    sender = TimedSender(broker.bootstrap, Load(name, TOPIC, DEFAULTS, is_idempotent=True, pause_seconds=0.003))
    stack.callback(sender.send_no_more)
    sender.start()
    return sender


def wait_for(condition: Callable[[], bool], what: str) -> None:
    assert eventually(condition, timeout_seconds=PATIENCE_SECONDS), f"waited in vain for {what}"


def say(what: str, since: float) -> None:
    print(f"{what} after {time.monotonic() - since:.1f} s")


def leads_elsewhere(asked: ClusterBroker) -> bool:
    try:
        partitions = describe_cluster(asked.bootstrap, TOPIC).partitions
    except ClientError:  # on a busy machine an answer may take too long once
        return False
    return all(each.leader not in (None, VICTIM) for each in partitions)


def leaders_told_by(broker: ClusterBroker) -> set[int]:
    with RawClient(broker.port) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        (topic,) = client.ask(request, METADATA_VERSION, MetadataResponse).topics
    return {each.leader_id for each in topic.partitions}


def fetch_error(broker: ClusterBroker) -> int:
    with RawClient(broker.port) as client:
        answer = client.ask(fetch_request(TOPIC), FETCH_VERSION, FetchResponse)
    code: int = answer.responses[0].partitions[0].error_code
    return code


def produce_error(broker: ClusterBroker, acks: int) -> int:
    with RawClient(broker.port) as client:
        request = produce_request(TOPIC, small_batch(b"raw:0:"), acks=acks)
        answer = client.ask(request, PRODUCE_VERSION, ProduceResponse)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code
