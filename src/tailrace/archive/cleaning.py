"""Finds files of a topic's archive that nobody needs: removed by a manifest, or left by a writer that was lost.

The most important rule: no file is deleted that a valid manifest names, or one that may still become valid.
- A file that a manifest removed is deleted a grace period after that manifest was written, so that readers of an older
  version can finish.
- A file that no manifest names is deleted only if the archive already has offsets at or beyond its first one. Archivers
  only append, so the file can no longer be committed. Until then, and for the grace period, it stays, because it may be
  the work of a running archiver or compaction.
- Manifests beyond the head protect the files they name, because the caller's head may be out of date.
- Manifests older than the last checkpoint that a reader may need are deleted, so that history does not grow for ever.
Files whose names do not match the layout are left alone. This module knows nothing of brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tailrace.archive.errors import ArchiveCorruptError, ArchiveError, FileMissingError
from tailrace.archive.layout import (
    UNFINISHED_PREFIX,
    TopicArchive,
    file_span,
    is_manifest,
    manifest_path,
    manifest_version,
)
from tailrace.archive.location import Entry, Location
from tailrace.archive.manifest import Manifest, Snapshot, read_manifest

DEFAULT_GRACE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files that no reader of the head needs: those that can be deleted now, and those that must wait."""

    deletable: tuple[Entry, ...]
    waiting: tuple[Entry, ...]

    @property
    def deletable_bytes(self) -> int:
        return sum(entry.size for entry in self.deletable)


def find_leftovers(
    location: Location, archive: TopicArchive, snapshot: Snapshot, *, now_ms: int, grace_ms: int
) -> Leftovers:
    """Examine a topic's directory; nothing is deleted."""
    chain = _read_chain(location, archive)
    # Listed after the head was read, so that a later commit shows as a manifest beyond it.
    entries = list(location.list(archive.directory))
    oldest_ms = now_ms - grace_ms
    since = _Since(location, archive, snapshot, chain, entries, oldest_ms)
    deletable: list[Entry] = []
    waiting: list[Entry] = []
    for entry in entries:
        unneeded_since_ms = since.unneeded(entry)
        if unneeded_since_ms is None:
            continue
        (deletable if unneeded_since_ms <= oldest_ms else waiting).append(entry)
    return Leftovers(tuple(deletable), tuple(waiting))


def delete_leftovers(
    location: Location, leftovers: Leftovers, on_file: Callable[[Entry], None] = lambda entry: None
) -> None:
    """Delete what can be deleted, manifests last: they record when files were removed."""
    for entry in sorted(leftovers.deletable, key=lambda entry: entry.name.endswith(".json")):
        location.delete(entry.name)
        on_file(entry)


def _read_chain(location: Location, archive: TopicArchive) -> list[tuple[str, Manifest]]:
    """The manifests from the head back to the first that is missing or damaged; the head needs none beyond that."""
    chain: list[tuple[str, Manifest]] = []
    name = archive.manifest
    while name is not None:
        try:
            manifest = read_manifest(location, archive.directory, name)
        except (FileMissingError, ArchiveCorruptError):
            break
        chain.append((name, manifest))
        name = manifest.parent
    return chain


class _Since:
    """When each file became unneeded, as far as is known."""

    def __init__(
        self,
        location: Location,
        archive: TopicArchive,
        snapshot: Snapshot,
        chain: list[tuple[str, Manifest]],
        entries: list[Entry],
        oldest_ms: int,
    ) -> None:
        self._directory = archive.directory
        self._snapshot = snapshot
        written_ms = {entry.name: entry.modified_ms for entry in entries}
        self._needed = {f"{self._directory}/{name}" for name in snapshot.names}
        self._needed |= self._named_beyond(location, entries)
        #: When each file was removed, for files that a manifest of the history removed.
        self._removed_ms: dict[str, int] = {}
        kept = _needed_history(
            [(manifest_path(self._directory, name), manifest) for name, manifest in chain], written_ms, oldest_ms
        )
        self._needed.update(kept)
        for name, manifest in chain:
            at_ms = written_ms.get(manifest_path(self._directory, name))
            for file in manifest.removed:
                if at_ms is not None:
                    self._removed_ms[f"{self._directory}/{file}"] = at_ms

    def _named_beyond(self, location: Location, entries: list[Entry]) -> set[str]:
        """The files in manifests beyond the head; one of them may have been committed without our knowledge."""
        named: set[str] = set()
        for entry in entries:
            inner = entry.name[len(self._directory) + 1 :]
            if not is_manifest(inner):
                continue
            file = inner.rpartition("/")[2]
            if manifest_version(file) <= self._snapshot.version:
                continue
            named.add(entry.name)
            try:
                manifest = read_manifest(location, self._directory, file)
            except FileMissingError:
                continue
            except ArchiveError as error:
                error.add_note("nothing was deleted, because files that this manifest names may be needed")
                raise
            named.update(f"{self._directory}/{name}" for name in manifest.names)
        return named

    def unneeded(self, entry: Entry) -> int | None:
        """When a file became unneeded, or the earliest time that is certain; None if it may be needed."""
        if entry.name in self._needed:
            return None
        inner = entry.name[len(self._directory) + 1 :]
        if inner.rpartition("/")[2].startswith(UNFINISHED_PREFIX):
            return entry.modified_ms
        if is_manifest(inner):
            # Part of the history, or a failed attempt at a version that another writer committed.
            return entry.modified_ms
        span = file_span(inner)
        if span is None:
            return None
        if (removed_ms := self._removed_ms.get(entry.name)) is not None:
            return removed_ms
        partition, first_offset, _ = span
        return entry.modified_ms if first_offset < self._snapshot.partition(partition).end else None


def _needed_history(chain: list[tuple[str, Manifest]], written_ms: dict[str, int], oldest_ms: int) -> list[str]:
    """The manifests needed to load the head, or any version that was the head within the grace period."""
    is_old = False
    for place, (path, manifest) in enumerate(chain):
        is_old = is_old or written_ms.get(path, oldest_ms + 1) <= oldest_ms
        if is_old and manifest.files is not None:
            return [name for name, _ in chain[: place + 1]]
    return [name for name, _ in chain]
