"""Where a replay reads: a topic, with its archive, or an archive alone whose topic is gone.

Owns which offsets there are, and which of them tasks read from files rather than from a broker. It is asked anew for
every batch, so that a replay of many hours follows an archive that grows and is compacted meanwhile.
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
    """Offsets of one partition for one task, in order: first those in files, if any, then those that a broker has."""

    range: OffsetRange
    archive_uri: str = ""
    directory: str = ""
    files: tuple[ArchivedFile, ...] = ()
    #: Below it the files have everything.
    archived_end: int = 0
    #: Where batches are that nobody can decode.
    side_files: tuple[SideFile, ...] = ()


class Source(Protocol):
    """What can be replayed."""

    topic: str
    lineage: Lineage
    #: What tasks reach brokers by; None where they need none.
    client: ClientSettings | None

    def ends(self) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one behind its last."""
        ...

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """In each partition the first offset of a time or later; None where all is older."""
        ...

    def spans(self, ranges: Sequence[OffsetRange]) -> list[Span]:
        """Where the offsets of ranges are now."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class TopicSource:
    """A topic that exists; its brokers serve archived offsets as well, files are only faster."""

    def __init__(self, bootstrap: str, topic: str, warn: Callable[[str], None]) -> None:
        self.topic = topic
        self.client: ClientSettings | None = parse_client_settings({"bootstrap.servers": bootstrap})
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
        """Where the brokers say that partitions begin and end, archive included."""
        first = self._brokers.offsets_at(dict.fromkeys(self._names, EARLIEST))
        last = self._brokers.offsets_at(dict.fromkeys(self._names, LATEST))
        return {name.partition: (first[name], last[name]) for name in self._names}

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """As ListOffsets answers."""
        found = self._brokers.offsets_at(dict.fromkeys(self._names, timestamp_ms))
        return {name.partition: None if found[name] == NO_OFFSET else found[name] for name in self._names}

    def spans(self, ranges: Sequence[OffsetRange]) -> list[Span]:
        """Archived offsets from files, where this machine reaches them."""
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
            self._is_by_brokers = True  # brokers that know no archives, Apache Kafka's for example
        except ArchiveError as error:
            self._is_by_brokers = True
            self._warn(f"archived records are read through the brokers, which is slower: {error}")
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
        """What the newest whole version covers."""
        return self._snapshot.coverage

    def offsets_at(self, timestamp_ms: int) -> dict[int, int | None]:
        """As a broker would find them in the archive."""
        reader = ArchiveReader(self._location)
        found = {
            number: reader.offset_for_timestamp(self._archive, number, timestamp_ms)
            for number in self._snapshot.coverage
        }
        return {number: None if each is None else each.offset for number, each in found.items()}

    def spans(self, ranges: Sequence[OffsetRange]) -> list[Span]:
        """All from files."""
        return [_span_of(one, self._location.uri, self._snapshot, 0) for one in ranges]

    def close(self) -> None:
        self._location.close()


def _span_of(one: OffsetRange, uri: str, snapshot: Snapshot, first_offset: int) -> Span:
    files = snapshot.partition(one.partition)
    # Below the first offset that may be read a broker is asked, which says what is wrong.
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
    """Whether a source is named by a place rather than by a topic's name, which has neither."""
    return "/" in source


def parse_archive_uri(uri: str) -> tuple[str, TopicArchive]:
    """The URI of the location, and the archive of which the rest of the path is the directory."""
    parts = urlsplit(uri)
    segments = parts.path.rstrip("/").split("/")
    try:
        topic, identity = segments[-2].removeprefix("topic="), segments[-1].removeprefix("id=")
        if segments[-2] == topic or segments[-1] == identity or topic_name_problem(topic) is not None:
            raise ValueError
        lineage = Lineage(decode_uuid(identity))
    except (ValueError, IndexError):
        raise ConfigError(
            f"'{uri}' is not the directory of a topic in an archive, which ends in topic=NAME/id=ID; name a topic, or "
            "that directory of one that is gone"
        ) from None
    place = urlunsplit(parts._replace(path="/".join(segments[:-2]) or "/"))
    return place, TopicArchive(place, topic, lineage, None)


def newest_whole(location: Location, archive: TopicArchive) -> Snapshot:
    """The highest version of which all manifests and all files are there.

    Which version was the last that brokers had taken is known to nobody any more. One that was written and never taken
    names the same records at the same offsets, so that nothing wrong can come of it: at worst it has a few more of
    them, or those that were about to expire are missing.
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
            f"no version of {archive.directory} at {archive.uri} is whole: of each, a manifest or a file is missing or "
            "altered"
        )
    return max(whole, key=lambda snapshot: (_offsets(snapshot.coverage.values()), snapshot.head))


def _are_there(entries: Mapping[str, int], snapshot: Snapshot) -> bool:
    sizes = {file.name: file.bytes for file in snapshot.files} | {file.name: file.bytes for file in snapshot.side_files}
    return all(entries.get(f"{snapshot.directory}/{name}") == size for name, size in sizes.items())


def _offsets(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)
