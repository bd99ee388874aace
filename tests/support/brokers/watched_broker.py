"""A broker process under watch: whether it is still the same, still serves, and has not grown.

Owns what counts as being well. It must not know what was done to the broker.
"""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.brokers.broker_process import BrokerFailedError, BrokerProcess
from tests.support.clients.raw_client import RawClient

PRODUCE_VERSION = 9
_LATEST = -1


def produce_request(topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    """A request that appends one batch, or whatever else stands in its place."""
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(topic: str, offset: int = 0, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0) -> FetchRequest:
    """A request, for a version below 13, that reads partition 0 from an offset on."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def small_batch(*values: bytes) -> bytes:
    """A sound batch of the given values, or of one."""
    return bytes(build_batch([NewRecord(value, timestamp=1) for value in values or (b"value",)]))


class WatchedBroker(BrokerProcess):
    """A broker that can be checked."""

    def resident_bytes(self) -> int:
        """The memory that the broker's process really takes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("the kernel does not say how much memory the broker has")

    def peak_resident_bytes(self) -> int:
        """The most memory that the process has taken since it started or since `forget_peak`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
        raise AssertionError("the kernel does not say how much memory the broker had")

    def forget_peak(self) -> None:
        """Reset the measured peak."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def start_and_kill(self, after_seconds: float) -> bool:
        """Start the broker and kill it a while later; return whether it was ready by then."""
        lines = self._launch()
        # Counted from here on: a busy machine may take longer than that to begin a process, and none would be killed.
        timer = threading.Timer(after_seconds, self._running().kill)
        timer.start()
        try:
            self._wait_until_ready(lines)
        except BrokerFailedError as error:
            if f"ended with {-signal.SIGKILL}\n" not in str(error):
                raise
            return False
        finally:
            timer.join()
        self._reap()
        return True

    def all_error_output(self) -> str:
        """Everything written to stderr, over all starts."""
        return self._error_path.read_text(errors="replace") if self._error_path.exists() else ""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, unless it exists."""
        wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        with RawClient(self.port) as client:
            (result,) = client.ask(CreateTopicsRequest(topics=[wanted]), 4, CreateTopicsResponse).topics
        assert result.error_code in (0, 36), result

    def produce(self, topic: str, batch: bytes, version: int = PRODUCE_VERSION) -> PartitionProduceResponse:
        """Send one batch; return the answer for its partition."""
        with RawClient(self.port) as client:
            response = client.ask(produce_request(topic, batch), version, ProduceResponse)
        return response.responses[0].partition_responses[0]

    def end_offset(self, topic: str) -> int:
        """The end offset of partition 0 of a topic."""
        asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=_LATEST)])
        with RawClient(self.port) as client:
            response = client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 5, ListOffsetsResponse)
        (partition,) = response.topics[0].partitions
        assert partition.error_code == 0, partition
        return partition.offset

    def serve_once(self, topic: str) -> float:
        """Produce and fetch one record with a new connection; the seconds that took.

        Those in which the machine was too busy to let the broker or this thread run are left out: nobody's fault.
        """
        pid = self.pid
        started = time.monotonic() - _seconds_without_processor(pid)
        batch = small_batch(b"still here")
        with RawClient(self.port) as client:
            produced = client.ask(produce_request(topic, batch), PRODUCE_VERSION, ProduceResponse)
            (result,) = produced.responses[0].partition_responses
            assert result.error_code == 0, result
            fetched = client.ask(fetch_request(topic, result.base_offset), 11, FetchResponse)
            (data,) = fetched.responses[0].partitions
            assert data.error_code == 0, data
            assert isinstance(data.records, bytes | memoryview)
            assert bytes(data.records)[61:] == batch[61:], "another record than the one that was sent"
        return time.monotonic() - _seconds_without_processor(pid) - started


def _seconds_without_processor(pid: int) -> float:
    """How long the main thread of a process, and the thread that asks, have been ready to run and did not."""
    try:
        stats = [Path(f"/proc/{name}/schedstat").read_text().split() for name in (pid, "thread-self")]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # the process is gone, or the kernel does not count
    return sum(int(fields[1]) for fields in stats) / 1e9
