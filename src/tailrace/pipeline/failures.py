"""What can go wrong between Spark and a topic, in words that say what to do about it.

They are raised in Spark's Python workers and arrive in the user's program as the last line of a traceback inside
another exception, so every name here ends in `Error` and every message makes sense alone.
"""

from __future__ import annotations

from tailrace.errors import TailraceError


class SourceError(TailraceError):
    """The data source `tailrace` cannot do what it was asked to."""


class OptionError(SourceError):
    """An option of the data source is missing, unknown, or has a value that makes no sense."""


class UnreachableBrokerError(SourceError):
    """No broker of the cluster answers."""


class UnknownTopicError(SourceError):
    """A topic or partition that was asked for does not exist."""


class DataLossError(SourceError):
    """Records that should be read are no longer there."""


class CorruptRecordsError(SourceError):
    """Bytes that a broker sent as records are not records."""

    #: Only what is wrong, without where.
    why = ""


class CorruptBatchError(CorruptRecordsError):
    """A batch that its producer sent, CRC and all, cannot be decoded."""
