"""Errors between Spark and a topic, in words that say what to do about them.

They are raised in Spark's Python workers and reach the user's program as the last line of a traceback inside another
exception. So every name here ends in `Error`, and every message must be understandable alone.
"""

from __future__ import annotations

from tailrace.errors import TailraceError


class SourceError(TailraceError):
    """The data source `tailrace` cannot do what it was asked to do."""


class OptionError(SourceError):
    """An option of the data source is missing, unknown or invalid."""


class UnreachableBrokerError(SourceError):
    """No broker of the cluster responds."""


class UnknownTopicError(SourceError):
    """A requested topic or partition does not exist."""


class DataLossError(SourceError):
    """Records to read are no longer there."""


class CorruptRecordsError(SourceError):
    """A broker sent bytes that are not valid records."""

    #: The problem without its position.
    why = ""


class CorruptBatchError(CorruptRecordsError):
    """A batch with a valid CRC cannot be decoded: its producer sent it so."""
