"""The batch reader: one query over the content of topics between two positions.

The driver plans it and turns positions into offsets; tasks read its ranges. It is pickled in between, so it only holds
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tailrace.model import NO_OFFSET, Lineage, TopicPartition
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.source.archived_ranges import ArchivedPart, Piece, plan_pieces
from tailrace.pipeline.source.archives import Archives
from tailrace.pipeline.source.offsets import Offsets
from tailrace.pipeline.source.options import ReadOptions
from tailrace.pipeline.source.planning import ending_offsets, existing_partitions, starting_offsets
from tailrace.pipeline.source.ranges import OffsetRange, ranges_between
from tailrace.pipeline.source.record_filter import RecordFilter, filter_for

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """The part of a query that one task reads."""

    def __init__(self, value: Piece) -> None:
        super().__init__(value)


class TopicReader(DataSourceReader):
    """Reads topics between two positions, once."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._only = RecordFilter()

    @property
    def pushFilters(self) -> Any:
        """Use filters on topics, partitions, offsets and times; Spark applies all of them again.

        If pushdown is off, which is the default, Spark refuses a reader whose method is not the inherited one. So this
        one claims to be inherited: it is only called if pushdown is on.
        """
        push = partial(self._push)
        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return push

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        self._only = filter_for(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Find the offsets to read, and split them into tasks."""
        brokers = Brokers(self._options.client)
        try:
            ranges, lineages, _ = self._ranges(brokers)
            parts = Archives(brokers, self._options.archive).parts(ranges, lineages)
        finally:
            brokers.close()
        return input_partitions(self._options, ranges, parts, self._only)

    def ranges_and_ends(self) -> tuple[list[OffsetRange], Offsets]:
        """Return the offsets to read of each partition, wherever they are, and the ends of all of them."""
        brokers = Brokers(self._options.client)
        try:
            ranges, _, ends = self._ranges(brokers)
            return ranges, ends
        finally:
            brokers.close()

    def _ranges(self, brokers: Brokers) -> tuple[list[OffsetRange], dict[str, Lineage], Offsets]:
        names = existing_partitions(brokers, self._options.selection)
        starts = starting_offsets(brokers, self._options, names)
        ends = ending_offsets(brokers, self._options, names)
        only = self._only
        taken = [name for name in names if only.takes(name.topic, name.partition)]
        starts = _later(starts, self._first_of_time(brokers, taken))
        lineages = {name.topic: lineage for name, lineage in names.items()}
        ranges = [
            replace(one, start=max(one.start, only.min_offset), end=min(one.end, only.max_offset + 1))
            for one in ranges_between(starts, {name: ends[name] for name in taken}, lineages)
            if max(one.start, only.min_offset) < min(one.end, only.max_offset + 1)
        ]
        return ranges, lineages, ends

    def _first_of_time(self, brokers: Brokers, names: list[TopicPartition]) -> Offsets:
        """Return the offsets below which brokers find no record as young as a filter demands.

        A broker knows the times of a batch from its header, which the producer wrote, and not only Kafka's producers
        exist. A header that understates the largest time hides its records from this search. So it is used only if the
        query accepts that; otherwise all offsets are read, and each record is judged by its own time.
        """
        least_ms = -(-self._only.min_timestamp_us // 1000)
        if not self._options.uses_time_index or least_ms <= 0:
            return {}
        found = brokers.offsets_at(dict.fromkeys(names, least_ms))
        # If no record is that young now, future ones may be: the range ends before them anyway.
        return {name: offset for name, offset in found.items() if offset != NO_OFFSET}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task's range."""
        return read_partition(self._options, self._columns, self._only, partition)


def input_partitions(
    options: ReadOptions,
    ranges: list[OffsetRange],
    parts: Mapping[TopicPartition, ArchivedPart],
    only: RecordFilter,
) -> list[InputPartition]:
    """Return one Spark partition for each task, split as the options demand."""
    pieces = plan_pieces(ranges, parts, only.times_ms, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(piece) for piece in pieces]


def read_partition(
    options: ReadOptions, columns: tuple[str, ...], only: RecordFilter, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield what one task reads; nothing for the partition that Spark adds to a query without any."""
    wanted = partition.value
    if wanted is None:
        return
    # Only tasks decode: the planner does not wait for these imports.
    from tailrace.pipeline.source.fetching import FetchPlan, read_range

    plan = FetchPlan(
        options.client,
        columns,
        only,
        options.fail_on_data_loss,
        options.poll_timeout_ms,
        options.fail_on_corrupt_batch,
    )
    if isinstance(wanted, OffsetRange):
        yield from read_range(plan, wanted)
        return
    from tailrace.pipeline.source.archived_reading import read_piece

    yield from read_piece(plan, options.archive, wanted)


def _later(starts: Offsets, others: Offsets) -> Offsets:
    return {name: max(start, others.get(name, start)) for name, start in starts.items()}
