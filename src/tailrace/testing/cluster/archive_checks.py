"""What must always hold for an archived topic of a simulated cluster.

Every commit that the store accepts follows the previous one, and its files have the committed records, offset by
offset, without holes or other values. A commit that was acknowledged is in the store. No replica has deleted records
that the archive does not have. The checks read the store, the files and the logs, and change nothing.
"""

from __future__ import annotations

from tailrace.archive.layout import TopicArchive
from tailrace.archive.manifest import ArchivedFile, Snapshot, load_snapshot
from tailrace.archive.parquet import read_footer, read_row_groups
from tailrace.cluster.archives import ArchiveState
from tailrace.cluster.keys import ARCHIVES
from tailrace.model import TopicPartition
from tailrace.stores.watching import Changed, directory_of
from tailrace.testing.cluster.archive_location import MemoryLocation
from tailrace.testing.cluster.history import ARCHIVE, UNARCHIVED, ClusterHistory, Violation
from tailrace.testing.cluster.machines import SimCluster


class ArchiveChecks:
    """The checks of one topic's archive."""

    def __init__(self, cluster: SimCluster, history: ClusterHistory, location: MemoryLocation, topic: str) -> None:
        self._cluster = cluster
        self._history = history
        self._location = location
        self._topic = topic
        #: The archived end of each partition, according to the store.
        self.ends: dict[int, int] = {}
        #: The manifest of each version that was ever in the store.
        self.heads: dict[int, str] = {}
        #: States that were not checked yet; problems are raised by `look`, not inside the store.
        self._unseen: list[ArchiveState] = []
        self._snapshot: Snapshot | None = None
        cluster.coordination.space.follow(self._changed)

    def _changed(self, changed: Changed) -> None:
        for key, entry in changed.items():
            if directory_of(key) == ARCHIVES and entry is not None:
                state = ArchiveState.from_bytes(entry.value)
                self.ends = {number: archived.end for number, archived in state.partitions.items()}
                self.heads.setdefault(state.version, state.manifest)
                self._unseen.append(state)
                self._cluster.note(f"store: {self._topic} is archived by version {state.version}, {self.ends}")

    def told(self, version: int, manifest: str) -> None:
        """Check a commit that was acknowledged."""
        found = self.heads.get(version)
        if found != manifest:
            raise Violation(ARCHIVE, f"{manifest} was acknowledged as version {version}, which is {found} in the store")

    def refused(self, manifest: str) -> None:
        """Check a commit that was refused, whose files may be deleted."""
        if manifest in self.heads.values():
            raise Violation(ARCHIVE, f"{manifest} was refused, but is in the store")

    def look(self) -> None:
        """Check what was committed since the last time, and all replicas."""
        unseen, self._unseen = self._unseen, []
        for state in unseen:
            self._look_at(state)
        for node in self._cluster.nodes:
            for replica in node.broker.partitions if node.is_serving and node.broker is not None else ():
                if replica.partition.topic != self._topic or replica.directory.failure is not None:
                    continue
                end = self.ends.get(replica.partition.partition, 0)
                if replica.log.start_offset > end:
                    raise Violation(
                        UNARCHIVED,
                        f"{replica.partition} starts at {replica.log.start_offset} on {node.name}, but is "
                        f"archived only up to {end}",
                    )

    def _look_at(self, state: ArchiveState) -> None:
        archive = TopicArchive(self._location.uri, self._topic, state.lineage, state.manifest)
        before = self._snapshot or Snapshot(self._topic, state.lineage)
        snapshot = load_snapshot(self._location, archive, lambda name: before if name == before.head else None)
        known = {file.name for file in before.files}
        if state.version != before.version + 1 or not known <= {file.name for file in snapshot.files}:
            raise Violation(ARCHIVE, f"version {state.version} does not follow {before.version} ({before.head})")
        if snapshot.coverage != state.partitions:
            raise Violation(ARCHIVE, f"version {state.version} has {snapshot.coverage}, not {state.partitions}")
        self._snapshot = snapshot
        for file in snapshot.files:
            if file.name not in known:
                self._compare(file, f"{snapshot.directory}/{file.name}", state.version)

    def _compare(self, file: ArchivedFile, name: str, version: int) -> None:
        content = self._location.read_all(name)
        footer = read_footer(content[-file.footer_bytes :], file)
        tables = read_row_groups(content[footer.starts[0] :], 0, footer.row_groups - 1, footer, file)
        rows = [row for table in tables for row in table.to_pylist()]
        if [row["offset"] for row in rows] != list(range(file.first_offset, file.next_offset)):
            raise Violation(ARCHIVE, f"{file.name} of version {version} has a hole")
        partition = TopicPartition(self._topic, file.partition)
        for row in rows:
            by = f"archive version {version}"
            self._history.is_committed(partition, row["offset"], row["key"], row["value"], by)
