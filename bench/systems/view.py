"""A cluster seen from outside: one server's view of brokers and partitions, and the end of sessions.

Uses one connection, and asks one server at a time only for what is still awaited, so that observing costs busy servers
little. Must not know who runs them.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from bench.clients.connection import connected
from bench.clients.server import Handle
from bench.harness.failures import ServerFailedError
from tailrace.cluster.keys import BROKERS, broker_of
from tailrace.protocol_client.errors import ProtocolClientError
from tailrace.protocol_client.versions import Versions
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, int16, int32, int64, string
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tailrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

METADATA = Versions(12, 12)
QUORUM = Versions(0, 0)
ELECT_LEADERS = Versions(2, 2)
PRODUCE = Versions(9, 9)
#: The number of requests in which topics are asked for, or ten topics per request if there are few.
_TURNS = 10
_LOOK_SECONDS = 0.02
_ANSWER_SECONDS = 60.0

Response = TypeVar("Response", bound=Message)


class QuorumRequestPartition(Struct):
    """One of its partitions."""

    partition_index: int = int32()


class QuorumRequestTopic(Struct):
    """A requested topic."""

    topic_name: str = string()
    partitions: list[QuorumRequestPartition] = array(QuorumRequestPartition)


class DescribeQuorumRequest(Message):
    """Asks Kafka for the leader of its controllers; its Metadata names any broker."""

    API_KEY = ApiKey.DESCRIBE_QUORUM
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    topics: list[QuorumRequestTopic] = array(QuorumRequestTopic)


class QuorumReplica(Struct):
    """A voter or an observer."""

    replica_id: int = int32()
    log_end_offset: int = int64()


class QuorumPartition(Struct):
    """The leader and replicas of a partition."""

    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[QuorumReplica] = array(QuorumReplica)
    observers: list[QuorumReplica] = array(QuorumReplica)


class QuorumResponseTopic(Struct):
    """The partitions of a topic."""

    topic_name: str = string()
    partitions: list[QuorumPartition] = array(QuorumPartition)


class DescribeQuorumResponse(Message):
    """The leader of Kafka's controllers."""

    API_KEY = ApiKey.DESCRIBE_QUORUM
    MIN_VERSION = 0
    MAX_VERSION = 0
    FLEXIBLE_FROM = 0

    error_code: int = int16()
    topics: list[QuorumResponseTopic] = array(QuorumResponseTopic)


class View:
    """One server's view of its cluster, over one connection; a context manager."""

    def __init__(self, port: int) -> None:
        try:
            self._connection = connected(Handle("127.0.0.1", port, 0))
        except ProtocolClientError as error:
            raise ServerFailedError(f"cannot reach the server at port {port}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, request: Message, usable: Versions, response: type[Response]) -> Response:
        """Send a request and decode its response."""
        try:
            return self._connection.ask(request, usable, response)
        except ProtocolClientError as error:
            raise ServerFailedError(f"a server did not answer: {error}") from error

    def metadata(self, topics: Sequence[str] = ()) -> MetadataResponse:
        """Return brokers, controller, and the named topics."""
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        return self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), METADATA, MetadataResponse)

    def quorum_leader(self) -> int:
        """Return the node that leads Kafka's controllers."""
        wanted = [
            QuorumRequestTopic(topic_name="__cluster_metadata", partitions=[QuorumRequestPartition(partition_index=0)])
        ]
        answer = self.ask(DescribeQuorumRequest(topics=wanted), QUORUM, DescribeQuorumResponse)
        if answer.error_code:
            raise ServerFailedError(f"Kafka does not report the leader of its controllers: error {answer.error_code}")
        return answer.topics[0].partitions[0].leader_id

    def elect_preferred(self) -> None:
        """Elect the first replica of every partition as its leader."""
        request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=int(_ANSWER_SECONDS * 1000))
        answer = self.ask(request, ELECT_LEADERS, ElectLeadersResponse)
        if answer.error_code:
            raise ServerFailedError(f"cannot elect preferred leaders: error {answer.error_code}")

    def write(self, topic: str, partition: int, batch: bytes) -> int:
        """Append a batch to a partition that this server leads, with acks=all; return the error code, 0 for none."""
        data = [PartitionProduceData(index=partition, records=batch)]
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        answer = self.ask(request, PRODUCE, ProduceResponse)
        return answer.responses[0].partition_responses[0].error_code

    def partitions(self, topics: Sequence[str]) -> dict[tuple[str, int], MetadataResponsePartition]:
        """Return every partition of the named topics that this server knows."""
        found: dict[tuple[str, int], MetadataResponsePartition] = {}
        at_once = _at_once(topics)
        for first in range(0, len(topics), at_once):
            for topic in self.metadata(topics[first : first + at_once]).topics:
                found |= {(topic.name or "", each.partition_index): each for each in topic.partitions}
        return found

    def wait_for(
        self, topics: Sequence[str], condition: Callable[[MetadataResponsePartition], bool], seconds: float
    ) -> None:
        """Return when the condition was seen to hold for every partition of the topics."""
        left, at_once = list(topics), _at_once(topics)
        deadline = time.monotonic() + seconds
        while left:
            found = self.metadata(left[:at_once]).topics
            done = {each.name for each in found if each.partitions and all(map(condition, each.partitions))}
            left = [name for name in left if name not in done]
            if not done:
                if time.monotonic() > deadline:
                    raise ServerFailedError(
                        f"{len(left)} topics did not reach the expected state within {seconds:.0f} s"
                    )
                time.sleep(_LOOK_SECONDS)


def _at_once(topics: Sequence[str]) -> int:
    return max(len(topics) // _TURNS, 10)


class SessionWatch:
    """Records when etcd ends the sessions of brokers, over its JSON gateway; a context manager with a thread."""

    def __init__(self, store_url: str) -> None:
        address, _, prefix = store_url.removeprefix("etcd://").partition("/")
        self._directory = f"/{prefix}{BROKERS}/"
        self._ended: dict[int, float] = {}
        self._news = threading.Condition()
        self._connection = http.client.HTTPConnection(address, timeout=None)
        self._thread = threading.Thread(target=self._watch, name="watch of sessions", daemon=True)

    def __enter__(self) -> Self:
        # '0' follows '/': all keys in the directory sort between the two.
        first, end = self._directory.encode(), self._directory[:-1].encode() + b"0"
        wanted = {"create_request": {"key": _base64(first), "range_end": _base64(end)}}
        self._connection.request("POST", "/v3/watch", json.dumps(wanted))
        self._answer = self._connection.getresponse()
        created = json.loads(self._answer.readline())
        if not created.get("result", {}).get("created"):
            raise ServerFailedError(f"etcd refused the watch: {created}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def wait_for_end(self, broker_id: int, seconds: float) -> float:
        """Return when the session of a broker ended, by the monotonic clock."""
        with self._news:
            if not self._news.wait_for(lambda: broker_id in self._ended, seconds):
                raise ServerFailedError(f"the session of broker {broker_id} has not ended within {seconds:.0f} s")
            return self._ended.pop(broker_id)

    def _watch(self) -> None:
        try:
            while line := self._answer.readline():
                now = time.monotonic()
                events = json.loads(line).get("result", {}).get("events", ())
                with self._news:
                    for event in events:
                        if event.get("type") == "DELETE":
                            self._ended[broker_of(base64.b64decode(event["kv"]["key"]).decode())] = now
                    self._news.notify_all()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # it was closed; a wait for an unseen end fails by its own time limit


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
