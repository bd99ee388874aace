"""Writes one task's rows to topics: chooses the partition of each, and passes batches to the producer.

Rows of one partition stay in the order in which Spark passed them. Owns the producer that stays in this Python worker
for its next task, so that a stream does not need a new producer id for every micro-batch. It must not know Spark, only
Arrow.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.pipeline.arrow.record_encoding import (
    MAX_TIME_DELTA_MS,
    Numbers,
    RowError,
    Rows,
    as_bytes,
    encode_headers,
    encode_records,
)
from tailrace.pipeline.connections.producing import BatchProducer
from tailrace.pipeline.sink.columns import WriteColumns
from tailrace.pipeline.sink.partition_choice import Turns, choose_partitions
from tailrace.pipeline.sink.settings import WriteSettings

#: Rows are encoded in portions of about this size, so that only a few at a time are in memory twice.
_PORTION_BYTES = 16 << 20
#: A producer that was idle longer is not reused: its broker may have closed the connection or forgotten it.
_IDLE_SECONDS = 240.0

_idle: dict[WriteSettings, tuple[float, BatchProducer]] = {}


def write_rows(batches: Iterable[pa.RecordBatch], columns: WriteColumns, settings: WriteSettings) -> int:
    """Write all rows, and return their number when every one is acknowledged."""
    producer = _take_producer(settings)
    try:
        rows = TaskRows(producer, columns, settings)
        for batch in batches:
            for portion in portions(batch):
                rows.send(portion)
        producer.flush()
    except BaseException:
        producer.close()
        raise
    for _, other in _idle.values():
        other.close()
    _idle.clear()
    _idle[settings] = (time.monotonic(), producer)
    return rows.count


def _take_producer(settings: WriteSettings) -> BatchProducer:
    since, producer = _idle.pop(settings, (0.0, None))
    if producer is not None and time.monotonic() - since < _IDLE_SECONDS:
        producer.leaders.forget()
        return producer
    if producer is not None:
        producer.close()
    return BatchProducer(settings)


def portions(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of the batch with a suitable size."""
    count = max(1, -(-batch.nbytes // _PORTION_BYTES))
    step = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


@dataclass(frozen=True, slots=True)
class _Targets:
    """Topics, each with as many numbers as the largest of them has partitions."""

    topics: Sequence[str]
    stride: int

    def at(self, lane: int) -> tuple[str, int]:
        """Return the topic and the partition of a number."""
        return self.topics[lane // self.stride], lane % self.stride


class TaskRows:
    """Writes the rows of one task, portion by portion."""

    def __init__(self, producer: BatchProducer, columns: WriteColumns, settings: WriteSettings) -> None:
        self._producer = producer
        self._columns = columns
        self._settings = settings
        self._turns: dict[str, Turns] = {}
        self.count = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Encode a portion of rows and pass it to the producer."""
        places = self._columns
        rows = Rows(
            as_bytes(batch.column(places.value)),
            None if places.key is None else as_bytes(batch.column(places.key)),
            None if places.headers is None else encode_headers(batch.column(places.headers)),
        )
        sizes = rows.size_bounds()
        self._check_sizes(sizes)
        targets, lanes = self._lanes(batch, rows, sizes)
        times_ms = None if places.timestamp is None else _milliseconds(batch.column(places.timestamp))
        if lanes.min() != lanes.max():
            order = np.argsort(_narrow(lanes), kind="stable")
            lanes, sizes, rows = lanes[order], sizes[order], rows.take(order)
            times_ms = None if times_ms is None else times_ms[order]
        self._send_sorted(rows, sizes, lanes, targets, times_ms)
        self.count += batch.num_rows

    def _lanes(self, batch: pa.RecordBatch, rows: Rows, sizes: Numbers) -> tuple[_Targets, Numbers]:
        """Return the number of the topic and partition for each row."""
        keys = None if self._settings.ignore_keys else rows.key
        named = None if self._columns.partition is None else batch.column(self._columns.partition)
        if self._settings.topic is not None:
            count = self._producer.leaders.partition_count(self._settings.topic)
            return _Targets([self._settings.topic], count), self._choose(self._settings.topic, keys, named, sizes)
        assert self._columns.topic is not None
        column = batch.column(self._columns.topic)
        if column.null_count:
            raise RowError("a row has no topic: its column 'topic' is null; fill it, or set the option 'topic'")
        encoded = column.dictionary_encode()
        topics, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        targets = _Targets(topics, max(self._producer.leaders.partition_count(topic) for topic in topics))
        lanes = np.empty(len(sizes), np.int64)
        for place, topic in enumerate(topics):
            mine = np.nonzero(places == place)[0]
            picked = pa.array(mine)
            lanes[mine] = place * targets.stride + self._choose(
                topic,
                None if keys is None else keys.take(picked),
                None if named is None else named.take(picked),
                sizes[mine],
            )
        return targets, lanes

    def _choose(self, topic: str, keys: pa.Array | None, named: pa.Array | None, sizes: Numbers) -> Numbers:
        count = self._producer.leaders.partition_count(topic)
        return choose_partitions(keys, named, sizes, count, topic, self._turns.setdefault(topic, Turns()))

    def _send_sorted(
        self, rows: Rows, sizes: Numbers, lanes: Numbers, targets: _Targets, times_ms: Numbers | None
    ) -> None:
        """Cut rows that are sorted by partition into batches, encode them all at once, and send each."""
        ends = np.cumsum(sizes)
        cuts = [0]
        for end in (*(np.nonzero(np.diff(lanes))[0] + 1).tolist(), len(sizes)):
            topic, _ = targets.at(int(lanes[cuts[-1]]))
            cuts += _cut(ends, cuts[-1], end, self._producer.max_batch_bytes(topic))
        if times_ms is not None:
            cuts = _cut_at_leaps(cuts, times_ms)
        counts = np.diff(cuts)
        deltas = np.concatenate([np.arange(count) for count in counts])
        if times_ms is None:
            records = encode_records(rows, deltas)
            now_ms = time.time_ns() // 1_000_000
            firsts = latest = np.full(len(counts), now_ms, np.int64)
        else:
            firsts, latest = times_ms[cuts[:-1]], np.maximum.reduceat(times_ms, cuts[:-1])
            records = encode_records(rows, deltas, times_ms - np.repeat(firsts, counts))
        for place, (first, end) in enumerate(itertools.pairwise(cuts)):
            topic, partition = targets.at(int(lanes[first]))
            section = records.section(first, end)
            self._producer.send(topic, partition, section, end - first, int(firsts[place]), int(latest[place]))

    def _check_sizes(self, sizes: Numbers) -> None:
        limit = self._settings.max_record_bytes
        if limit is not None and int(sizes.max()) > limit:
            raise RowError(
                f"a row of {int(sizes.max()):,} bytes is larger than 'kafka.max.request.size', which is {limit:,}"
            )


def _cut(ends: Numbers, first: int, end: int, limit: int) -> list[int]:
    """Return where to cut the rows from `first` to before `end` into batches below the limit, at least one each."""
    cuts = []
    while first < end:
        before = int(ends[first - 1]) if first else 0
        first = min(end, max(first + 1, int(np.searchsorted(ends, before + limit, side="right"))))
        cuts.append(first)
    return cuts


def _cut_at_leaps(cuts: list[int], times_ms: Numbers) -> list[int]:
    """Add cuts where a row's time is too far from its batch's first time to be encoded."""
    finer = [0]
    for first, end in itertools.pairwise(cuts):
        while (leaps := np.nonzero(np.abs(times_ms[first:end] - times_ms[first]) > MAX_TIME_DELTA_MS)[0]).size:
            first += int(leaps[0])
            finer.append(first)
        finer.append(end)
    return finer


def _milliseconds(column: pa.Array) -> Numbers:
    """Return Spark's times, which are microseconds, as milliseconds."""
    microseconds: Numbers = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return microseconds // 1000


def _narrow(lanes: Numbers) -> npt.NDArray[Any]:
    """Use 16 bits for small numbers, which numpy then sorts by digits and not by comparing."""
    return lanes.astype(np.int16) if int(lanes.max()) < 1 << 15 else lanes
