"""The archive of one topic for its archiver: its newest version, and the commit of the next.

Keeps the invariant that makes archiving exactly once: files count only through a manifest that the brokers have
accepted as the archive's head, on top of the very version on which the files were planned. Whatever happens, either our
manifest is part of the archive's history, or none of our files is. They are deleted only in the second case, if it is
certain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace.archive.errors import ArchiveError, FileMissingError
from tailrace.archive.layout import manifest_path
from tailrace.archive.location import Location
from tailrace.archive.manifest import (
    ArchivedFile,
    Manifest,
    Snapshot,
    load_snapshot,
    read_manifest,
    write_manifest,
)
from tailrace.archive.quarantine import SideFile
from tailrace.client.archive import ArchiveConflictError, ArchiveStatus, CommitUnknownError, commit, describe
from tailrace.client.errors import ClientError, UnreachableError

#: How long to wait for the response to a commit, and for brokers to show a commit of another archiver.
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.2


class ArchiveChangedError(ClientError):
    """The archive has changed since archiving began: its topic was deleted, or it was disabled or moved."""

    def __init__(self, message: str, *, is_elsewhere: bool) -> None:
        super().__init__(message)
        #: Whether the archive has moved to another location, where it can be opened.
        self.is_elsewhere = is_elsewhere


class TopicArchiver:
    """The archive of one topic, read from its location and kept up to date."""

    def __init__(
        self, bootstrap: str, status: ArchiveStatus, location: Location, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._bootstrap = bootstrap
        self._warn = warn
        self.location = location
        self.status = status
        self.snapshot = Snapshot(status.topic, status.lineage)

    @property
    def topic(self) -> str:
        return self.status.topic

    def refresh(self) -> None:
        """Learn what other programs committed or changed."""
        found = describe(self._bootstrap, self.topic)
        known = self.status
        if found.lineage != known.lineage:
            raise ArchiveChangedError(f"topic {self.topic} was deleted and created again", is_elsewhere=True)
        if not found.is_enabled:
            raise ArchiveChangedError(
                f"{self.topic} is no longer archived: its tailrace.archive.enable was set to false", is_elsewhere=False
            )
        if found.uri != known.uri:
            raise ArchiveChangedError(
                f"the archive of {self.topic} moved from {known.uri} to {found.uri}", is_elsewhere=True
            )
        if found.version < known.version:  # the broker has not learned of our last commit yet
            found = replace(found, version=known.version, manifest=known.manifest, partitions=known.partitions)
        self.snapshot = load_snapshot(self.location, found.archive, {self.snapshot.head: self.snapshot}.get)
        self.status = found

    def archived_end(self, partition: int) -> int | None:
        """Return where the archive of a partition ends; None if it has nothing of it yet."""
        files = self.snapshot.partitions.get(partition)
        return None if files is None else files.end

    def commit(
        self, files: Sequence[ArchivedFile], side_files: Sequence[SideFile] = (), removed: Sequence[str] = ()
    ) -> bool:
        """Add files to the archive; return False, and delete them again, if another archiver committed first."""
        manifest = self.snapshot.commit(files, removed, quarantined=side_files)
        name = write_manifest(self.location, manifest)
        try:
            version = self._commit_patiently(name, manifest)
        except ArchiveConflictError:
            self._await_version_after(self.status.version)
            is_in_history = self._has_in_history(name, manifest.version)
            if is_in_history is False:
                self.discard([*files, *side_files], name)
            # Our commit may have succeeded although its response was lost, and others may have followed.
            return is_in_history is True
        self.snapshot = self.snapshot.following(manifest, name)
        self.status = replace(self.status, version=version, manifest=name, partitions=self.snapshot.coverage)
        return True

    def _commit_patiently(self, name: str, manifest: Manifest) -> int:
        """Ask until there is a definite response; a repeated commit succeeds again."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return commit(self._bootstrap, self.status, name, manifest.partitions)
            except (UnreachableError, CommitUnknownError):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def _await_version_after(self, version: int) -> None:
        """Wait for the competing commit; a broker may learn of it a little later."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self.refresh()
            if self.status.version > version:
                return
            if time.monotonic() >= deadline:
                raise ClientError(
                    f"another archiver committed to the archive of {self.topic}, but the broker at "
                    f"{self._bootstrap} still describes version {version}; run the command again"
                )
            time.sleep(_PAUSE_SECONDS)

    def _has_in_history(self, name: str, version: int) -> bool | None:
        """True if a manifest is in the head's history; None if too much history is gone to tell."""
        head = self.snapshot.head
        while head is not None and head != name:
            try:
                manifest = read_manifest(self.location, self.snapshot.directory, head)
            except FileMissingError:
                return None
            if manifest.version <= version:
                return False
            head = manifest.parent
        return head == name

    def discard(self, files: Sequence[ArchivedFile | SideFile], manifest: str | None = None) -> None:
        """Delete our files, which are certainly not part of the archive."""
        directory = self.snapshot.directory
        names = [f"{directory}/{file.name}" for file in files]
        if manifest is not None:
            names.append(manifest_path(directory, manifest))
        try:
            for name in names:
                self.location.delete(name)
        except ArchiveError as error:
            self._warn(f"left files behind that no reader uses: {error}")
