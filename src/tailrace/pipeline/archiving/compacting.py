"""Compaction of a topic's archive, from plan to commit: merges small files, removes expired ranges, deletes unused
files.

Invariants: every change is one fenced commit on top of the newest version, repeated if another program was faster; a
run never deletes what it has removed from the archive, but a later run does, when readers have had time. The caller
passes the function that writes merged files. This module must not know Spark, nor how things are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tailrace.archive.cleaning import DEFAULT_GRACE_MS, Leftovers, delete_leftovers, find_leftovers
from tailrace.archive.compaction import (
    DEFAULT_MIN_FILES,
    DEFAULT_TARGET_BYTES,
    Expiry,
    Merge,
    commit_of,
    plan_expiry,
    plan_merges,
    still_possible,
)
from tailrace.archive.errors import FileMissingError
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, Manifest, Snapshot, read_manifest, write_manifest
from tailrace.archive.reader import ArchiveReader
from tailrace.client.archive import (
    ArchiveConflictError,
    ArchiveStatus,
    CommitUnknownError,
    commit,
    describe,
    describe_archived,
)
from tailrace.client.errors import ClientError, UnreachableError

#: Writes the file of each merge, in their order.
Merger: TypeAlias = Callable[[Snapshot, Sequence[Merge]], list[ArchivedFile]]

#: How often another program may be faster, and how often a response may be lost, before it is a failure.
_CONFLICTS = 50
_LOST_ANSWERS = 5
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of a compaction."""

    target_bytes: int = DEFAULT_TARGET_BYTES
    min_files: int = DEFAULT_MIN_FILES
    grace_ms: int = DEFAULT_GRACE_MS
    #: The number of merges in one commit: a written file must not wait long for its commit.
    merges_per_commit: int = 16


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to do to an archive in its present state."""

    version: int
    expiry: Expiry
    merges: tuple[Merge, ...]
    leftovers: Leftovers


@dataclass(slots=True)
class CompactionReport:
    """What was done to an archive, or would be."""

    topic: str
    version: int = 0
    merged_files: int = 0
    merged_bytes: int = 0
    new_files: int = 0
    new_bytes: int = 0
    expired_files: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    deleted_files: int = 0
    deleted_bytes: int = 0
    #: Files that a later run deletes.
    waiting_files: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "topic": self.topic,
            "version": self.version,
            "merged_files": self.merged_files,
            "merged_bytes": self.merged_bytes,
            "new_files": self.new_files,
            "new_bytes": self.new_bytes,
            "expired_files": self.expired_files,
            "starts": {str(number): start for number, start in sorted(self.starts.items())},
            "deleted_files": self.deleted_files,
            "deleted_bytes": self.deleted_bytes,
            "waiting_files": self.waiting_files,
        }


class Compaction:
    """The compaction of one topic's archive; all times are relative to its start."""

    def __init__(self, bootstrap: str, topic: str, settings: CompactionSettings, *, now_ms: int | None = None) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._settings = settings
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        status = describe_archived(bootstrap, topic)
        self._lineage = status.lineage
        self._location: Location = open_location(status.uri)
        self._reader = ArchiveReader(self._location)
        self._location.check()

    def close(self) -> None:
        """Close the location."""
        self._location.close()

    def head(self) -> tuple[ArchiveStatus, Snapshot]:
        """Return the present state of the archive."""
        status = describe(self._bootstrap, self._topic)
        if status.lineage != self._lineage:
            raise ClientError(f"topic {self._topic} was deleted and created again: start over")
        if status.uri != self._location.uri:
            raise ClientError(f"the archive of {self._topic} has moved to {status.uri}: start over")
        return status, self._reader.snapshot(status.archive)

    def plan(self) -> CompactionPlan:
        """Return what to do, without changing anything."""
        status, snapshot = self.head()
        expiry = self._expiry(status, snapshot)
        merges = plan_merges(
            snapshot, expiry, target_bytes=self._settings.target_bytes, min_files=self._settings.min_files
        )
        return CompactionPlan(snapshot.version, expiry, tuple(merges), self._leftovers(status, snapshot))

    def _expiry(self, status: ArchiveStatus, snapshot: Snapshot) -> Expiry:
        return plan_expiry(snapshot, status.deleted_below, status.retention_ms, self._now_ms)

    def _leftovers(self, status: ArchiveStatus, snapshot: Snapshot) -> Leftovers:
        return find_leftovers(
            self._location, status.archive, snapshot, now_ms=self._now_ms, grace_ms=self._settings.grace_ms
        )

    def report_of(self, plan: CompactionPlan) -> CompactionReport:
        """Return what would be done."""
        return CompactionReport(
            self._topic,
            plan.version,
            merged_files=sum(len(merge.files) for merge in plan.merges),
            merged_bytes=sum(merge.bytes for merge in plan.merges),
            new_files=len(plan.merges),
            expired_files=len(plan.expiry.files),
            starts=dict(plan.expiry.starts),
            deleted_files=len(plan.leftovers.deletable),
            deleted_bytes=plan.leftovers.deletable_bytes,
            waiting_files=len(plan.leftovers.waiting),
        )

    def run(self, plan: CompactionPlan, merger: Merger) -> CompactionReport:
        """Carry out the plan: commit it in portions, then delete unused files."""
        report = CompactionReport(self._topic, plan.version)
        step = self._settings.merges_per_commit
        portions: list[tuple[Merge, ...]] = [
            plan.merges[first : first + step] for first in range(0, len(plan.merges), step)
        ]
        if not portions and plan.expiry:
            portions = [()]
        for merges in portions:
            snapshot = self.head()[1]
            possible = [merge for merge in merges if still_possible(snapshot, merge)]
            files = merger(snapshot, possible) if possible else []
            self._commit(list(zip(possible, files, strict=True)), report)
        status, snapshot = self.head()
        report.version = snapshot.version
        leftovers = self._leftovers(status, snapshot)
        delete_leftovers(self._location, leftovers)
        report.deleted_files, report.deleted_bytes = len(leftovers.deletable), leftovers.deletable_bytes
        report.waiting_files = len(leftovers.waiting)
        return report

    def _commit(self, merged: Sequence[tuple[Merge, ArchivedFile]], report: CompactionReport) -> None:
        """Commit what still fits on top of the newest version, and repeat until that succeeds.

        A later run deletes the files of merges that no longer fit, and manifests that were not accepted: only then is
        it certain whether a commit whose response was lost is part of the history.
        """
        for _ in range(_CONFLICTS):
            status, snapshot = self.head()
            possible = [(merge, file) for merge, file in merged if still_possible(snapshot, merge)]
            expiry = self._expiry(status, snapshot)
            if not possible and not expiry:
                return
            self._check_there(snapshot, [file for _, file in possible])
            manifest = commit_of(snapshot, possible, expiry)
            name = write_manifest(self._location, manifest)
            if self._is_committed(status, manifest, name):
                _count(report, possible, expiry)
                return
        raise ClientError(
            f"other programs committed to the archive of {self._topic} {_CONFLICTS} times while it was compacted: "
            "retry when less is archived"
        )

    def _check_there(self, snapshot: Snapshot, files: Sequence[ArchivedFile]) -> None:
        """Refuse to commit a file that another compaction has deleted as unused because this one took long."""
        for file in files:
            try:
                self._location.size(f"{snapshot.directory}/{file.name}")
            except FileMissingError:
                raise ClientError(
                    f"{file.name} was deleted before it could be committed: another compaction runs with a grace "
                    "period that is too short; nothing was changed"
                ) from None

    def _is_committed(self, status: ArchiveStatus, manifest: Manifest, name: str) -> bool:
        """Try to commit a manifest; return whether it is part of the archive's history."""
        for attempt in range(_LOST_ANSWERS):
            try:
                commit(self._bootstrap, status, name, manifest.partitions)
            except ArchiveConflictError:
                # A commit whose response was lost may have succeeded, and others may have followed.
                return bool(attempt) and self._is_in_history(manifest.version, name)
            except (CommitUnknownError, UnreachableError):
                if attempt == _LOST_ANSWERS - 1:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                break
        return True

    def _is_in_history(self, version: int, name: str) -> bool:
        snapshot = self.head()[1]
        at = snapshot.head
        while at is not None and at != name:
            manifest = read_manifest(self._location, snapshot.directory, at)
            if manifest.version <= version:
                return False
            at = manifest.parent
        return at == name


def _count(report: CompactionReport, merged: Sequence[tuple[Merge, ArchivedFile]], expiry: Expiry) -> None:
    report.merged_files += sum(len(merge.files) for merge, _ in merged)
    report.merged_bytes += sum(merge.bytes for merge, _ in merged)
    report.new_files += len(merged)
    report.new_bytes += sum(file.bytes for _, file in merged)
    report.expired_files += len(expiry.files)
    report.starts.update(expiry.starts)
