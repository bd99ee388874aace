"""librdkafka beside batches that it cannot decode: it reads runs of other batches, in a process of its own.

librdkafka never ends with a gzip stream that is cut: it returns nothing else of the same answer, and the consumer
cannot be closed. So each answer has one batch, each run has a consumer of its own that is never closed, and the
process ends without waiting for any thread.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from tests.support.clients.confluent_client import ConfluentClient, place_of

_PATIENCE_SECONDS = 60
_ROOT = Path(__file__).resolve().parents[3]
#: Importing takes time as well.
_PROCESS_SECONDS = 300


class Run(NamedTuple):
    """Offsets from the first on, without a gap."""

    first: int
    records: int


class Consumed(NamedTuple):
    """A record as a consumer has it; names of headers are left out: confluent-kafka has none that are not text."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def consume_apart(bootstrap: str, topic: str, runs: Sequence[Run]) -> list[Consumed]:
    """The records of runs of partition 0, one run after the other."""
    asked = pickle.dumps((bootstrap, topic, [tuple(run) for run in runs]))
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=asked,
        capture_output=True,
        timeout=_PROCESS_SECONDS,
        check=False,
        cwd=_ROOT,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [Consumed(*each) for each in pickle.loads(done.stdout)]


def consume(consumer: Consumer, topic: str, run: Run) -> list[Consumed]:
    """The records of one run of partition 0; an error with the received ones if they are not complete in time."""
    consumer.assign([TopicPartition(topic, 0, run.first)])
    found: list[Consumed] = []
    errors: list[str] = []
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(found) < run.records:
        for message in consumer.consume(run.records - len(found), timeout=1):
            if message.error() is None:
                offset = place_of(message)[2]
                found.append(Consumed(offset, message.timestamp()[1], message.key(), message.value()))
            else:
                errors.append(str(message.error()))
        if time.monotonic() > deadline:
            raise AssertionError(f"{topic}: {run} gave offsets {[each.offset for each in found]}, and {errors}")
    return found


def main() -> None:
    """Consume what standard input names."""
    bootstrap, topic, runs = pickle.load(sys.stdin.buffer)
    found: list[tuple[object, ...]] = []
    consumers = []
    for first, records in runs:
        # Python closes a consumer without references.
        consumers.append(ConfluentClient(bootstrap).consumer(max_partition_fetch_bytes=1))
        found += map(tuple, consume(consumers[-1], topic, Run(first, records)))
    sys.stdout.buffer.write(pickle.dumps(found))
    sys.stdout.buffer.flush()
    # Not a normal exit of Python, which would close them all.
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
