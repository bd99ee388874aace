"""The source of a replay: a topic with its archive, or only an archive, if its topic is gone.

Owns which offsets exist, and which of them tasks read from files and not from a broker. Each batch asks again, so that
a replay of many hours follows an archive that grows and is compacted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from tailrace.archive.errors import ArchiveCorruptError, ArchiveError, FileMissingError, NewerFormatError
from tailrace.archive.layout import MANIFEST_DIRECTORY, TopicArchive, is_manifest, manifest_version
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, Snapshot, load_snapshot
from tailrace.archive.quarantine import SideFile
from tailrace.archive.reader import ArchiveReader
from tailrace.client.archive import ArchiveStatus, describe
from tailrace.client.errors import ClientError
from tailrace.errors import ConfigError
from tailrace.model import NO_OFFSET, Lineage, TopicPartition, topic_name_problem
from tailrace.pipeline.connections.brokers import Brokers, unknown_topic
from tailrace.pipeline.source.client_settings import ClientSettings, parse_client_settings
from tailrace.pipeline.source.offsets import EARLIEST, LATEST
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.storage.checkpoints import decode_uuid


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition for one task, in order: first those in files, if any, then those of a broker."""

    range: OffsetRange
    archive_uri: str = ""
    directory: str = ""
    files: tuple[ArchivedFile, ...] = ()
    #: The files have everything below it.
    archived_end: int = 0
    #: Where undecodable batches are.
    side_files: tuple[SideFile, ...] = ()


