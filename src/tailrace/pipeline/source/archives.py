"""What of a query can be read from the files of archives, as brokers and manifests say it at this moment.

Owns the choice between files and brokers, and what happens where files cannot be read. Brokers can serve every offset
there is, from the archive too: so whatever is left to them is read as well, only slower. It must not know Spark.
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

#: Fewer offsets of a partition than these are fetched from its leader, where that still has them itself.
FEW_OFFSETS = 10_000
_ENABLE = "tailrace.archive.enable"
_DESCRIBE = Versions(0, 0)
_EARLIEST_LOCAL = -4
#: The first that knows where a log begins on its leader; only brokers that have archives are asked.
_LOCAL_OFFSETS = Versions(8, 8)
#: So often a manifest may be cleared away between being named and being read.
_TRIES_FOR_A_HEAD = 3
#: What may be in the way of this process and not of the brokers.
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
        #: Whether these brokers have heard of archives; None until they were asked.
        self._are_known: bool | None = None

    def parts(
        self, ranges: Sequence[OffsetRange], lineages: Mapping[str, Lineage]
    ) -> dict[TopicPartition, ArchivedPart]:
        """What of each partition is best read from files; nothing of those that are not here."""
        if not self._access.reads_files or not ranges or not self._ask_whether_known(ranges[0].topic):
            return {}
        parts: dict[TopicPartition, ArchivedPart] = {}
        for topic in self._describe(dict.fromkeys(one.topic for one in ranges)):
            if topic.lineage == lineages.get(topic.name):
                parts |= self._parts_of(topic, [one for one in ranges if one.topic == topic.name])
        return parts

    def _ask_whether_known(self, topic: str) -> bool:
        """Whether brokers know archives, by a question that every Kafka answers."""
        if self._are_known is None:
            try:
                self._are_known = self._brokers.topic_setting(topic, _ENABLE) is not None
            except SourceError:
                return False  # whoever reads the records will find out whether that passes
        return self._are_known

    def _describe(self, topics: Iterable[str]) -> list[DescribedArchive]:
        """The archives that there is something in."""
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
        """What of the ranges is archived, but for what is few and still in the log."""
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
        # Most queries are of topics without an archive, and need none of the packages that read one.
        from tailrace.archive.reader import reader_of

        uri = self._access.uri or topic.uri
        archive = TopicArchive(uri, topic.name, topic.lineage, topic.manifest)
        snapshot = reader_of(uri, self._access.location_options).snapshot(archive)
        return {
            name: ArchivedPart(archive, inside.start, inside.end, snapshot.partition(name.partition))
            for name, inside in wanted.items()
        }

    def local_starts(self, names: Sequence[TopicPartition]) -> Offsets:
        """Where the logs of partitions begin on their leaders, whatever is in the archive."""
        return self._brokers.offsets_at(dict.fromkeys(names, _EARLIEST_LOCAL), _LOCAL_OFFSETS)

    def leave_to_brokers(self, ranges: Sequence[OffsetRange], error: ArchiveError) -> None:
        """Say why brokers are asked for what files have; SourceError where they could do no better."""
        if isinstance(error, ArchiveUriError) and (self._access.uri or self._access.location_options):
            raise OptionError(f"options 'tailrace.archive.*': {error}")
        if not isinstance(error, _IN_OUR_WAY):
            names = {TopicPartition(one.topic, one.partition): one for one in ranges}
            for name, start in self.local_starts(list(names)).items():
                if start > names[name].start:
                    raise SourceError(
                        f"the archive of {name.topic} is damaged, and brokers no longer have offset "
                        f"{names[name].start} of {name} themselves: {error}. What else is wrong says: "
                        f"tailrace archive verify {name.topic}"
                    )
        _logger.warning("files of an archive cannot be read, brokers are asked instead: %s", error)
