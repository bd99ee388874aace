"""All failures of archives, each distinguished by its class and by whether a retry may help.

They cross process boundaries, so each has only its message.
"""

from __future__ import annotations

from tailrace.errors import TailraceError


class ArchiveError(TailraceError):
    """An archive has a problem; the message says what, where, and what to do."""

    #: Whether the same call may succeed later without any intervention.
    is_retriable = False


class ArchiveUriError(ArchiveError):
    """An archive's URI or one of its options is invalid."""


class ArchiveDependencyError(ArchiveError):
    """A package that this kind of location needs is not installed."""


class ArchiveUnreachableError(ArchiveError):
    """The location does not answer, or failed during a call."""

    is_retriable = True


class ArchiveDeniedError(ArchiveError):
    """The location refuses these credentials."""


class ArchiveFullError(ArchiveError):
    """The location has no space left."""

    is_retriable = True


class LocationMissingError(ArchiveError):
    """The bucket or directory of the archive does not exist."""


class FileMissingError(ArchiveError):
    """A file of the archive does not exist, although its location does."""


class FileExistsInArchiveError(ArchiveError):
    """The name of a new file is taken."""


class ArchiveCorruptError(ArchiveError):
    """A file or manifest is truncated, altered, or does not match the entry that names it."""


class NewerFormatError(ArchiveError):
    """A manifest was written by a later tailrace in a format that this one does not support."""


class OffsetNotArchivedError(ArchiveError):
    """An offset is outside the range of the archive."""


class InvalidCommitError(ArchiveError):
    """Files cannot be committed: they overlap, leave a gap, or replace files that do not exist."""
