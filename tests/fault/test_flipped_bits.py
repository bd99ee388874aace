"""Bits that changed on the disk while the broker was away: never served as if they were sound, never the end of more
than they belong to, and nothing that is still there is lost."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.errors import ErrorCode
from tailrace.records.batch import has_valid_crc, iterate_batches
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.storage.directory_identity import META_PROPERTIES
from tailrace.wire.messages.fetch import FetchResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.support.brokers.broker_process import EXECUTABLE, free_port
from tests.support.brokers.watched_broker import WatchedBroker, fetch_request, produce_request, small_batch
from tests.support.clients.raw_client import RawClient

TOPIC, OTHER = "damaged", "sound"
#: Three segments of a mebibyte, in batches of a few records.
BATCHES = 900
RECORDS = 4
VALUE_BYTES = 800
COUNT = BATCHES * RECORDS
SEED = 20


def value_of(offset: int) -> bytes:
    return b"%08d" % offset + bytes(VALUE_BYTES - 8)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[WatchedBroker]:
    """A broker that was stopped with a log of several segments."""
    process = WatchedBroker(tmp_path / "data", config={"log.segment.bytes": str(1 << 20)})
    process.start()
    for topic in (TOPIC, OTHER):
        process.create_topic(topic)
    with RawClient(process.port) as client:
        for number in range(BATCHES):
            first = number * RECORDS
            records = [NewRecord(value_of(first + step), timestamp=1000 + first + step) for step in range(RECORDS)]
            batch = build_batch(records, producer_id=77, producer_epoch=0, base_sequence=first)
            answer = client.ask(produce_request(TOPIC, bytes(batch)), 9, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
    assert process.produce(OTHER, small_batch()).error_code == 0
    process.stop()
    yield process
    if process.is_running:
        process.stop()


def files(broker: WatchedBroker, suffix: str) -> list[Path]:
    found = sorted((broker.data_dir / f"{TOPIC}-0").glob(f"*{suffix}"))
    assert found, f"no {suffix} file"
    return found


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file on disk, not only in the page cache."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
        file.flush()
        os.fsync(file.fileno())
        # Drop its pages: a broker that starts much later finds nothing cached.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_from(broker: WatchedBroker, offset: int, *, max_bytes: int = 300_000) -> tuple[int, list[int]]:
    """Fetch from an offset; return the error code, and the offsets of the records, which must be intact."""
    with RawClient(broker.port) as client:
        request = fetch_request(TOPIC, offset, max_bytes=max_bytes)
        (data,) = client.ask(request, 11, FetchResponse).responses[0].partitions
    offsets: list[int] = []
    for position, header in iterate_batches(bytes(data.records or b"")):
        assert has_valid_crc(bytes(data.records or b""), header, position), f"a corrupt batch at {header.base_offset}"
        for record in iterate_records(bytes(data.records or b""), header, position):
            assert record.value == value_of(record.offset)
            offsets.append(record.offset)
    return data.error_code, offsets


def readable(broker: WatchedBroker) -> set[int]:
    """Every readable offset, skipping what cannot be read."""
    found: set[int] = set()
    offset = 0
    while offset < COUNT:
        error, offsets = read_from(broker, offset)
        if error:
            assert error == ErrorCode.CORRUPT_MESSAGE
            offset += RECORDS
            continue
        assert offsets, f"nothing at {offset} and no error"
        found |= set(offsets)
        offset = max(offsets) + 1
    return found


def check_others(broker: WatchedBroker) -> None:
    """Check that intact records are served and that nothing failed unexpectedly."""
    assert broker.produce(OTHER, small_batch()).error_code == 0
    output = broker.all_error_output()
    assert "Traceback" not in output, output[-4000:]
    assert " CRITICAL " not in output, output[-4000:]


def continues(broker: WatchedBroker) -> None:
    """Check that the producer's next batch is accepted, and that a repeated one is recognized."""
    records = [NewRecord(value_of(COUNT + step), timestamp=2000 + COUNT) for step in range(RECORDS)]
    batch = bytes(build_batch(records, producer_id=77, producer_epoch=0, base_sequence=COUNT))
    assert broker.produce(TOPIC, batch).base_offset == COUNT
    assert broker.produce(TOPIC, batch).base_offset == COUNT


# --- records


