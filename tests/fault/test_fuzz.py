"""Requests of every API and version, changed at random, against a real broker that goes on serving others.

TAILRACE_FAULT_FUZZ_SECONDS sets for how long, TAILRACE_FAULT_SEED which changes; the seed is printed. A frame that
breaks something is found again by its seed and number.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from tailrace.broker.handlers import APIS
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages import REQUESTS
from tests.support.raw_client import RawClient, frame_of, request_frame
from tests.support.watched_broker import WatchedBroker, produce_request, small_batch
from tests.unit.wire.strategies import sample

SECONDS = float(os.environ.get("TAILRACE_FAULT_FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("TAILRACE_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)

#: Frames are sent in groups on one connection each, so that what one leaves behind meets the next.
_GROUP = 20
#: Most answers come within a millisecond; waiting longer only makes fewer frames.
_ANSWER_SECONDS = 0.01
#: The first part of the run fills caches: compiled codecs, fetch sessions, topics that fuzzing created.
_WARM_UP_SHARE = 0.3
GROWTH_BYTES = 32 << 20
PATIENCE_SECONDS = 2.0
TARGET, OTHER = "text", "others"

_INTERESTING = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\0\0",
    b"\xff\xff",
    b"\x7f\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff\x0f",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    TARGET.encode(),
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[WatchedBroker]:
    # Topics that fuzzed names would create are not what is looked for here, and would fill the memory.
    config = {"auto.create.topics.enable": "false", "socket.request.max.bytes": str(1 << 20)}
    with WatchedBroker(tmp_path / "data", config=config) as process:
        yield process


class Mutations:
    """An endless supply of damaged requests; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._bodies = [
            (key, version, bytes(sample(REQUESTS[key], version).encode(version)))
            for key, api in sorted(APIS.items())
            for version in range(api.first_decodable, api.max_version + 1)
        ]

    def next_frame(self) -> bytes:
        source = self._random
        if source.random() < 0.3:
            return self._fuzzed_produce()
        key, version, body = source.choice(self._bodies)
        changed = self._mutated(body)
        frame = frame_of(key, version, changed, flexible=version >= REQUESTS[key].FLEXIBLE_FROM)
        # Some frames are damaged as a whole, header and length included; a delete of the target would end the test.
        if source.random() < 0.15 and key != ApiKey.DELETE_TOPICS:
            frame = self._mutated(frame)
        return frame

    def _fuzzed_produce(self) -> bytes:
        """A sound request around a damaged batch, sometimes with the CRC made right for the damage."""
        source = self._random
        records = [
            NewRecord(source.randbytes(source.randrange(40)), timestamp=1) for _ in range(source.randrange(1, 5))
        ]
        batch = bytearray(build_batch(records, compression=source.choice(list(Compression))))
        if source.random() < 0.9:
            batch = bytearray(self._mutated(bytes(batch)))
        if source.random() < 0.6 and len(batch) > 61:
            struct.pack_into(">i", batch, 8, len(batch) - 12)
            batch[16] = 2
            batch[17:21] = _crc(bytes(batch[21:]))
        version = source.randrange(3, 13)
        return request_frame(produce_request(TARGET, bytes(batch), acks=source.choice((0, 1, -1))), version)

    def _mutated(self, data: bytes) -> bytes:
        source = self._random
        changed = bytearray(data)
        for _ in range(source.choice((1, 1, 1, 2, 4, 8))):
            at = source.randrange(len(changed) + 1)
            way = source.randrange(6)
            if way == 0 and at < len(changed):
                changed[at] ^= 1 << source.randrange(8)
            elif way == 1:
                piece = source.choice(_INTERESTING)
                changed[at : at + len(piece)] = piece
            elif way == 2:
                changed[at:at] = source.choice(_INTERESTING)
            elif way == 3:
                del changed[at : at + source.randrange(1, 9)]
            elif way == 4:
                changed[at:at] = source.randbytes(source.randrange(1, 30))
            else:
                start = source.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + source.randrange(1, 40)]
        return bytes(changed)


def _crc(data: bytes) -> bytes:
    return int(crc32c(data)).to_bytes(4, "big")


class Regular(threading.Thread):
    """A well-behaved client that produces and fetches all the while and notes how long it had to wait."""

    def __init__(self, broker: WatchedBroker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._ending = threading.Event()
        self.served = 0
        self.worst_seconds = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ending.wait(0.02):
                self.worst_seconds = max(self.worst_seconds, self._broker.serve_once(OTHER))
                self.served += 1
        except BaseException as error:  # noqa: BLE001  told to whoever waits for this thread
            self.error = error

    def finish(self) -> None:
        self._ending.set()
        self.join(60)
        if self.error is not None:
            raise self.error


def test_a_broker_survives_damaged_requests_of_every_api_and_serves_others(broker: WatchedBroker) -> None:
    print(f"seed {SEED}")
    pid = broker.pid
    for topic in (TARGET, OTHER):
        broker.create_topic(topic, partitions=8 if topic == TARGET else 1)
    assert broker.produce(TARGET, small_batch()).error_code == 0
    mutations = Mutations(SEED)
    regular = Regular(broker)
    regular.start()
    started = time.monotonic()
    sent = answered = 0
    warm_bytes: int | None = None
    while (elapsed := time.monotonic() - started) < SECONDS:
        if warm_bytes is None and elapsed > SECONDS * _WARM_UP_SHARE:
            warm_bytes = broker.resident_bytes()
        frames = [mutations.next_frame() for _ in range(_GROUP)]
        answered += send_group(broker, frames)
        sent += _GROUP
        assert broker.is_running, f"the broker ended after {sent} frames of seed {SEED}\n{broker.error_output()}"
    regular.finish()
    assert warm_bytes is not None
    growth = broker.resident_bytes() - warm_bytes
    print(
        f"{sent} frames sent, {answered} answered; {regular.served} rounds of another client, the slowest "
        f"{regular.worst_seconds:.3f} s; {warm_bytes >> 20} MiB when warm, {growth / (1 << 20):+.1f} MiB since"
    )
    assert broker.pid == pid
    output = broker.all_error_output()
    assert "Traceback" not in output, first_traceback(output)
    assert answered > sent // 20, "the broker hardly looked at anything"
    assert regular.served > SECONDS, "the other client was hardly served"
    assert regular.worst_seconds < PATIENCE_SECONDS
    assert growth < GROWTH_BYTES


def send_group(broker: WatchedBroker, frames: list[bytes]) -> int:
    """Send frames, each on the connection of the one before it while that lasts; how many were answered."""
    answered = 0
    client = RawClient(broker.port, timeout_seconds=_ANSWER_SECONDS)
    try:
        for frame in frames:
            client.send(frame)
            try:
                reply = client.receive_frame()
            except TimeoutError:
                continue  # no acknowledgement wanted, an unfinished frame, or a long poll
            if reply is not None:
                answered += 1
                continue
            client.socket.close()
            client = RawClient(broker.port, timeout_seconds=_ANSWER_SECONDS)
    finally:
        client.socket.close()
    return answered


def first_traceback(output: str) -> str:
    """The first stack trace of an output with the line before it."""
    at = output.index("Traceback")
    return output[max(0, at - 300) : at + 3000]
