"""kcat (librdkafka 2.0 and older request versions) behind the common shape of the client tests.

kcat has one set of headers for a run and cannot set timestamps, so records sent in one call share their headers.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.records import (
    MESSAGE_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Received,
    Record,
    RefusedError,
)

_CODES = {
    "Broker: Message size too large": MESSAGE_TOO_LARGE,
    "Broker: Unknown topic or partition": UNKNOWN_TOPIC_OR_PARTITION,
}


class KcatClient:
    """Produces and consumes by running kcat."""

    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        # By itself it gives up a busy broker after five seconds.
        self._kcat = ("kcat", "-b", bootstrap, "-m", "60")

    def run(self, *arguments: str, stdin: bytes = b"", timeout_seconds: int = 180) -> bytes:
        """Run kcat to its end and give its output; a failure is a refusal."""
        done = subprocess.run(
            [*self._kcat, *arguments],
            input=stdin,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise _refusal(done.stderr)
        return done.stdout

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        patience_ms: int = 60_000,
        partitioner: str = "murmur2_random",
    ) -> None:
        """Send all and wait for all; kcat does not say where they went."""
        by_partition: dict[int | None, list[Record]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(record)
        for partition, share in by_partition.items():
            (headers,) = {record.headers for record in share}
            arguments = ["-P", "-t", topic, "-z", compression, "-K", "\x1f", "-D", "\x1e", "-Z"]
            arguments += ["-p", str(-1 if partition is None else partition)]
            for name, value in headers:
                arguments += ["-H", name if value is None else f"{name}={value.decode()}"]
            for setting in (
                f"acks={acks}",
                f"partitioner={partitioner}",
                "message.max.bytes=10000000",
                f"message.timeout.ms={patience_ms}",
                f"topic.metadata.propagation.max.ms={min(patience_ms, 30_000)}",
            ):
                arguments += ["-X", setting]
            lines = [(record.key or b"") + b"\x1f" + (record.value or b"") for record in share]
            self.run(*arguments, stdin=b"\x1e".join(lines))

    def consume(
        self,
        topic: str,
        partition: int,
        count: int,
        *,
        start: int | str = 0,
        max_wait_ms: int = 500,
        after_first: Callable[[], None] | None = None,
        timeout_seconds: int = 120,
    ) -> list[Received]:
        """Read `count` records from an offset (or `s@<timestamp>`) on, or fewer when the time is over."""
        command = [*self._kcat, "-C", "-J", "-q", "-u", "-t", topic, "-p", str(partition)]
        command += ["-o", str(start), "-c", str(count), "-X", f"fetch.wait.max.ms={max_wait_ms}"]
        received: list[Received] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # Ended by the timer, kcat leaves the records it has read so far.
            timer = threading.Timer(timeout_seconds, process.terminate)
            timer.start()
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                for line in process.stdout:
                    received.append(_received(json.loads(line)))
                    if len(received) == 1 and after_first is not None:
                        after_first()
                errors = process.stderr.read()
                if process.wait() > 0:
                    raise _refusal(errors)
            finally:
                timer.cancel()
                timer.join()
        return received

    def metadata(self) -> dict[str, Any]:
        """What `kcat -L` knows of the cluster."""
        answer: dict[str, Any] = json.loads(self.run("-L", "-J"))
        return answer

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, None where all records are older."""
        answer = json.loads(self.run("-Q", "-J", "-t", f"{topic}:{partition}:{timestamp_ms}"))
        offset = answer[topic][str(partition)]["offset"]
        return int(offset) if offset >= 0 else None

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first and the end offset of each partition."""
        asked = [f"{topic}:{number}" for number in partitions]
        first, last = (
            json.loads(self.run("-Q", "-J", *(word for one in asked for word in ("-t", f"{one}:{which}"))))[topic]
            for which in (-2, -1)
        )
        return {number: (first[str(number)]["offset"], last[str(number)]["offset"]) for number in partitions}


def _refusal(errors: bytes) -> RefusedError:
    text = errors.decode(errors="replace").strip()
    return RefusedError(next((code for words, code in _CODES.items() if words in text), None), text)


def _received(fields: dict[str, Any]) -> Received:
    headers = fields.get("headers") or []
    return Received(
        fields["partition"],
        fields["offset"],
        fields["ts"],
        fields["tstype"] == "logappend",
        None if fields["key"] is None else fields["key"].encode(),
        None if fields["payload"] is None else fields["payload"].encode(),
        tuple((name, value.encode()) for name, value in zip(headers[::2], headers[1::2], strict=True)),
    )
