"""The port for the location of archives: a directory, an object store or HDFS, with the same small set of promises.

A file is written once, as a whole, under a new name, and appears with all of its bytes or not at all. It can be read in
ranges, listed and deleted. Every failure is an `ArchiveError` that names the file or location. This module knows
nothing of the content of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from tailrace.archive.errors import ArchiveUriError
from tailrace.runtime.disk import Buffer

NO_OPTIONS: Mapping[str, str] = {}
_SECRETS = frozenset(("access_key", "secret_key", "session_token", "token", "password"))


class Entry(NamedTuple):
    """A listed file: its name within the location, its size, and its modification time according to the location."""

    name: str
    size: int
    modified_ms: int


class Location(Protocol):
    """A place for files with slashes in their names; safe to use from several threads."""

    uri: str

    def check(self) -> None:
        """Raise an error if the location is unreachable, denies access, or does not exist."""
        ...

    def create(self) -> None:
        """Create the location if it is a directory; a bucket must already exist."""
        ...

    def read_all(self, name: str) -> bytes:
        """Read a whole file."""
        ...

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Read exactly `length` bytes of a file; ArchiveCorruptError if it ends before."""
        ...

    def size(self, name: str) -> int:
        """The size of a file."""
        ...

    def write_new(self, name: str, data: Buffer) -> None:
        """Write a whole file, durable on return, and create its directories."""
        ...

    def list(self, directory: str) -> Iterator[Entry]:
        """All files below a directory, ordered by name; none if the directory does not exist."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; no error if it is already gone."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@dataclass(frozen=True, slots=True)
class ArchiveUri:
    """The parts of a URI, with the options in its query."""

    scheme: str
    host: str
    port: int | None
    user: str | None
    path: str
    options: Mapping[str, str]


def parse_uri(uri: str) -> ArchiveUri:
    """Parse a URI; the ArchiveUriError explains the problem."""
    if uri.startswith("/"):
        return ArchiveUri("file", "", None, None, uri, {})
    parts = urlsplit(uri)
    if not parts.scheme:
        raise ArchiveUriError(
            f"'{uri}' is not a valid archive location: use an absolute directory, or a URI that starts with "
            "file:, s3:, webhdfs: or hdfs:"
        )
    try:
        port = parts.port
    except ValueError:
        raise ArchiveUriError(f"the port in '{uri}' is not a number up to 65535") from None
    if parts.password is not None:
        raise ArchiveUriError(
            f"the URI '{parts.scheme}://…@{parts.hostname}' contains a password, which everyone who may describe the "
            "topic could read: provide credentials in the environment"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if hidden := sorted(_SECRETS.intersection(options)):
        raise ArchiveUriError(
            f"the URI contains {hidden[0]}, which everyone who may describe the topic could read: provide credentials "
            "in the environment"
        )
    return ArchiveUri(parts.scheme, parts.hostname or "", port, parts.username, unquote(parts.path), options)


def open_location(uri: str, options: Mapping[str, str] = NO_OPTIONS) -> Location:
    """The location of a URI. Explicit options override those in its query, which override the environment.

    No server is contacted yet: whether the location exists shows on first use, or in `check`.
    """
    parsed = parse_uri(uri)
    merged = {**parsed.options, **options}
    # Imported on demand, because some bring large packages.
    if parsed.scheme == "file":
        from tailrace.archive.local_directory import open_directory

        return open_directory(uri, parsed)
    if parsed.scheme == "s3":
        from tailrace.archive.object_store import open_bucket

        return open_bucket(uri, parsed, merged)
    if parsed.scheme in ("webhdfs", "hdfs"):
        from tailrace.archive.hdfs import open_hdfs

        return open_hdfs(uri, parsed, merged)
    raise ArchiveUriError(f"'{uri}' starts with '{parsed.scheme}:', but must start with file:, s3:, webhdfs: or hdfs:")


def check_options(uri: str, options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse unknown options instead of ignoring them, because they may be misspelt."""
    if unknown := sorted(options.keys() - known):
        raise ArchiveUriError(f"'{uri}' has the unknown option '{unknown[0]}'; use one of {', '.join(sorted(known))}")


def check_name(name: str) -> None:
    """Refuse names that lead out of the location; they come from manifests, which others may have written."""
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise ArchiveUriError(f"'{name}' is not the name of a file in an archive")