class Source(Protocol):
    """Something that can be replayed."""

    topic: str
    lineage: Lineage
    #: How tasks reach brokers; None if they need none.
    client: ClientSettings | None

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and the one after its last."""
        ...

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """Return the first offset in each partition at or after a time; None if all records are older."""
        ...

    def spans(self, ranges: Sequence[OffsetRange]) -> list[Span]:
        """Return where the offsets of ranges are now."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class TopicSource:
    """An existing topic; its brokers also serve archived offsets, but files are faster.

    Only what is committed is read: the target would have aborted records as if they were not.
    """

    def __init__(self, bootstrap: str, topic: str, warn: Callable[[str], None]) -> None:
        self.topic = topic
        self.client: ClientSettings | None = parse_client_settings(
            {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
        )
        self._bootstrap = bootstrap
        self._warn = warn
        self._brokers = Brokers(self.client)
        self._location: Location | None = None
        self._reader: ArchiveReader | None = None
        self._is_by_brokers = False
        state = self._brokers.topics((topic,)).get(topic)
        if state is None:
            self._brokers.close()
            raise unknown_topic(topic)
        self.lineage = state.lineage
        self._names = [TopicPartition(topic, number) for number in sorted(state.leaders)]

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return the first and last offsets according to the brokers, including the archive."""
        first = self._brokers.offsets_at(dict.fromkeys(self._names, EARLIEST))
        last = self._brokers.offsets_at(dict.fromkeys(self._names, LATEST))
        return {name.partition: (first[name], last[name]) for name in self._names}

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """Return what ListOffsets returns."""
        found = self._brokers.offsets_at(dict.fromkeys(self._names, timestamp_ms))
        return {name.partition: None if found[name] == NO_OFFSET else found[name] for name in self._names}

    def spans(self, ranges: Sequence[OffsetRange]) -> list[Span]:
        """Read archived offsets from files, if this machine can access them."""
        snapshot, status = self._archived()
        if snapshot is None or status is None:
            return [Span(one) for one in ranges]
        deleted = status.deleted_below
        return [_span_of(one, status.uri, snapshot, deleted.get(one.partition, 0)) for one in ranges]

    def _archived(self) -> tuple[Snapshot | None, ArchiveStatus | None]:
        if self._is_by_brokers:
            return None, None
        try:
            status = describe(self._bootstrap, self.topic)
            if not status.version or status.lineage != self.lineage:
                return None, None
            if self._reader is None or self._location is None or self._location.uri != status.uri:
                self._location = open_location(status.uri)
                self._location.check()
                self._reader = ArchiveReader(self._location)
            return self._reader.snapshot(status.archive), status
        except ClientError:
            self._is_by_brokers = True  # these brokers do not know archives; they may be Apache Kafka
        except ArchiveError as error:
            self._is_by_brokers = True
            self._warn(f"reading archived records through the brokers, which is slower: {error}")
        return None, None

    def close(self) -> None:
        self._brokers.close()
        if self._location is not None:
            self._location.close()


class ArchiveSource:
    """An archive without its topic, by the URI of the topic's directory in it."""

    def __init__(self, uri: str) -> None:
        self.client: ClientSettings | None = None
        place, archive = parse_archive_uri(uri)
        self.topic = archive.topic
        self.lineage = archive.lineage
        self._location = open_location(place)
        self._snapshot = newest_whole(self._location, archive)
        self._archive = replace(archive, manifest=self._snapshot.head)

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return what the newest complete version covers."""
        return self._snapshot.coverage

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """Return what a broker would find in the archive."""
        reader = ArchiveReader(self._location)
        found = {
            number: reader.offset_for_timestamp(self._archive, number, timestamp_ms)
            for number in self._snapshot.coverage
        }
        return {number: None if each is None else each.offset for number, each in found.items()}

    def spans(self, ranges: Sequence[OffsetRange]) -> list[Span]:
        """Read everything from files."""
        return [_span_of(one, self._location.uri, self._snapshot, 0) for one in ranges]

    def close(self) -> None:
        self._location.close()


def _span_of(one: OffsetRange, uri: str, snapshot: Snapshot, first_offset: int) -> Span:
    files = snapshot.partition(one.partition)
    # Ask a broker for offsets below the first readable one: it reports what is wrong.
    if not max(files.start, first_offset) <= one.start < files.end:
        return Span(one)
    return Span(
        one,
        uri,
        snapshot.directory,
        files.files_between(one.start, one.end),
        min(files.end, one.end),
        files.side_files_between(one.start, one.end),
    )


# --- archives without their topics


def is_archive_uri(source: str) -> bool:
    """True if a source is a location; the names of topics have no slash."""
    return "/" in source


def parse_archive_uri(uri: str) -> tuple[str, TopicArchive]:
    """Return the URI of the location, and the archive that the rest of the path names."""
    parts = urlsplit(uri)
    segments = parts.path.rstrip("/").split("/")
    try:
        topic, identity = segments[-2].removeprefix("topic="), segments[-1].removeprefix("id=")
        if segments[-2] == topic or segments[-1] == identity or topic_name_problem(topic) is not None:
            raise ValueError
        lineage = Lineage(decode_uuid(identity))
    except (ValueError, IndexError):
        raise ConfigError(
            f"'{uri}' is not the directory of a topic in an archive, which ends in topic=NAME/id=ID; give the "
            "name of a topic, or such a directory of a deleted topic"
        ) from None
    place = urlunsplit(parts._replace(path="/".join(segments[:-2]) or "/"))
    return place, TopicArchive(place, topic, lineage, None)


def newest_whole(location: Location, archive: TopicArchive) -> Snapshot:
    """Return the highest version whose manifests and files all exist.

    It is no longer known which version brokers accepted last. One that was written but never accepted names the same
    records at the same offsets, so it cannot be wrong: at worst it has a few more records, or lacks some that were
    about to expire.
    """
    location.check()
    entries = {entry.name: entry.size for entry in location.list(archive.directory)}
    start = len(archive.directory) + 1
    heads = sorted(
        (name.rpartition("/")[2] for name in entries if is_manifest(name[start:])), key=manifest_version, reverse=True
    )
    if not heads:
        raise ArchiveCorruptError(f"{archive.uri} has no manifest in {archive.directory}/{MANIFEST_DIRECTORY}")
    whole: list[Snapshot] = []
    for head in heads:
        if whole and manifest_version(head) < whole[0].version:
            break
        try:
            snapshot = load_snapshot(location, replace(archive, manifest=head))
        except NewerFormatError:
            raise
        except (ArchiveCorruptError, FileMissingError):
            continue
        if _are_there(entries, snapshot):
            whole.append(snapshot)
    if not whole:
        raise ArchiveCorruptError(
            f"no version of {archive.directory} at {archive.uri} is complete: each lacks a manifest or a file, or "
            "has an altered one"
        )
    return max(whole, key=lambda snapshot: (_offsets(snapshot.coverage.values()), snapshot.head))


def _are_there(entries: Mapping[str, int], snapshot: Snapshot) -> bool:
    sizes = {file.name: file.bytes for file in snapshot.files} | {file.name: file.bytes for file in snapshot.side_files}
    return all(entries.get(f"{snapshot.directory}/{name}") == size for name, size in sizes.items())


def _offsets(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)
