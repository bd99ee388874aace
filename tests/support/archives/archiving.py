"""Topics archived in tests by the pipeline's job in the shared session, and archives compared with their topics."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tailrace.archive.location import open_location
from tailrace.archive.manifest import load_snapshot
from tailrace.archive.verify import Report, verify
from tailrace.client.archive import describe
from tailrace.pipeline.archiving.archiver import archive_topics
from tailrace.pipeline.archiving.commit import TopicArchiver
from tailrace.pipeline.archiving.plan import FILE_BYTES
from tailrace.pipeline.archiving.round import Round
from tailrace.pipeline.archiving.setup import open_archives
from tailrace.pipeline.jobs.run import Stop
from tailrace.pipeline.spark import warm_python
from tests.support.archives.archived_topics import FIRST_TIME
from tests.support.records import Received, Record

#: Small enough that a few thousand records are many files and several rounds.
SMALL_FILE_BYTES = 1 << 20
#: A Python that Spark's own are forks of, and the process that it was loaded for.
_LOADED_PYTHON = re.compile(rf"{re.escape(warm_python.__name__)} import serve; serve\(\d+, (\d+)\)".encode())


def large_records(count: int, partitions: int = 2) -> list[Record]:
    """Records of a kilobyte that cannot be compressed, spread over partitions, of one time after the other."""
    generator = random.Random(count)
    return [
        Record(generator.randbytes(1000), b"key %d" % number, (), FIRST_TIME + number, number % partitions)
        for number in range(count)
    ]


@dataclass
class Archiving:
    """One who archives topics, with all that was said."""

    spark: SparkSession
    bootstrap: str
    place: Path
    file_bytes: int = FILE_BYTES
    said: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)
    #: How archives are opened again that could not be, or that are elsewhere now.
    reopen: Callable[[str], TopicArchiver] | None = None

    def open(self, *topics: str) -> list[TopicArchiver]:
        return open_archives(self.bootstrap, topics, str(self.place), self.said.append, self.warnings.append)

    def run(self, archivers: Sequence[TopicArchiver], every_ms: int | None = None) -> list[Round]:
        """Archive until all is done or, with a span of time, until stopped; the rounds of all runs."""
        archive_topics(
            self.spark,
            self.bootstrap,
            archivers,
            every_ms=every_ms,
            report=self.rounds.append,
            warn=self.warnings.append,
            stop=self.stop,
            file_bytes=self.file_bytes,
            reopen=self.reopen,
        )
        return self.rounds

    def once(self, *topics: str) -> list[Round]:
        return self.run(self.open(*topics))


def verified(bootstrap: str, topic: str) -> Report:
    """The archive of a topic, checked file by file against its manifests and what brokers believe."""
    status = describe(bootstrap, topic)
    report = verify(open_location(status.uri), status.archive, status.partitions)
    assert report.is_sound, report.findings
    return report


def archived_records(bootstrap: str, topic: str, partition: int) -> list[Received]:
    """What is archived of a partition, as a plain reader of Parquet finds it in the files that the manifest names."""
    status = describe(bootstrap, topic)
    snapshot = load_snapshot(open_location(status.uri), status.archive)
    found: list[Received] = []
    for file in snapshot.partition(partition).files:
        table = pq.read_table(Path(status.uri) / snapshot.directory / file.name, partitioning=None)
        assert set(table.column("topic").to_pylist()) == {topic}
        times = table.column("timestamp").cast(pa.int64()).to_pylist()
        found += [_received(row, time) for row, time in zip(table.to_pylist(), times, strict=True)]
    return found


def _received(row: dict[str, Any], timestamp_ms: int) -> Received:
    headers = tuple((header["key"], header["value"]) for header in row["headers"])
    return Received(
        row["partition"], row["offset"], timestamp_ms, row["timestamp_type"] == 1, row["key"], row["value"], headers
    )


# --- moments at which something is killed


def names_below(place: Path) -> Iterator[str]:
    """Every file of an archive, those that are being written among them."""
    for _, _, files in os.walk(place):
        yield from files


class Ambush(threading.Thread):
    """Does something each time a new file of a kind appears in an archive, up to a number of times."""

    def __init__(self, place: Path, is_it: Callable[[str], bool], strike: Callable[[], bool], times: int) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._is_it = is_it
        self._strike = strike
        self._times = times
        self._known = set(names_below(place))
        self._ended = threading.Event()
        self.struck = 0

    def run(self) -> None:
        while self.struck < self._times and not self._ended.wait(0.001):
            new = set(names_below(self._place)) - self._known
            self._known |= new
            if any(map(self._is_it, new)) and self._strike():
                self.struck += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


def kill_python_workers() -> bool:
    """Kill every Python worker of the Spark that this process has started; whether there was one."""
    killed = False
    ours = set(_descendants(os.getpid()))
    for pid in _processes():
        if _is_python_worker(pid, ours):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed = True
    return killed


def _is_python_worker(pid: int, ours: set[int]) -> bool:
    """Whether a process is a worker, which is in the group of the daemon that it was forked from.

    The daemon is a child of Spark, or a fork of a Python that names Spark in its command line.
    """
    command = _command_line(pid)
    loaded = _LOADED_PYTHON.search(command)
    if not (int(loaded[1]) in ours if loaded else pid in ours and b"pyspark.daemon" in command):
        return False
    try:
        daemon = os.getpgid(pid)
    except ProcessLookupError:
        return False
    return daemon != pid and _command_line(daemon) == command


def _processes() -> Iterator[int]:
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _processes():
        children.setdefault(_parent(pid), []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        found += (below := children.get(waiting.pop(), []))
        waiting += below
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
