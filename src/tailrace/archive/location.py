"""The port to where archives are: a directory, an object store or HDFS, all with the same few promises.

A file is written once, whole, under a new name, and appears with all of its bytes or not at all; it is read in ranges,
listed and deleted. Whatever goes wrong is an `ArchiveError` that names the file or location. Nothing here knows what is
in the files.
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
    """One file of a listing: its name within the location, its bytes, and when the location says it was written."""

    name: str
    size: int
    modified_ms: int


class Location(Protocol):
    """A place for files, by names with slashes; safe to use from several threads."""

    uri: str

    def check(self) -> None:
        """Raise what is wrong with the location itself: it does not answer, refuses us, or does not exist."""
        ...

    def create(self) -> None:
        """Make the location where it is a directory; a bucket has to be there already."""
        ...

    def read_all(self, name: str) -> bytes:
        """The whole file."""
        ...

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Exactly so many bytes of a file; ArchiveCorruptError where it ends before that."""
        ...

    def size(self, name: str) -> int:
        """The bytes of a file."""
        ...

    def write_new(self, name: str, data: Buffer) -> None:
        """Write a whole file that lasts when this returns; its directories are made."""
        ...

    def list(self, directory: str) -> Iterator[Entry]:
        """Every file below a directory, in order of names; nothing where there is no such directory."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file; no error where it is gone already."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class ArchiveUri:
    """A URI in its parts, options of its query included."""

    scheme: str
    host: str
    port: int | None
    user: str | None
    path: str
    options: Mapping[str, str]


def parse_uri(uri: str) -> ArchiveUri:
    """Take a URI apart; ArchiveUriError says what is wrong with it."""
    if uri.startswith("/"):
        return ArchiveUri("file", "", None, None, uri, {})
    parts = urlsplit(uri)
    if not parts.scheme:
        raise ArchiveUriError(
            f"'{uri}' is not a place for an archive: give an absolute directory, or a URI that begins with "
            "file:, s3:, webhdfs: or hdfs:"
        )
    try:
        port = parts.port
    except ValueError:
        raise ArchiveUriError(f"the port in '{uri}' is not a number up to 65535") from None
    if parts.password is not None:
        raise ArchiveUriError(
            f"the URI '{parts.scheme}://…@{parts.hostname}' holds a password, which everybody could read who may "
            "describe the topic: give credentials by the environment"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if hidden := sorted(_SECRETS.intersection(options)):
        raise ArchiveUriError(
            f"the URI holds {hidden[0]}, which everybody could read who may describe the topic: give credentials by "
            "the environment"
        )
    return ArchiveUri(parts.scheme, parts.hostname or "", port, parts.username, unquote(parts.path), options)


def open_location(uri: str, options: Mapping[str, str] = NO_OPTIONS) -> Location:
    """The location of a URI; options come before those of its query, which come before the environment.

    Nothing is asked yet: whether it is there shows at the first use, or by `check`.
    """
    parsed = parse_uri(uri)
    merged = {**parsed.options, **options}
    # Each kind is imported when it is first needed: they bring large packages along.
    if parsed.scheme == "file":
        from tailrace.archive.local_directory import open_directory

        return open_directory(uri, parsed)
    if parsed.scheme == "s3":
        from tailrace.archive.object_store import open_bucket

        return open_bucket(uri, parsed, merged)
    if parsed.scheme in ("webhdfs", "hdfs"):
        from tailrace.archive.hdfs import open_hdfs

        return open_hdfs(uri, parsed, merged)
    raise ArchiveUriError(f"'{uri}' begins with '{parsed.scheme}:'; an archive can be at file:, s3:, webhdfs: or hdfs:")


def check_options(uri: str, options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse what is misspelt, rather than go on without it."""
    if unknown := sorted(options.keys() - known):
        raise ArchiveUriError(f"'{uri}' does not know the option '{unknown[0]}'; it knows {', '.join(sorted(known))}")


def check_name(name: str) -> None:
    """Names come from manifests, which others may have written: none may lead out of the location."""
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise ArchiveUriError(f"'{name}' is not the name of a file in an archive")
