"""Requests of every API and version, and record batches, changed at random: nothing breaks, nothing grows.

A real broker takes them over the network and goes on serving others, for TAILRACE_FAULT_FUZZ_SECONDS. A broker inside
the test's own process takes many more, TAILRACE_FAULT_FUZZ_FRAMES of them (10,000,000 for a thorough run), with a line
of progress now and then. TAILRACE_FAULT_SEED chooses the changes; the seed is printed. A frame that breaks something is
found again by its seed and number.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from tailrace.broker.assembly import Broker
from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.handlers import APIS
from tailrace.broker.network.buffers import BufferPool
from tailrace.broker.network.connection import Connection
from tailrace.broker.network.request_memory import RequestMemory
from tailrace.broker.network.router import Router
from tailrace.cluster.image import TopicImage
from tailrace.errors import KafkaError, WireError
from tailrace.records.batch import iterate_batches
from tailrace.records.compression import Compression
from tailrace.records.recompression import repack, unpack
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.records.record_checks import RecordScan
from tailrace.runtime.system import system_runtime
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.system.network import SystemNetwork
from tailrace.stores.memory import MemoryStore
from tailrace.wire.apis import ApiKey
from tests.support.brokers.watched_broker import WatchedBroker, produce_request, small_batch
from tests.support.clients.raw_client import RawClient, frame_of, request_frame
from tests.support.messages import REQUESTS
from tests.unit.broker.memory_transport import MemoryTransport
from tests.unit.wire.strategies import sample

SECONDS = float(os.environ.get("TAILRACE_FAULT_FUZZ_SECONDS", "30"))
FRAMES = int(os.environ.get("TAILRACE_FAULT_FUZZ_FRAMES", "200000"))
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
    # Topics with fuzzed names would fill the memory, and prove nothing here.
    config = {"auto.create.topics.enable": "false", "socket.request.max.bytes": str(1 << 20)}
    with WatchedBroker(tmp_path / "data", config=config) as process:
        yield process


class Mutations:
    """Endless damaged requests, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._bodies = [
            (key, version, bytes(sample(REQUESTS[key], version).encode(version)))
            for key, api in sorted(APIS.items())
            for version in range(api.first_decodable, api.max_version + 1)
        ]

        self._batches = [
            bytes(
                build_batch(
                    [
                        NewRecord(self._random.randbytes(self._random.randrange(40)), b"key", timestamp=1)
                        for _ in range(self._random.randrange(1, 5))
                    ],
                    compression=codec,
                )
            )
            for codec in Compression
            for _ in range(200)
        ]

    def next_body(self) -> tuple[int, int, bytes]:
        """API key, version and damaged body of a request, generated cheaply."""
        source = self._random
        chance = source.random
        key, version, body = self._bodies[int(chance() * len(self._bodies))]
        if not body or chance() < 0.1:
            return key, version, self._mutated(body)
        changed = bytearray(body)
        for _ in range(1 + int(chance() * 3)):
            changed[int(chance() * len(changed))] = int(chance() * 256)
        return key, version, bytes(changed[: int(chance() * len(changed))] if chance() < 0.1 else changed)

    def next_batch(self) -> bytes:
        """A record batch with changes, mostly with a matching length and CRC."""
        return self._damaged(self._random.choice(self._batches))

    def _damaged(self, batch: bytes) -> bytes:
        source = self._random
        changed = bytearray(self._mutated(batch) if source.random() < 0.9 else batch)
        if source.random() < 0.6 and len(changed) > 61:
            struct.pack_into(">i", changed, 8, len(changed) - 12)
            changed[16] = 2
            changed[17:21] = _crc(bytes(changed[21:]))
        return bytes(changed)

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
        batch = self.next_batch()
        version = source.randrange(3, 13)
        return request_frame(produce_request(TARGET, batch, acks=source.choice((0, 1, -1))), version)

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
    """A well-behaved client that keeps producing and fetching, and records how long it waits."""

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
        except BaseException as error:  # noqa: BLE001  reported to the thread that waits for this one
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
    client = connect(broker)
    try:
        for frame in frames:
            try:
                client.send(frame)
                reply = client.receive_frame()
            except TimeoutError:
                continue  # no acknowledgement wanted, an unfinished frame, a long poll, or a busy machine
            if reply is not None:
                answered += 1
                continue
            client.socket.close()
            client = connect(broker)
    finally:
        client.socket.close()
    return answered


def connect(broker: WatchedBroker) -> RawClient:
    """A connection that waits only briefly for answers; connecting may take longer."""
    client = RawClient(broker.port)
    client.socket.settimeout(_ANSWER_SECONDS)
    return client


def first_traceback(output: str) -> str:
    """The first stack trace of an output with the line before it."""
    at = output.index("Traceback")
    return output[max(0, at - 300) : at + 3000]


# --- inside this process

#: After this many frames, the broker starts over on an empty directory: topics and groups that damaged requests
#: created are no leak, but would hide one.
_ROUND_FRAMES = 250_000
_OWN_GROUP = 1000
#: Shares of the frames: those that are only decoded, and batches that are only read. The rest goes to a broker.
_DECODED_SHARE = 0.8
_BATCH_SHARE = 0.1
_PROGRESS_SECONDS = 30.0
_OWN_GROWTH_BYTES = 48 << 20


