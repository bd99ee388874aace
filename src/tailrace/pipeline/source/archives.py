"""What a query can read from the files of archives, according to brokers and manifests at this moment.

Owns the choice between files and brokers, and what happens if files cannot be read. Brokers can serve every existing
offset, including archived ones: so what is left to them is read as well, only slower. It must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tailrace.archive.errors import (
    ArchiveDeniedError,
    ArchiveDependencyError,
    ArchiveError,
    ArchiveUnreachableError,
    ArchiveUriError,
    FileMissingError,
    LocationMissingError,
    NewerFormatError,
)
from tailrace.archive.layout import TopicArchive
from tailrace.model import Lineage, TopicPartition
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import OptionError, SourceError
from tailrace.pipeline.source.archived_ranges import ArchivedPart
from tailrace.pipeline.source.offsets import Offsets
from tailrace.pipeline.source.options import ArchiveAccess
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.archive_describe import (
    ArchiveDescribeRequest,
    ArchiveDescribeResponse,
    DescribedArchive,
)

#: Fewer offsets of a partition than this are fetched from its leader, if it still has them itself.
FEW_OFFSETS = 10_000
_ENABLE = "tailrace.archive.enable"
_DESCRIBE = Versions(0, 0)
_EARLIEST_LOCAL = -4
#: The first version that knows where a leader's own log begins; only sent to brokers with archives.
_LOCAL_OFFSETS = Versions(8, 8)
#: How often a manifest may be removed between being named and being read.
_TRIES_FOR_A_HEAD = 3
#: Problems that this process may have while brokers do not.
_IN_OUR_WAY = (
    ArchiveDeniedError,
    ArchiveDependencyError,
    ArchiveUnreachableError,
    ArchiveUriError,
    LocationMissingError,
    NewerFormatError,
)

_logger = logging.getLogger("tailrace.pipeline")


class Archives:
    """The archives of a cluster's topics, for one query."""

    def __init__(self, brokers: Brokers, access: ArchiveAccess) -> None:
        self._brokers = brokers
        self._access = access
        #: Whether these brokers support archives; None until they were asked.
        self._are_known: bool | None = None

    def parts(
        self, ranges: Sequence[OffsetRange], lineages: Mapping[str, Lineage]
    ) -> dict[TopicPartition, ArchivedPart]:
        """Return the part of each partition that is best read from files; a missing partition has none."""
        if not self._access.reads_files or not ranges or not self._ask_whether_known(ranges[0].topic):
            return {}
        parts: dict[TopicPartition, ArchivedPart] = {}
        for topic in self._describe(dict.fromkeys(one.topic for one in ranges)):
            if topic.lineage == lineages.get(topic.name):
                parts |= self._parts_of(topic, [one for one in ranges if one.topic == topic.name])
        return parts

    def _ask_whether_known(self, topic: str) -> bool:
        """True if the brokers support archives, by a request that every Kafka answers."""
        if self._are_known is None:
            try:
                self._are_known = self._brokers.topic_setting(topic, _ENABLE) is not None
            except SourceError:
                return False  # reading the records will show whether that passes
        return self._are_known

    def _describe(self, topics: Iterable[str]) -> list[DescribedArchive]:
        """Return the archives that contain something."""
        request = ArchiveDescribeRequest(topics=list(topics))
        answer = self._brokers.ask_patiently("looking up archives", request, _DESCRIBE, ArchiveDescribeResponse)
        return [one for one in answer.archives if not one.error_code and one.is_enabled and one.manifest]

    def _parts_of(self, topic: DescribedArchive, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, ArchivedPart]:
        tries = 1
        while True:
            wanted = self._worth_reading(topic, ranges)
            if not wanted:
                return {}
            try:
                return self._load(topic, wanted)
            except FileMissingError as error:
                found = self._describe([topic.name])
                if tries == _TRIES_FOR_A_HEAD or not found or found[0].manifest == topic.manifest:
                    self.leave_to_brokers(list(wanted.values()), error)
                    return {}
                topic = found[0]
                tries += 1
            except ArchiveError as error:
                self.leave_to_brokers(list(wanted.values()), error)
                return {}

    def _worth_reading(
        self, topic: DescribedArchive, ranges: Sequence[OffsetRange]
    ) -> dict[TopicPartition, OffsetRange]:
        """Return the archived part of the ranges, except where it is small and still in the log."""
        spans = {
            each.partition_index: (max(each.start_offset, each.deleted_below), each.end_offset)
            for each in topic.partitions
            if each.end_offset > max(each.start_offset, each.deleted_below)
        }
        archived = {}
        for one in ranges:
            start, end = spans.get(one.partition, (0, 0))
            inside = replace(one, start=max(one.start, start), end=min(one.end, end))
            if inside.size > 0:
                archived[TopicPartition(one.topic, one.partition)] = inside
        local = self.local_starts([name for name, inside in archived.items() if inside.size < FEW_OFFSETS])
        return {name: inside for name, inside in archived.items() if local.get(name, inside.end) > inside.start}

    def _load(
        self, topic: DescribedArchive, wanted: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, ArchivedPart]:
        # Most queries read topics without an archive, and need none of the packages for it.
        from tailrace.archive.reader import reader_of

        uri = self._access.uri or topic.uri
        archive = TopicArchive(uri, topic.name, topic.lineage, topic.manifest)
        snapshot = reader_of(uri, self._access.location_options).snapshot(archive)
        return {
            name: ArchivedPart(archive, inside.start, inside.end, snapshot.partition(name.partition))
            for name, inside in wanted.items()
        }

    def local_starts(self, names: Sequence[TopicPartition]) -> Offsets:
        """Return where the leaders' own logs of partitions begin, regardless of the archive."""
        return self._brokers.offsets_at(dict.fromkeys(names, _EARLIEST_LOCAL), _LOCAL_OFFSETS)

    def leave_to_brokers(self, ranges: Sequence[OffsetRange], error: ArchiveError) -> None:
        """Log why brokers must serve what files have; SourceError if they could not either."""
        if isinstance(error, ArchiveUriError) and (self._access.uri or self._access.location_options):
            raise OptionError(f"options 'tailrace.archive.*': {error}")
        if not isinstance(error, _IN_OUR_WAY):
            names = {TopicPartition(one.topic, one.partition): one for one in ranges}
            for name, start in self.local_starts(list(names)).items():
                if start > names[name].start:
                    raise SourceError(
                        f"the archive of {name.topic} is damaged, and brokers no longer have offset "
                        f"{names[name].start} of {name} themselves: {error}. Run `tailrace archive verify "
                        f"{name.topic}` for details"
                    )
        _logger.warning("cannot read files of an archive, asking brokers instead: %s", error)
