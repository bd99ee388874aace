"""The leader epoch of every offset: each epoch with its start offset, checkpointed beside the log.

Epochs and start offsets both only grow. Followers and consumers use them to find where to truncate (KIP-101, KIP-320).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence

from tailrace.model import NO_LEADER_EPOCH, NO_OFFSET
from tailrace.runtime.disk import Disk, PassingStorageError
from tailrace.storage.checkpoints import LEADER_EPOCHS, parse_lines, render_lines

logger = logging.getLogger("tailrace.storage")


class LeaderEpochs:
    """The epoch history of one partition log."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._directory = disk.directory(directory)
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._entries: list[tuple[int, int]] = []
        #: The newest epoch in the log, or -1.
        self.latest = NO_LEADER_EPOCH
        self.is_durable = True
        content = disk.read_file(self._path)
        if content is not None:
            try:
                entries = [(int(epoch), int(start)) for epoch, start in parse_lines(content)]
            except (ValueError, UnicodeDecodeError) as error:
                logger.warning("Cannot read %s, rebuilding it from the log: %s", self._path, error)
            else:
                for epoch, start in entries:
                    self._enter(epoch, start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def _enter(self, epoch: int, start_offset: int) -> bool:
        if epoch <= self.latest:
            return False
        # An epoch that wrote nothing is replaced by the one that starts at the same offset.
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        self.latest = epoch
        return True

    def assign(self, epoch: int, start_offset: int) -> None:
        """This epoch writes from the log end on."""
        if self._enter(epoch, start_offset):
            self._save()

    def observe(self, epoch: int, start_offset: int) -> None:
        """Recovery found a batch of this epoch in the log; `truncate` saves the epochs at the end of recovery."""
        if self._enter(epoch, start_offset):
            self.is_durable = False

    def truncate(self, log_start_offset: int, log_end_offset: int) -> None:
        """Drop epochs that have no offsets between the log's start and end."""
        entries = [entry for entry in self._entries if entry[1] < log_end_offset]
        if not entries and self._entries and self._entries[0][1] <= log_end_offset:
            entries = [self._entries[0]]
        while len(entries) > 1 and entries[1][1] <= log_start_offset:
            entries.pop(0)
        if entries and entries[0][1] < log_start_offset:
            entries[0] = (entries[0][0], log_start_offset)
        if entries != self._entries or not self.is_durable:
            self._entries = entries
            self.latest = entries[-1][0] if entries else NO_LEADER_EPOCH
            self._save()

    def cut(self, end_offset: int) -> None:
        """The log now ends at an offset: drop every epoch that starts there or later, including the first."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if len(kept) < len(self._entries):
            self._entries = kept
            self.latest = kept[-1][0] if kept else NO_LEADER_EPOCH
            self._save()

    def adopt(self, entries: Sequence[tuple[int, int]]) -> None:
        """Take over the leader's epochs from before the start of a log that has no records yet."""
        self._entries = []
        self.latest = NO_LEADER_EPOCH
        for epoch, start in entries:
            self._enter(epoch, start)
        self._save()

    def _save(self) -> None:
        self.is_durable = False
        try:
            self._directory.replace_file(LEADER_EPOCHS, self._render(), sync=False)
        except PassingStorageError as error:
            # The next sync writes it, and nothing depends on it before.
            logger.warning("Cannot write %s now, will retry: %s", self._path, error)

    def _render(self) -> bytes:
        return render_lines(f"{epoch} {start}" for epoch, start in self._entries)

    def sync_work(self) -> Callable[[], None]:
        """The blocking call that makes the history durable; it runs as part of a sync of the log."""
        if self.is_durable:
            return lambda: None
        self.is_durable = True
        content = self._render()
        return lambda: self._directory.replace_file(LEADER_EPOCHS, content)

    def sync_failed(self) -> None:
        """The blocking call failed: the next sync must repeat it."""
        self.is_durable = False

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch not above the given one, and the offset where it ended; or (-1, -1)."""
        if epoch < 0:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        if following == len(self._entries):
            return NO_LEADER_EPOCH, NO_OFFSET
        return (self._entries[following - 1][0] if following else epoch), self._entries[following][1]

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote an offset, or -1."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else NO_LEADER_EPOCH
