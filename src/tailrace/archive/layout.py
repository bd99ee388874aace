"""The file names of an archive, relative to the URI of its location.

    topic=<name>/id=<topic id>/partition=<p>/<first offset>-<last offset>-<unique>.parquet
    topic=<name>/id=<topic id>/quarantine/partition=<p>/<first offset>-<last offset>-<unique>.batches
    topic=<name>/id=<topic id>/manifest/<version>-<unique>-<CRC-32C of its content>.json

Names are relative paths with slashes, on every kind of location. Each attempt to write a file uses a unique name, so no
name is written twice, and leftovers of a lost attempt are never read.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from tailrace.archive.errors import ArchiveCorruptError
from tailrace.model import Lineage
from tailrace.storage.checkpoints import encode_uuid

MANIFEST_DIRECTORY = "manifest"
#: The prefix of a file that is still being written, or was never finished.
UNFINISHED_PREFIX = ".unfinished-"
_UNIQUE_BYTES = 8

_MANIFEST_NAME = re.compile(r"([0-9]{20})-[0-9a-f]+-([0-9a-f]{8})\.json")
_DATA_NAME = re.compile(r"partition=([0-9]+)/([0-9]{20})-([0-9]{20})-[0-9a-f]+\.parquet")
_SIDE_NAME = re.compile(r"quarantine/partition=([0-9]+)/([0-9]{20})-([0-9]{20})-[0-9a-f]+\.batches")


@dataclass(frozen=True, slots=True)
class TopicArchive:
    """One topic's archive at one moment: its location and its head manifest (None before the first)."""

    uri: str
    topic: str
    lineage: Lineage
    manifest: str | None

    @property
    def directory(self) -> str:
        return topic_directory(self.topic, self.lineage)


def topic_directory(topic: str, lineage: Lineage) -> str:
    """The directory of a topic's files; a later topic of the same name has another one."""
    return f"topic={topic}/id={encode_uuid(lineage)}"


def unique() -> str:
    """A unique part of a name."""
    return secrets.token_hex(_UNIQUE_BYTES)


def data_file_name(partition: int, first_offset: int, next_offset: int) -> str:
    """A new name for a data file, within the topic's directory."""
    return f"partition={partition}/{first_offset:020d}-{next_offset - 1:020d}-{unique()}.parquet"


def side_file_name(partition: int, first_offset: int, next_offset: int) -> str:
    """A new name for a file of quarantined batches, within the topic's directory."""
    return f"quarantine/partition={partition}/{first_offset:020d}-{next_offset - 1:020d}-{unique()}.batches"


def checksum(data: Any) -> str:
    """The checksum of bytes, in the format of manifests."""
    return f"crc32c:{crc32c(data):08x}"


def manifest_name(version: int, content: bytes) -> str:
    """A new name for a manifest, with the checksum of its content, so that the name proves the content."""
    return f"{version:020d}-{unique()}-{crc32c(content):08x}.json"


def check_manifest(name: str, content: bytes) -> int:
    """The version in a manifest's name; ArchiveCorruptError if the content does not match its checksum."""
    match = _MANIFEST_NAME.fullmatch(name)
    if match is None:
        raise ArchiveCorruptError(f"'{name}' is not the name of a manifest")
    if crc32c(content) != int(match[2], 16):
        raise ArchiveCorruptError(f"manifest {name} was altered or truncated: its checksum is {crc32c(content):08x}")
    return int(match[1])


def is_data_file(name: str) -> bool:
    """Whether a name within a topic's directory is that of a data file."""
    return _DATA_NAME.fullmatch(name) is not None


def is_side_file(name: str) -> bool:
    """Whether a name within a topic's directory is that of a file of quarantined batches."""
    return _SIDE_NAME.fullmatch(name) is not None


def file_span(name: str) -> tuple[int, int, int] | None:
    """The partition, first offset and next offset in the name of a data or side file; None for other names."""
    match = _DATA_NAME.fullmatch(name) or _SIDE_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]) + 1)


def is_manifest(name: str) -> bool:
    """Whether a name within a topic's directory is that of a manifest."""
    directory, _, file = name.rpartition("/")
    return directory == MANIFEST_DIRECTORY and _MANIFEST_NAME.fullmatch(file) is not None


def manifest_version(file: str) -> int:
    """The version in the name of a manifest; ArchiveCorruptError if it is not one."""
    match = _MANIFEST_NAME.fullmatch(file)
    if match is None:
        raise ArchiveCorruptError(f"'{file}' is not the name of a manifest")
    return int(match[1])


def manifest_path(archive_directory: str, name: str) -> str:
    """The path of a manifest within the location."""
    return f"{archive_directory}/{MANIFEST_DIRECTORY}/{name}"
