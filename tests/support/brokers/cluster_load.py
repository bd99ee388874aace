"""Producers that continue through every failure of a cluster, and remember what was acknowledged, and when.

Owns the two senders, librdkafka's and the Java client's. It must not know what is done to the brokers meanwhile.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaError, Message

from tests.support.clients.confluent_client import place_of, value_of
from tests.support.clients.java_client import CLASS_PATH, JVM, VERIFIABLE_PRODUCER
from tests.support.history import Load, Sender, record_of

PROGRESS_SECONDS = 180.0
#: A broker that is paused keeps its connections: only a timeout of the client's own makes it look elsewhere.
IDEMPOTENT = {
    "enable_idempotence": True,
    "acks": "all",
    "socket_timeout_ms": 3000,
    "topic_metadata_refresh_fast_interval_ms": 50,
}


class TimedSender(Sender):
    """A sender that remembers when each record was acknowledged."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        super().__init__(bootstrap, load)
        self.times: dict[int, dict[int, float]] = {partition: {} for partition in range(load.partitions)}

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        super()._delivered(error, message)
        if error is None:
            self.times[place_of(message)[1]][record_of(value_of(message))[1]] = time.monotonic()

    def numbers_sent(self, partitions: list[int]) -> dict[int, int]:
        """The number of records sent to each partition so far."""
        return {partition: self.result.sent[partition] for partition in partitions}

    def acknowledged_from(self, partition: int, number: int) -> float | None:
        """When the first record from a number on was acknowledged; None while none was."""
        times = self.times[partition]
        return next((times[each] for each in range(number, self.result.sent[partition]) if each in times), None)

    def wait_for_writes(self, sent: dict[int, int], moment: float) -> list[float]:
        """Wait until records sent after a moment were acknowledged by all partitions; how long after it each was."""
        deadline = time.monotonic() + PROGRESS_SECONDS
        while True:
            found = [self.acknowledged_from(partition, number) for partition, number in sent.items()]
            times = [each - moment for each in found if each is not None]
            if len(times) == len(found):
                return times
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"partitions {list(sent)} are not written to again: {found}"
            time.sleep(0.02)

    def wait_for_more(self) -> None:
        """Wait until every partition has acknowledged what is sent from now on."""
        self.wait_for_writes(self.numbers_sent(list(self.times)), time.monotonic())

    def longest_gap(self, partition: int, begin: float) -> float:
        """The longest time since a moment in which a partition acknowledged nothing."""
        since = sorted(each for each in list(self.times[partition].values()) if each >= begin)
        return max((later - earlier for earlier, later in itertools.pairwise([begin, *since])), default=0.0)


#: How long the Java client tries to send a record, and how long its end may take: longer, for that waits for records.
_JAVA_DELIVERY_SECONDS = 120
_JAVA_END_SECONDS = 240.0
#: What it says of a record that it was about to send when it was told to end; nobody ever had that.
_NOT_SENT = ("Cannot perform operation after producer has been closed", "Producer closed while send in progress")


class JavaSender(threading.Thread):
    """Kafka's own verifiable producer: idempotent, acks=all, retrying; remembers what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, work_dir: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(name="java", daemon=True)
        properties = {
            "enable.idempotence": "true",
            "retries": 2147483647,
            "delivery.timeout.ms": _JAVA_DELIVERY_SECONDS * 1000,
            "request.timeout.ms": 5000,
            "metadata.max.age.ms": 5000,
            **(config or {}),
        }
        path = work_dir / "producer.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self.acknowledged: dict[tuple[int, int], str] = {}
        # What was acknowledged so late that its offset was forgotten (DUPLICATE_SEQUENCE_NUMBER), with the partition.
        self._somewhere: list[tuple[int, str]] = []
        self.failed: list[str] = []
        self._other_output: list[str] = []
        self._is_ending = False
        self._process = subprocess.Popen(
            [
                *(*JVM, "-cp", CLASS_PATH, VERIFIABLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic),
                *("--acks", "-1", "--throughput", "300", "--producer.config", str(path)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The Java virtual machine may print lines of its own, or be killed within a line. Always read on: a full
            # pipe would stop the producer.
            if not (line.startswith("{") and line.endswith("}\n")):
                self._other_output.append(line)
                continue
            event = json.loads(line)
            if event["name"] == "producer_send_success" and event["offset"] < 0:
                self._somewhere.append((event["partition"], event["value"]))
            elif event["name"] == "producer_send_success":
                self.acknowledged[event["partition"], event["offset"]] = event["value"]
            elif event["name"] == "producer_send_error" and not (self._is_ending and event["message"] in _NOT_SENT):
                self.failed.append(line)

    def finish(self) -> None:
        """End it; it first sends what it still holds, which may take as long as a record's timeout."""
        self._is_ending = True
        try:
            self._process.terminate()
            self._process.wait(_JAVA_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)  # it prints what each of its threads waits for
            self.join(10)
            raise AssertionError(f"it does not end; {self.failed[:3]}\n{''.join(self._other_output)}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, whatever it still holds."""
        self._process.kill()
        self._process.wait()
        if self.is_alive():
            self.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def check(self, topic: str, logs: Mapping[tuple[str, int], list[bytes]]) -> None:
        """Check that every acknowledged record is at its offset, and only there."""
        assert not self.failed, self.failed[:3]
        assert self.acknowledged, "the Java client had nothing acknowledged"
        for (partition, offset), value in self.acknowledged.items():
            values = logs[topic, partition]
            assert offset < len(values), f"{topic}-{partition}: acknowledged offset {offset} is lost"
            assert values[offset] == value.encode(), f"{topic}-{partition}: offset {offset} holds another record"
        for partition, value in self._somewhere:
            assert value.encode() in logs[topic, partition], (
                f"{topic}-{partition}: {value} was acknowledged and is lost"
            )
        own = [value for (name, _), values in logs.items() if name == topic for value in values if value.isdigit()]
        assert len(own) == len(dict.fromkeys(own)), "a record of an idempotent producer is duplicated"
