"""Every way in which an archive can fail, each told apart by its class and by whether trying again may help.

They cross process borders, so each carries its message and nothing else.
"""

from __future__ import annotations

from tailrace.errors import TailraceError


class ArchiveError(TailraceError):
    """Something is wrong with an archive; the message says what, where, and what to do."""

    #: Whether the same call may succeed later without anybody changing anything.
    is_retriable = False


class ArchiveUriError(ArchiveError):
    """An archive's URI, or an option of it, is not one that can be used."""


class ArchiveDependencyError(ArchiveError):
    """A package that this kind of location needs is not installed."""


class ArchiveUnreachableError(ArchiveError):
    """The location does not answer, or failed while it did."""

    is_retriable = True


class ArchiveDeniedError(ArchiveError):
    """The location refuses these credentials."""


class ArchiveFullError(ArchiveError):
    """The location has no space left."""

    is_retriable = True


class LocationMissingError(ArchiveError):
    """The bucket or directory that the archive is in does not exist."""


class FileMissingError(ArchiveError):
    """A file of the archive does not exist although its location does."""


class FileExistsInArchiveError(ArchiveError):
    """A file was to be written under a name that is taken."""


class ArchiveCorruptError(ArchiveError):
    """A file or a manifest is torn or altered, or does not fit what names it."""


class NewerFormatError(ArchiveError):
    """A manifest was written by a later tailrace, in a format that this one does not know."""


class OffsetNotArchivedError(ArchiveError):
    """An offset lies outside of what the archive holds."""


class InvalidCommitError(ArchiveError):
    """Files cannot become part of an archive: they overlap, leave a hole, or replace what is not there."""