@pytest.mark.parametrize("which", [0, 1])
def test_a_flipped_bit_in_an_old_segment_is_found_before_it_is_sent(which: int, broker: WatchedBroker) -> None:
    segment = files(broker, ".log")[which]
    first = int(segment.stem)
    flip(segment, segment.stat().st_size // 2, 3)
    broker.start()
    found = readable(broker)
    lost = sorted(set(range(COUNT)) - found)
    following = int(files(broker, ".log")[which + 1].stem)
    assert lost, "the damaged batch was sent"
    assert first < lost[0]
    assert lost[-1] < following, "what follows in other segments is served"
    assert "is corrupt at position" in broker.all_error_output()
    assert broker.end_offset(TOPIC) == COUNT
    continues(broker)
    check_others(broker)


def test_a_flipped_bit_in_the_newest_segment_after_a_crash_cuts_it_there_and_says_so(broker: WatchedBroker) -> None:
    broker.start()
    broker.kill()
    segment = files(broker, ".log")[-1]
    flip(segment, segment.stat().st_size // 2, 3)
    broker.start()
    end = broker.end_offset(TOPIC)
    assert int(segment.stem) < end < COUNT
    assert readable_up_to(broker, end) == set(range(end))
    assert re.search(rf"truncated \S*{segment.name} at position \d+ \(offset {end}\)", broker.all_error_output())
    check_others(broker)


def readable_up_to(broker: WatchedBroker, end: int) -> set[int]:
    found: set[int] = set()
    while len(found) < end:
        error, offsets = read_from(broker, len(found))
        assert error == 0
        assert offsets
        found |= set(offsets)
    return found


# --- what only helps to find records


@pytest.mark.parametrize("way", ["stopped", "killed"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_flipped_bits_in_an_index_cost_no_record(suffix: str, way: str, broker: WatchedBroker) -> None:
    source = random.Random(SEED)
    if way == "killed":
        broker.start()
        broker.kill()
    for path in files(broker, suffix):
        for _ in range(20):
            if path.stat().st_size:
                flip(path, source.randrange(path.stat().st_size), source.randrange(8))
    broker.start()
    assert readable(broker) == set(range(COUNT))
    for offset in source.sample(range(COUNT), 50):
        error, offsets = read_from(broker, offset, max_bytes=1)
        assert error == 0
        assert offset in offsets
    continues(broker)
    check_others(broker)


def test_flipped_bits_in_producer_snapshots_cost_no_producer_its_place(broker: WatchedBroker) -> None:
    for path in files(broker, ".snapshot"):
        flip(path, path.stat().st_size // 2)
    broker.start()
    assert readable(broker) == set(range(COUNT))
    continues(broker)
    assert "producer snapshot is corrupt" in broker.all_error_output()
    check_others(broker)


@pytest.mark.parametrize("way", ["stopped", "killed"])
@pytest.mark.parametrize(
    "name",
    [
        f"{TOPIC}-0/leader-epoch-checkpoint",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        f"{TOPIC}-0/partition.metadata",
    ],
)
@pytest.mark.parametrize("bit", [0, 6])
def test_flipped_bits_in_small_files_cost_no_record(name: str, bit: int, way: str, broker: WatchedBroker) -> None:
    path = broker.data_dir / name
    if way == "killed":
        broker.start()
        broker.kill()
    before = path.read_bytes()
    for position in range(0, len(before), max(1, len(before) // 6)):
        flip(path, position, bit)
    broker.start()
    directory = broker.data_dir / f"{TOPIC}-0"
    if broker.end_offset(TOPIC) == 0:
        # The file that names the topic was damaged, so the records are set aside, complete.
        (directory,) = broker.data_dir.glob(f"{TOPIC}-0.*-stray")
        assert "delete it if you do not need it" in broker.all_error_output()
    else:
        assert readable(broker) == set(range(COUNT))
        continues(broker)
    assert sum(path.stat().st_size for path in directory.glob("*.log")) > COUNT * VALUE_BYTES
    check_others(broker)


# --- what a broker cannot start without


def refusal_of(broker: WatchedBroker) -> str:
    """Start a broker that must not start; return its only line."""
    command = [str(EXECUTABLE), "serve", "--data-dir", str(broker.data_dir), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1, f"ended with {done.returncode}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def damage_header(path: Path) -> None:
    flip(path, 3, 2)


def damage_pages(path: Path) -> None:
    """Damage every page except the header of the first one, so that SQLite still opens the file."""
    source = random.Random(SEED)
    for position in range(200, path.stat().st_size, 5):
        flip(path, position, source.randrange(8))


@pytest.mark.parametrize("damage", [damage_header, damage_pages])
def test_a_damaged_metadata_store_stops_the_start_and_loses_nothing(
    damage: Callable[[Path], None], broker: WatchedBroker
) -> None:
    path = broker.data_dir / "metadata.sqlite"
    before = path.read_bytes()
    damage(path)
    line = refusal_of(broker)
    assert line.startswith("Error: ")
    assert "metadata.sqlite" in line
    path.write_bytes(before)
    broker.start()
    assert readable(broker) == set(range(COUNT))


def test_a_damaged_identity_stops_the_start_and_loses_nothing(broker: WatchedBroker) -> None:
    path = broker.data_dir / META_PROPERTIES
    before = path.read_bytes()
    flip(path, before.index(b"cluster.id=") + 15)
    line = refusal_of(broker)
    assert META_PROPERTIES in line
    path.write_bytes(before)
    broker.start()
    assert readable(broker) == set(range(COUNT))
