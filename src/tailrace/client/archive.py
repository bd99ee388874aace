"""The archive of a topic as brokers know it, for programs that write archives or read them without brokers.

Owns the two requests and the meaning of their responses. Must not know files: the archive itself owns its manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tailrace.archive.layout import TopicArchive
from tailrace.client.cluster import describe_cluster
from tailrace.client.errors import ClientError, NoAnswerError, UnknownTopicError
from tailrace.client.request import ask
from tailrace.errors import ErrorCode
from tailrace.model import Lineage
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest, ArchiveCommitResponse
from tailrace.wire.messages.archive_describe import (
    ArchiveDescribeRequest,
    ArchiveDescribeResponse,
    ArchivedPartition,
    DescribedArchive,
)

_PLAIN = Versions(0, 0)
_CHECKING = Versions(1, 1)
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class ArchiveConflictError(ClientError):
    """Another archiver has committed since the archive was described: describe it again and continue from there."""


class CommitUnknownError(ClientError):
    """It is unknown whether the commit was made: describe the archive, and check whether it has the manifest."""


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The archive of one topic."""

    topic: str
    lineage: Lineage
    #: Whether the topic is configured to have one.
    is_enabled: bool
    uri: str
    #: How long it keeps records; -1 means for ever.
    retention_ms: int
    #: The number of commits so far; the next commit must give it.
    version: int
    #: The name of the newest manifest; empty before the first commit.
    manifest: str
    #: The number of partitions of the topic.
    partition_count: int
    #: The archived offsets [start, end) of each partition; a missing partition has none.
    partitions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: The offsets below which records were deleted; the archive may drop them.
    deleted_below: Mapping[int, int] = field(default_factory=dict)

    @property
    def archive(self) -> TopicArchive:
        """Its location and newest manifest, as readers of archives take them."""
        return TopicArchive(self.uri, self.topic, self.lineage, self.manifest or None)


def describe(bootstrap: str, topic: str) -> ArchiveStatus:
    """Describe what of a topic is archived."""
    request = ArchiveDescribeRequest(topics=[topic])
    response = ask(bootstrap, request, _PLAIN, ArchiveDescribeResponse, doing="describing an archive")
    if len(response.archives) != 1:
        raise ClientError(f"the broker at {bootstrap} did not report what of {topic} is archived")
    return _archive(response.archives[0])


def describe_archived(bootstrap: str, topic: str) -> ArchiveStatus:
    """Describe what of a topic is archived; ClientError if it is nothing."""
    found = describe(bootstrap, topic)
    if not found.version:
        command = f"tailrace pipeline archive {topic}{'' if found.is_enabled else ' --to URI'}"
        raise ClientError(f"nothing of {topic} is archived yet; archive it with: {command}")
    return found


@dataclass(frozen=True, slots=True)
class ArchiveReader:
    """A broker with replicas of a topic, and why it cannot read the topic's archive; None if it can."""

    broker_id: int
    failure: str | None


def readers(bootstrap: str, topic: str) -> list[ArchiveReader]:
    """Ask every live broker with replicas of a topic whether it can read the topic's archive."""
    cluster = describe_cluster(bootstrap)
    replicas = {replica for each in cluster.partitions if each.topic == topic for replica in each.replicas}
    request = ArchiveDescribeRequest(topics=[topic], checks_reading=True)
    found = []
    for broker in cluster.brokers:
        if broker.broker_id in replicas:
            try:
                response = ask(
                    broker.address,
                    request,
                    _CHECKING,
                    ArchiveDescribeResponse,
                    doing="checking whether it can read an archive",
                )
                failure = response.archives[0].read_failure
            except ClientError as error:
                failure = str(error)
            found.append(ArchiveReader(broker.broker_id, failure))
    return found


def _archive(found: DescribedArchive) -> ArchiveStatus:
    if found.error_code in _UNKNOWN:
        raise UnknownTopicError(f"topic '{found.name}' does not exist; list all topics with: tailrace topic list")
    if found.error_code:
        raise ClientError(f"cannot describe the archive of {found.name}: {found.error_message}")
    return ArchiveStatus(
        found.name,
        found.lineage,
        found.is_enabled,
        found.uri,
        found.retention_ms,
        found.version,
        found.manifest,
        len(found.partitions),
        MappingProxyType(
            {
                each.partition_index: (each.start_offset, each.end_offset)
                for each in found.partitions
                if each.end_offset >= 0
            }
        ),
        MappingProxyType({each.partition_index: each.deleted_below for each in found.partitions if each.deleted_below}),
    )


def commit(
    bootstrap: str,
    archive: ArchiveStatus,
    manifest: str,
    partitions: Mapping[int, tuple[int, int]],
) -> int:
    """Make a manifest the newest one of the described archive; return the archive's new version.

    `partitions` has the whole range [start, end) of every partition that changes. Repeating a commit whose response was
    lost succeeds again.
    """
    request = ArchiveCommitRequest(
        lineage=archive.lineage,
        expected_version=archive.version,
        uri=archive.uri,
        manifest=manifest,
        partitions=[
            ArchivedPartition(partition_index=number, start_offset=start, end_offset=end)
            for number, (start, end) in sorted(partitions.items())
        ],
    )
    doing = f"committing to the archive of {archive.topic}"
    try:
        response = ask(bootstrap, request, _PLAIN, ArchiveCommitResponse, doing=doing)
    except NoAnswerError as error:
        raise CommitUnknownError(str(error)) from error
    message = response.error_message or f"error {response.error_code}"
    if response.error_code == ErrorCode.INVALID_UPDATE_VERSION:
        raise ArchiveConflictError(message)
    if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
        raise CommitUnknownError(
            f"the metadata store did not report whether it committed to the archive of {archive.topic}: {message}"
        )
    if response.error_code in _UNKNOWN:
        raise UnknownTopicError(message)
    if response.error_code:
        raise ClientError(f"cannot commit to the archive of {archive.topic}: {message}")
    return response.version
