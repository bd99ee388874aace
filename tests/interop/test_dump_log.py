"""Kafka's own `kafka-dump-log` on the files of a broker: every record is there, and no index disagrees with its log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import MakeBroker
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import DUMP_LOG, run_tool
from tests.support.records import CODECS
from tests.support.topics import create_topic

#: Files of the smallest size that Kafka's tools let a topic have, so that a partition has several.
SEGMENT_BYTES = 1_048_576
BATCHES = 40
BATCH_RECORDS = 100
VALUE_BYTES = 900

#: The tool of Kafka 4.3 expects every file to start at offset 0: it reports that -1 is followed by the first offset.
_FALSE_ALARM = re.compile(r"^Non-consecutive offsets in .*/(\d+)\.log\n  -1 is followed by (\d+)$\n?", re.MULTILINE)
#: What the tool prints about mismatches; it still exits with 0.
COMPLAINTS = (
    "Found timestamp mismatch",
    "Found out of order timestamp",
    "Mismatches in",
    "Non-consecutive offsets",
    "isvalid: false",
    "Found invalid bytes",
    "corrupt",
    "Exception",
)

_FILE = re.compile(r"^Dumping (\S+)$")
_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) producerId: (-?\d+) "
    r".*compresscodec: (\w+) crc: \d+ isvalid: true$"
)
_RECORD = re.compile(
    r"^\| offset: (\d+) CreateTime: (\d+) keySize: \d+ valueSize: (\d+) sequence: (-?\d+) headerKeys: \[(.*?)\]"
    r" key: (\S+) payload: (\S+)$"
)
_OFFSET_ENTRY = re.compile(r"^offset: (\d+) position: (\d+)$")
_TIME_ENTRY = re.compile(r"^timestamp: (\d+) offset: (\d+)$")
_PRODUCER = re.compile(r"^producerId: (\d+) producerEpoch: (\d+) .*lastSequence: (\d+) ")


def value(number: int) -> bytes:
    """Moderately compressible text, so that every codec fills several segments."""
    return (b"%d-" % number + b"%x" % pow(7919, number + 400))[:VALUE_BYTES]


def fill(broker: BrokerProcess, topic: str, codec: str, start: int, *, idempotent: bool) -> None:
    """Send batches of numbered records, one request after the other."""
    # Only the flush sends: a batch that a slow machine let go early may be too small to gain by its codec.
    producer = ConfluentClient(broker.bootstrap).producer(
        compression_type=codec, enable_idempotence=idempotent, linger_ms=60_000
    )
    for batch in range(BATCHES):
        for number in range(start + batch * BATCH_RECORDS, start + (batch + 1) * BATCH_RECORDS):
            producer.produce(topic, value(number), key=b"k%d" % number, headers=[("h1", b"x"), ("h2", None)])
        assert producer.flush(120) == 0


def dump(*arguments: str, files: list[Path]) -> dict[str, list[str]]:
    """What the tool prints of each file; a complaint fails the test."""
    named = ",".join(map(str, files))
    # It reports mismatches on stderr.
    output = run_tool(DUMP_LOG, *arguments, "--files", named, timeout_seconds=180, with_errors=True)
    output = _FALSE_ALARM.sub(lambda found: "" if int(found[1]) == int(found[2]) else found[0], output)
    printed: dict[str, list[str]] = {}
    for line in output.splitlines():
        assert not any(complaint in line for complaint in COMPLAINTS), line
        if (begun := _FILE.match(line)) is not None:
            printed[begun[1]] = []
        elif printed:
            printed[list(printed)[-1]].append(line)
    assert sorted(printed) == sorted(map(str, files))
    return printed


def check_partition(directory: Path, codec: str, count: int, *, idempotent: bool, killed: bool = False) -> None:
    """Every record of a partition is printed once and in order, and its indexes agree.

    A broker that was killed may have left the indexes of its newest segment unwritten: it makes them again.
    """
    files = {kind: sorted(directory.glob(f"*.{kind}")) for kind in ("log", "index", "timeindex", "snapshot")}
    assert len(files["log"]) == len(files["index"]) == len(files["timeindex"]) > 1
    printed = dump("--print-data-log", "--deep-iteration", files=[file for kind in files.values() for file in kind])
    batches = [found for file in files["log"] for line in printed[str(file)] if (found := _BATCH.search(line))]
    records = [found for file in files["log"] for line in printed[str(file)] if (found := _RECORD.match(line))]
    # This test checks every kind of line that the tool prints.
    shown = sum(line.startswith(("baseOffset", "| offset")) for file in files["log"] for line in printed[str(file)])
    assert shown == len(batches) + len(records)
    assert sum(int(batch[3]) for batch in batches) == len(records) == count
    assert {batch[7].lower() for batch in batches} == {codec}
    for number, record in enumerate(records):
        assert int(record[1]) == number
        assert (record[5], record[6], record[7]) == ("h1,h2", f"k{number}", value(number).decode())
    producers = {int(batch[6]) for batch in batches}
    assert (producers == {-1}) is not idempotent
    sizes = {file.stem: file.stat().st_size for file in files["log"]}
    unwritten = {
        file for kind in ("index", "timeindex") for file in files[kind][-1:] if killed and not file.stat().st_size
    }
    for file in set(files["index"]) - unwritten:
        entries = [found for line in printed[str(file)] if (found := _OFFSET_ENTRY.match(line))]
        assert len(entries) == len(printed[str(file)]) > 0
        assert all(int(file.stem) <= int(entry[1]) and int(entry[2]) < sizes[file.stem] for entry in entries)
    for file in set(files["timeindex"]) - unwritten:
        entries = [found for line in printed[str(file)] if (found := _TIME_ENTRY.match(line))]
        assert len(entries) == len(printed[str(file)]) > 0
    if idempotent:
        last = [found for line in printed[str(files["snapshot"][-1])] if (found := _PRODUCER.match(line))]
        assert {int(found[1]) for found in last} <= producers
        assert last


@pytest.fixture
def topics(make_broker: MakeBroker, topic_name: Callable[[], str]) -> tuple[BrokerProcess, dict[str, str]]:
    """A broker with a topic of several segments for each codec."""
    broker = make_broker()
    names = {codec: create_topic(broker.bootstrap, topic_name(), segment_bytes=str(SEGMENT_BYTES)) for codec in CODECS}
    for codec, topic in names.items():
        fill(broker, topic, codec, 0, idempotent=codec == "none")
    return broker, names


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_the_files_of_a_broker_are_what_the_tool_expects_when_it_was(
    way: str, topics: tuple[BrokerProcess, dict[str, str]]
) -> None:
    broker, names = topics
    if way == "stopped":
        broker.stop()
    else:
        broker.kill()
    for codec, topic in names.items():
        directory = broker.data_dir / f"{topic}-0"
        count, idempotent = BATCHES * BATCH_RECORDS, codec == "none"
        check_partition(directory, codec, count, idempotent=idempotent, killed=way == "killed")


def test_indexes_rebuilt_after_a_crash_pass_the_tools_own_checks(
    topics: tuple[BrokerProcess, dict[str, str]],
) -> None:
    broker, names = topics
    topic = names["lz4"]
    directory = broker.data_dir / f"{topic}-0"
    broker.kill()
    for kind in ("index", "timeindex"):
        for file in directory.glob(f"*.{kind}"):
            file.unlink()
    broker.start()
    fill(broker, topic, "lz4", BATCHES * BATCH_RECORDS, idempotent=False)
    broker.stop()
    check_partition(directory, "lz4", 2 * BATCHES * BATCH_RECORDS, idempotent=False)
    output = run_tool(
        DUMP_LOG, "--index-sanity-check", "--files", ",".join(map(str, sorted(directory.glob("*.index"))))
    )
    assert output.count("passed sanity check") == len(list(directory.glob("*.index")))


@pytest.mark.parametrize(
    ("kind", "position", "complaint"),
    # One more than it was, in the last byte of: the offset of an index's second entry, the first timestamp, a record.
    [("index", 11, "Mismatches in"), ("timeindex", 7, "Found timestamp mismatch"), ("log", 300, "isvalid: false")],
)
def test_the_tool_does_complain_when_a_file_is_damaged(
    make_broker: MakeBroker, topic_name: Callable[[], str], kind: str, position: int, complaint: str
) -> None:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name(), segment_bytes=str(SEGMENT_BYTES))
    fill(broker, topic, "none", 0, idempotent=False)
    broker.stop()
    file = min((broker.data_dir / f"{topic}-0").glob(f"*.{kind}"))
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    with pytest.raises(AssertionError, match=complaint):
        dump("--print-data-log", "--deep-iteration", files=[file])
