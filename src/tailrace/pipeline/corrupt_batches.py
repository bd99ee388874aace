"""What a query does about batches that nobody can decode: it fails and names one, or skips them and says how many.

Such a batch has a right CRC: the producer sent it so. It must not know where batches come from.
"""

from __future__ import annotations

import logging

from tailrace.pipeline.failures import CorruptBatchError
from tailrace.pipeline.ranges import OffsetRange
from tailrace.records.batch import BatchHeader

_logger = logging.getLogger("tailrace.pipeline")
_SHOWN = 5


def corrupt_batch(where: OffsetRange, header: BatchHeader, reason: str) -> CorruptBatchError:
    """Say which batch cannot be decoded, why, and what to do."""
    return CorruptBatchError(
        f"the batch at offsets {header.base_offset} to {header.last_offset} of {where.topic}-{where.partition} cannot "
        f"be decoded: {reason}. Its producer sent it so. To go on without such batches, set the option "
        "failOnCorruptBatch=false"
    )


class CorruptBatches:
    """The batches of one range that cannot be decoded."""

    def __init__(self, where: OffsetRange, *, fail: bool) -> None:
        self._where = where
        self._fail = fail
        self._batches = 0
        self._records = 0
        self._shown: list[str] = []
        self._reason = ""

    def take(self, header: BatchHeader, data: memoryview, reason: str) -> None:
        """A decoder met a batch."""
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

    def say(self) -> None:
        """Log how many were skipped, where any were."""
        if not self._batches:
            return
        batches = "1 batch" if self._batches == 1 else f"{self._batches} batches"
        more = ", …" if self._batches > len(self._shown) else ""
        _logger.warning(
            "%s-%d: skipped %s of %d offsets that cannot be decoded, at offsets %s%s (%s); going on, as "
            "failOnCorruptBatch=false asks",
            self._where.topic,
            self._where.partition,
            batches,
            self._records,
            ", ".join(self._shown),
            more,
            self._reason,
        )
        self._batches = 0
