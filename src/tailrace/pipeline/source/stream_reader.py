"""The stream reader: what a running query reads next, batch after batch.

It is on the driver for as long as the query runs. Everything that must survive it is in the offsets in the query's
checkpoint, including the ids of topics, so that a topic that was deleted and created again is recognized. Beyond that
it only remembers when it last gave Spark something to read. Nothing depends on `commit`, which comes a batch late or
never.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tailrace.model import Lineage, TopicPartition
from tailrace.pipeline.connections.brokers import Brokers, is_other_topic
from tailrace.pipeline.failures import UnknownTopicError
from tailrace.pipeline.source.archives import Archives
from tailrace.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    StreamOffset,
    from_stream_offset,
    lineages_in,
    to_stream_offset,
)
from tailrace.pipeline.source.options import ReadOptions
from tailrace.pipeline.source.planning import existing_partitions, report_data_loss, starting_offsets
from tailrace.pipeline.source.ranges import limit_ends, ranges_between
from tailrace.pipeline.source.reader import input_partitions, read_partition
from tailrace.pipeline.source.record_filter import RecordFilter

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.pipeline.source.progress import GroupProgress

#: How often a log end is asked for again before the log counts as shorter than before.
_TRIES_FOR_AN_END = 10


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics for as long as a query runs."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._brokers: Brokers | None = None
        self._archives: Archives | None = None
        #: Where a query ends that must only read what exists now.
        self._target: Offsets | None = None
        #: The topics at the last check, or when the target was set.
        self._lineages: dict[str, Lineage] = {}
        #: Topics that were created again since offsets without ids were read, from a checkpoint of an earlier version.
        self._created_again: set[Lineage] = set()
        self._last_trigger = time.monotonic()
        self._latest: Offsets | None = None
        self._progress: GroupProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need; connections stay here."""
        return {"_options": self._options, "_columns": self._columns}

    def initialOffset(self) -> StreamOffset:
        """Return where a query without a checkpoint begins."""
        brokers = self._cluster()
        partitions = existing_partitions(brokers, self._options.selection)
        self._remember(partitions)
        return to_stream_offset(starting_offsets(brokers, self._options, partitions), self._lineages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the present log ends, and read no further."""
        self._target = self._ends({}, {})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; a minimum beside it is handled here."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Return where the next batch ends."""
        before, known = from_stream_offset(start), lineages_in(start)
        self._show_progress(before)
        ends = self._ends(before, known) if self._target is None else self._target
        self._check_same_topics(known)
        self._check_nothing_lost(before, ends, known)
        begins = self._begins(before, ends, known, self._lineages)
        available = sum(max(0, end - begins[name]) for name, end in ends.items())
        if self._shall_wait(available, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limit_ends(begins, ends, limit.max_rows)
        if ends == before and not self._replaced(known, self._lineages):
            return start
        self._last_trigger = time.monotonic()
        return to_stream_offset(ends, self._lineages)

    def reportLatestOffset(self) -> StreamOffset | None:
        """Return the last known log ends, which a query's progress shows."""
        return None if self._latest is None else to_stream_offset(self._latest)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        """Return the tasks of one batch."""
        before, ends = from_stream_offset(start), from_stream_offset(end)
        known, planned = lineages_in(start), lineages_in(end)
        if not self._lineages:  # after a restart, Spark plans the last batch again before anything else
            self._remember(self._cluster().partitions(self._options.selection))
        begins = self._begins(before, ends, known, planned)
        for topic in self._replaced(planned, self._lineages):
            # It was created again after this batch was first planned.
            self._lose(f"{_created_again(topic)}, and the batch to read is lost")
            ends = {name: end for name, end in ends.items() if name.topic != topic}
        ranges = ranges_between(begins, ends, {**self._lineages, **planned})
        if self._archives is None:
            self._archives = Archives(self._cluster(), self._options.archive)
        return input_partitions(self._options, ranges, self._archives.parts(ranges, self._lineages), RecordFilter())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task's range."""
        return read_partition(self._options, self._columns, RecordFilter(), partition)

    def stop(self) -> None:
        """Close all connections."""
        if self._progress is not None:
            self._progress.close()
        if self._brokers is not None:
            self._brokers.close()

    def _show_progress(self, processed: Offsets) -> None:
        """Commit to the query's group, if it has one: a new batch is planned when the previous one is done."""
        client = self._options.client
        if client.group_id is None:
            return
        if self._progress is None:
            # Most queries have no group, and need no second client.
            from tailrace.pipeline.source.progress import GroupProgress

            self._progress = GroupProgress(client.cluster.bootstrap, client.group_id)
        self._progress.processed({(name.topic, name.partition): offset for name, offset in processed.items()})

    def _cluster(self) -> Brokers:
        if self._brokers is None:
            self._brokers = Brokers(self._options.client)
        return self._brokers

    def _ends(self, before: Mapping[TopicPartition, int], known: Mapping[str, Lineage]) -> Offsets:
        """Return the log ends of all present partitions, including new ones."""
        brokers = self._cluster()
        tries = 0
        while True:
            partitions = brokers.partitions(self._options.selection)
            try:
                ends = brokers.offsets_at(dict.fromkeys(partitions, LATEST))
            except UnknownTopicError:  # deleted between the two requests
                continue
            tries += 1
            ids = {name.topic: lineage for name, lineage in partitions.items()}
            others = self._replaced(known, ids)
            # A new leader may not know for a moment what was committed before.
            if tries < _TRIES_FOR_AN_END and any(
                end < before.get(name, end) for name, end in ends.items() if name.topic not in others
            ):
                time.sleep(self._options.client.cluster.retry_backoff_ms / 1000)
                continue
            self._note_created_again(ids, known)
            self._lineages = ids
            self._latest = ends
            return ends

    def _begins(
        self, before: Offsets, ends: Offsets, known: Mapping[str, Lineage], planned: Mapping[str, Lineage]
    ) -> Offsets:
        """Return where each partition of a batch begins: at its start if it is new, or shorter than before."""
        others = self._replaced(known, planned)
        fresh = [name for name, end in ends.items() if name.topic in others or end < before.get(name, end + 1)]
        if not fresh:
            return before
        found = self._cluster().offsets_at(dict.fromkeys(fresh, EARLIEST))
        for name, earliest in found.items():
            if earliest > 0 and (name not in before or name.topic in others):
                self._lose(f"{name} is new and begins at offset {earliest}, so earlier ones are lost")
        # A batch that is planned again after a restart may be from a log that has lost records since.
        return {**before, **{name: min(earliest, ends[name]) for name, earliest in found.items()}}

    def _check_nothing_lost(
        self, before: Mapping[TopicPartition, int], ends: Offsets, known: Mapping[str, Lineage]
    ) -> None:
        gone = [str(name) for name in before if name not in ends]
        if gone:
            self._lose(f"partitions {', '.join(gone)} are gone; their unread records are lost")
        others = self._replaced(known, self._lineages)
        for name, end in ends.items():
            if end < before.get(name, end) and name.topic not in others:
                self._lose(
                    f"{name} ends at offset {end} but was read up to {before[name]}: its topic was probably "
                    "deleted and created again, and unread records of the old one are lost"
                )

    def _check_same_topics(self, known: Mapping[str, Lineage]) -> None:
        """Detect replaced topics: offsets mean nothing in another topic with the same name."""
        for topic in self._replaced(known, self._lineages):
            self._lose(f"{_created_again(topic)}; its unread records are lost")

    def _replaced(self, known: Mapping[str, Lineage], now: Mapping[str, Lineage]) -> list[str]:
        """Return the topics that were replaced, by the known ids."""
        return [
            topic
            for topic, lineage in now.items()
            if (is_other_topic(known[topic], lineage) if topic in known else lineage in self._created_again)
        ]

    def _note_created_again(self, ids: Mapping[str, Lineage], known: Mapping[str, Lineage]) -> None:
        """Remember what a checkpoint without ids cannot tell."""
        for topic, lineage in ids.items():
            if topic not in known and is_other_topic(self._lineages.get(topic), lineage):
                self._created_again.add(lineage)

    def _remember(self, partitions: Mapping[TopicPartition, Lineage]) -> None:
        self._lineages = {name.topic: lineage for name, lineage in partitions.items()}

    def _shall_wait(self, available: int, limit: ReadLimit) -> bool:
        """True if there is too little for a batch, and its time has not come."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waited_ms = (time.monotonic() - self._last_trigger) * 1000
        return available < least and waited_ms < self._options.max_trigger_delay_ms

    def _lose(self, message: str) -> None:
        report_data_loss(message, fail=self._options.fail_on_data_loss)


def _created_again(topic: str) -> str:
    return f"topic '{topic}' was deleted and created again"
