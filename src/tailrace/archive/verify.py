"""Verifies a whole archive against its manifests: every file, byte by byte.

Reports every problem, not only the first: each finding names the file and the consequence for readers. Orphans, which
are files that no manifest names, are counted but harmless. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.archive.errors import ArchiveCorruptError, FileMissingError
from tailrace.archive.layout import TopicArchive, checksum, manifest_path
from tailrace.archive.location import Entry, Location
from tailrace.archive.manifest import ArchivedFile, Snapshot, load_snapshot, read_manifest
from tailrace.archive.parquet import read_footer
from tailrace.archive.quarantine import SideFile, SideFileContent, wrong_batches


class Problem(Enum):
    """The kind of damage."""

    MANIFEST = "manifest"
    MISSING = "missing"
    SIZE = "size"
    CHECKSUM = "checksum"
    CONTENT = "content"
    COVERAGE = "coverage"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: the file and what is wrong with it."""

    problem: Problem
    name: str
    message: str


@dataclass(slots=True)
class Report:
    """The scope and the findings of a verification."""

    version: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    #: Undecodable batches, which are kept as they are: no damage to the archive.
    quarantined_batches: int = 0
    findings: list[Finding] = field(default_factory=list)
    #: Files that the head does not name: left by lost writers, or removed since.
    orphans: list[Entry] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


def verify(
    location: Location,
    archive: TopicArchive,
    coverage: Mapping[int, tuple[int, int]] | None = None,
    on_file: Callable[[ArchivedFile], None] = lambda file: None,
) -> Report:
    """Read a whole archive; `coverage` is what the brokers believe it has, if that is to be checked too.

    An archive that cannot be read at all, because it is unreachable, denied or of a later format, is an error and not a
    finding: nothing is known about it.
    """
    report = Report()
    try:
        snapshot = load_snapshot(location, archive)
    except (ArchiveCorruptError, FileMissingError) as error:
        report.findings.append(Finding(Problem.MANIFEST, archive.manifest or "", str(error)))
        return report
    report.version = snapshot.version
    if coverage is not None and dict(coverage) != snapshot.coverage:
        message = f"the brokers expect it to cover {_spans(coverage)}, but it covers {_spans(snapshot.coverage)}"
        report.findings.append(Finding(Problem.COVERAGE, archive.manifest or "", message))
    for file in snapshot.files:
        report.findings += verify_file(location, archive.directory, file)
        report.files += 1
        report.rows += file.rows
        report.bytes += file.bytes
        on_file(file)
    for side_file in snapshot.side_files:
        report.findings += verify_side_file(location, archive.directory, side_file)
    report.quarantined_batches = snapshot.quarantined_batches
    manifests, damaged = _read_history(location, archive)
    report.findings += damaged
    report.orphans = _orphans(location, archive, snapshot, manifests)
    return report


def _spans(coverage: Mapping[int, tuple[int, int]]) -> str:
    return ", ".join(f"{partition}: {start} to {end - 1}" for partition, (start, end) in sorted(coverage.items()))


def verify_file(location: Location, directory: str, file: ArchivedFile) -> Iterator[Finding]:
    """All problems of one data file."""
    content = _read(location, directory, file)
    if isinstance(content, Finding):
        yield content
        return
    try:
        read_footer(content[-file.footer_bytes :], file)
        yield from (Finding(Problem.CONTENT, file.name, message) for message in _wrong_rows(content, file))
    except ArchiveCorruptError as error:
        yield Finding(Problem.CONTENT, file.name, str(error))


def verify_side_file(location: Location, directory: str, file: SideFile) -> Iterator[Finding]:
    """All problems of one file of quarantined batches."""
    content = _read(location, directory, file)
    if isinstance(content, Finding):
        yield content
        return
    try:
        batches = SideFileContent(file, content)
        yield from (Finding(Problem.CONTENT, file.name, message) for message in wrong_batches(file, batches))
    except ArchiveCorruptError as error:
        yield Finding(Problem.CONTENT, file.name, str(error))


def _read(location: Location, directory: str, file: ArchivedFile | SideFile) -> bytes | Finding:
    """The content of a file, or a finding if it is not what was written."""
    try:
        content = location.read_all(f"{directory}/{file.name}")
    except FileMissingError as error:
        return Finding(Problem.MISSING, file.name, str(error))
    except ArchiveCorruptError as error:  # some stores detect it themselves
        return Finding(Problem.CHECKSUM, file.name, str(error))
    if len(content) != file.bytes:
        return Finding(Problem.SIZE, file.name, f"it has {len(content)} bytes, but was written with {file.bytes}")
    if checksum(content) != file.checksum:
        return Finding(Problem.CHECKSUM, file.name, f"its checksum is {checksum(content)}, but was {file.checksum}")
    return content


def _wrong_rows(content: bytes, file: ArchivedFile) -> Iterator[str]:
    """Differences between an intact data file and its manifest entry."""
    try:
        table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read(
            columns=["partition", "offset", "timestamp"], use_threads=False
        )
    except (OSError, ValueError) as error:
        raise ArchiveCorruptError(f"cannot read it: {error}") from error
    if table.num_rows != file.rows:
        yield f"it has {table.num_rows} records, but should have {file.rows}"
    if table.num_rows == 0:
        return
    offsets = table.column("offset").to_numpy()
    if (np.diff(offsets) <= 0).any():
        yield "its records are not ordered by offset"
    if offsets.min() < file.first_offset or offsets.max() >= file.next_offset:
        yield (
            f"it has offsets {offsets.min()} to {offsets.max()}, but its range is {file.first_offset} to "
            f"{file.next_offset - 1}"
        )
    if (table.column("partition").to_numpy() != file.partition).any():
        yield f"it has records of partitions other than {file.partition}"
    times = table.column("timestamp").cast(pa.int64()).to_numpy()
    if (int(times.min()), int(times.max())) != (file.min_timestamp, file.max_timestamp):
        yield f"it has times {times.min()} to {times.max()}, not {file.min_timestamp} to {file.max_timestamp}"


def _read_history(location: Location, archive: TopicArchive) -> tuple[list[str], list[Finding]]:
    """The manifests from the head back to the first, and any damage to them."""
    names: list[str] = []
    name = archive.manifest
    while name is not None:
        names.append(name)
        try:
            name = read_manifest(location, archive.directory, name).parent
        except FileMissingError:
            break  # old history may be removed; the head's own files were loaded before
        except ArchiveCorruptError as error:
            return names, [Finding(Problem.MANIFEST, names[-1], str(error))]
    return names, []


def _orphans(location: Location, archive: TopicArchive, snapshot: Snapshot, manifests: list[str]) -> list[Entry]:
    """The files below a topic's directory that neither the head nor its history names.

    A file of a commit in progress looks like an orphan, so cleaning keeps recent ones.
    """
    directory = archive.directory
    named = {f"{directory}/{name}" for name in snapshot.names}
    named.update(manifest_path(directory, name) for name in manifests)
    return [entry for entry in location.list(directory) if entry.name not in named]
