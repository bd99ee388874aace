"""What the parts of a log directory know of it: which logs are open, and whether its disk works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.tasks import Tasks
from tailrace.storage.partition_log import PartitionLog

#: Delay before work is retried that the disk refused because it is full or descriptors ran out.
RETRY_SECONDS = 1.0


class LogHome(Protocol):
    """The log directory as its parts see it."""

    path: str
    #: The error that took the directory offline, or None.
    failure: StorageError | None
    #: Called when a log may promise more than before.
    on_promise: Callable[[PartitionLog], None]
    tasks: Tasks
    is_closing: bool

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """The open logs, by partition."""
        ...

    def is_open(self, log: PartitionLog) -> bool:
        """Whether a log is still the open log of its partition here."""
        ...

    def holds(self, log: PartitionLog) -> bool:
        """Whether a log is still the open log of its partition here, and may be worked on."""
        ...

    def fail(self, error: StorageError) -> None:
        """Take the directory offline."""
        ...

    async def insist(self, call: Callable[[], None], problem: str) -> None:
        """Make a call in a thread, and retry as long as the disk refuses it for a passing reason."""
        ...
