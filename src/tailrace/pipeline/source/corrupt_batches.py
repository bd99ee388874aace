"""What a query does about undecodable batches: it fails and names one, or skips them and logs how many.

Such a batch has a valid CRC: the producer sent it so. It must not know the reader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tailrace.archive.location import Location
from tailrace.archive.quarantine import SideFile, read_side_file
from tailrace.pipeline.failures import CorruptBatchError
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.records.batch import BatchHeader

_logger = logging.getLogger("tailrace.pipeline")
_SHOWN = 5


def corrupt_batch(where: OffsetRange, header: BatchHeader, reason: str) -> CorruptBatchError:
    """Return the error that says which batch cannot be decoded, why, and what to do."""
    return CorruptBatchError(
        f"the batch at offsets {header.base_offset} to {header.last_offset} of {where.topic}-{where.partition} "
        f"cannot be decoded: {reason}. Its producer sent it so. To skip such batches, set the option "
        "failOnCorruptBatch=false (tailrace sql and replay: --skip-corrupt)"
    )


class CorruptBatches:
    """The undecodable batches of one range."""

    def __init__(self, where: OffsetRange, *, fail: bool) -> None:
        self._where = where
        self._fail = fail
        self._batches = 0
        self._records = 0
        self._shown: list[str] = []
        self._reason = ""

    def take(self, header: BatchHeader, data: memoryview, reason: str) -> None:
        """Take a batch from a decoder."""
        self.meet(header, reason)

    def meet(self, header: BatchHeader, reason: str) -> None:
        """Fail because of a batch, or count it."""
        if self._fail:
            raise corrupt_batch(self._where, header, reason)
        first, last = max(header.base_offset, self._where.start), min(header.next_offset, self._where.end) - 1
        self._batches += 1
        self._records += last - first + 1
        self._reason = self._reason or reason
        if len(self._shown) < _SHOWN:
            self._shown.append(f"{first} to {last}")

    def meet_quarantined(self, location: Location, directory: str, side_files: Iterable[SideFile]) -> None:
        """Fail because of quarantined batches of an archive, or log how many of the range are skipped."""
        for file in side_files:
            for header in read_side_file(location, directory, file).between(self._where.start, self._where.end):
                self.meet(header, f"{file.reason} (quarantined in the archive)")
        self.say()

    def say(self) -> None:
        """Log how many batches were skipped, if any."""
        if not self._batches:
            return
        batches = "1 batch" if self._batches == 1 else f"{self._batches} batches"
        more = ", …" if self._batches > len(self._shown) else ""
        _logger.warning(
            "%s-%d: skipped %s of %d offsets that cannot be decoded, at offsets %s%s (%s); continuing because of "
            "failOnCorruptBatch=false",
            self._where.topic,
            self._where.partition,
            batches,
            self._records,
            ", ".join(self._shown),
            more,
            self._reason,
        )
        self._batches = 0