class Crowd:
    """Connections without sockets to a broker in this process."""

    def __init__(self, broker: Broker) -> None:
        self._router = Router(broker.services, broker.requests)
        self._scratch = memoryview(bytearray(1 << 20))
        self._pool = BufferPool()
        self.memory = RequestMemory()
        self.answered = 0

    async def send_group(self, frames: list[bytes]) -> None:
        """Deliver frames one after another, on a new connection whenever the broker has closed one."""
        transport = self._connect()
        for frame in frames:
            if transport.is_closed or not transport.is_reading:
                self._leave(transport)
                transport = self._connect()
            transport.deliver(frame)
        await asyncio.sleep(0)
        self._leave(transport)
        await asyncio.sleep(0)

    def _connect(self) -> MemoryTransport:
        transport = MemoryTransport()
        transport.receiver = Connection(
            transport,
            "PLAINTEXT",
            self._router.answer,
            self._scratch,
            1 << 20,
            lambda connection: None,
            SystemClock(),
            self._pool,
            self.memory,
        )
        return transport

    def _leave(self, transport: MemoryTransport) -> None:
        self.answered += len(transport.sends)
        transport.disconnect()


def is_decodable(key: int, version: int, body: bytes) -> bool:
    """Decode a request; anything invalid must raise WireError and nothing else."""
    try:
        APIS[key].decode(version, memoryview(body))
    except WireError:
        return False
    return True


def look_into(batch: bytes) -> int:
    """Read a batch in every way that the broker has; return the number of records."""
    found = 0
    for position, header in iterate_batches(batch):
        try:
            found += sum(1 for _ in iterate_records(batch, header, position, limit=1 << 20))
        except KafkaError:
            pass
        whole = batch[position : position + header.size]
        try:
            records = unpack(whole, header, 1 << 20)
            repack(whole, header, records, Compression.LZ4, None)
            scan = RecordScan(bytes(records), header, (0, 1))
            while not scan.advance(1000):
                pass
        except KafkaError:
            pass
    return found


def own_resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not say how much memory this process has")


async def fuzz_round(directory: Path, mutations: Mutations, frames: int) -> tuple[int, int]:
    """Run one broker; return the number of answered frames, and of records found in damaged batches."""
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "auto.create.topics.enable": "false",
            "socket.request.max.bytes": str(1 << 20),
        }
    )
    failures: list[BaseException] = []
    runtime = system_runtime(512, SystemNetwork())
    broker = Broker(config, runtime, MemoryStore())
    broker.on_fatal = failures.append
    await broker.start()
    crowd = Crowd(broker)
    decoded, batches = int(_DECODED_SHARE * _OWN_GROUP), int(_BATCH_SHARE * _OWN_GROUP)
    found, left = 0, frames
    try:
        while left > 0:
            if TARGET not in broker.metadata.image.topics:
                wanted: TopicImage = broker.metadata.plan_topic(TARGET, 8, 1, {}, {})
                await broker.metadata.create_topic(wanted)
            await crowd.send_group([mutations.next_frame() for _ in range(_OWN_GROUP - decoded - batches)])
            crowd.answered += sum([is_decodable(*mutations.next_body()) for _ in range(decoded)])
            found += sum([look_into(mutations.next_batch()) for _ in range(batches)])
            left -= _OWN_GROUP
            assert not failures, failures
        assert crowd.memory.held_bytes == 0, "connections that ended hold memory"
        return crowd.answered, found
    finally:
        await broker.stop()


def test_very_many_damaged_frames_and_batches_leave_memory_flat(tmp_path: Path) -> None:
    print(f"seed {SEED}, {FRAMES} frames and batches")
    mutations = Mutations(SEED)
    started = said = time.monotonic()
    done = answered = found = 0
    sizes: list[int] = []
    unexpected = Unexpected()
    logger = logging.getLogger("tailrace")
    logger.addHandler(unexpected)
    # One line for each refused frame is right, but ten million are too many.
    logger.propagate = False
    logging.disable(logging.WARNING)
    try:
        number = 0
        while done < FRAMES:
            size = min(_ROUND_FRAMES, FRAMES - done)
            directory = tmp_path / f"round-{number}"
            of_round = asyncio.run(fuzz_round(directory, mutations, size))
            shutil.rmtree(directory)
            number += 1
            done += size
            answered += of_round[0]
            found += of_round[1]
            sizes.append(own_resident_bytes())
            assert unexpected.first is None, f"after at most {done} frames of seed {SEED}: {unexpected.first}"
            if time.monotonic() - said > _PROGRESS_SECONDS or done >= FRAMES:
                said = time.monotonic()
                print(
                    f"{done} of {FRAMES} in {said - started:.0f} s, {answered} sound enough, {found} records read; "
                    f"{sizes[-1] >> 20} MiB",
                    flush=True,
                )
    finally:
        logging.disable(logging.NOTSET)
        logger.propagate = True
        logger.removeHandler(unexpected)
    assert answered > FRAMES // 20, "hardly anything was looked at"
    assert found > FRAMES // 100, "hardly any record could be read"
    # The first rounds fill caches: compiled codecs, interned names, the allocator's arenas.
    settled = sizes[min(len(sizes) - 1, len(sizes) // 3)]
    assert sizes[-1] - settled < _OWN_GROWTH_BYTES, [size >> 20 for size in sizes]


class Unexpected(logging.Handler):
    """Keeps the first line about an unexpected failure."""

    def __init__(self) -> None:
        super().__init__()
        self.first: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self.first is None:
            self.first = logging.Formatter().format(record)
