"""What the parts of a log directory know of it: which logs are open, and whether the disk still works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.tasks import Tasks
from tailrace.storage.partition_log import PartitionLog

#: How long work that the disk refused for now, being full or out of descriptors, waits before it is tried again.
RETRY_SECONDS = 1.0


class LogHome(Protocol):
    """The log directory as its parts see it."""

    path: str
    #: Why the directory is offline.
    failure: StorageError | None
    #: Told when a log may promise more than before.
    on_promise: Callable[[PartitionLog], None]
    tasks: Tasks
    is_closing: bool

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """The open logs, by partition."""
        ...

    def is_open(self, log: PartitionLog) -> bool:
        """Whether a log is still the one of its partition here."""
        ...

    def holds(self, log: PartitionLog) -> bool:
        """Whether a log is still the one of its partition here, on a disk that works."""
        ...

    def fail(self, error: StorageError) -> None:
        """Take the directory offline."""
        ...

    async def insist(self, call: Callable[[], None], problem: str) -> None:
        """Make a call in a thread, again and again while the disk refuses it for a reason that passes."""
        ...
