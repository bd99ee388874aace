"""From a query's options to the offsets it reads, with the help of brokers.

Owns how positions become offsets and what counts as lost data; shared by batches and streams. It must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tailrace.model import NO_OFFSET, Lineage, TopicPartition
from tailrace.pipeline.connections.brokers import Brokers, unknown_partition, unknown_topic
from tailrace.pipeline.failures import DataLossError, OptionError, SourceError
from tailrace.pipeline.source.offsets import EARLIEST, LATEST, AtEnd, AtOffsets, AtTimestamp, Offsets, Position
from tailrace.pipeline.source.options import ReadOptions, Selection

_logger = logging.getLogger("tailrace.pipeline")


def existing_partitions(brokers: Brokers, selection: Selection) -> dict[TopicPartition, Lineage]:
    """Return the selected partitions; UnknownTopicError if one that was named does not exist."""
    found = brokers.partitions(selection)
    topics = {name.topic for name in found}
    for topic in selection.topics:
        if topic not in topics:
            raise unknown_topic(topic)
    for name in selection.assigned:
        if name not in found:
            raise unknown_partition(name) if name.topic in topics else unknown_topic(name.topic)
    return found


def starting_offsets(brokers: Brokers, options: ReadOptions, names: Iterable[TopicPartition]) -> Offsets:
    """Return where to begin in each partition."""
    offsets, missed = _resolve(brokers, options.starting, list(names), "starting")
    for name, timestamp_ms in missed.items():
        if not options.late_start_is_latest:
            raise SourceError(
                f"{name} has no record at or after the time {timestamp_ms}; choose an earlier time, or begin at "
                "the end with the option startingOffsetsByTimestampStrategy=latest"
            )
    return offsets


def ending_offsets(brokers: Brokers, options: ReadOptions, names: Iterable[TopicPartition]) -> Offsets:
    """Return where to end in each partition, exclusive."""
    return _resolve(brokers, options.ending, list(names), "ending")[0]


def _resolve(
    brokers: Brokers, position: Position, names: list[TopicPartition], which: str
) -> tuple[Offsets, dict[TopicPartition, int]]:
    """Return the offsets of a position, and the times after which a partition had none: there it is the log end."""
    if isinstance(position, AtEnd):
        return brokers.offsets_at(dict.fromkeys(names, EARLIEST if position.earliest else LATEST)), {}
    if isinstance(position, AtOffsets):
        wanted = _for_all(position.offsets, names, f"{which}Offsets")
        ends = brokers.offsets_at({name: offset for name, offset in wanted.items() if offset < 0})
        _check_not_beyond(brokers, {name: offset for name, offset in wanted.items() if offset > 0}, f"{which}Offsets")
        return {**wanted, **ends}, {}
    if isinstance(position, AtTimestamp):
        times = dict.fromkeys(names, position.timestamp_ms)
    else:
        times = _for_all(position.timestamps_ms, names, f"{which}OffsetsByTimestamp")
    found = brokers.offsets_at(times)
    missed = {name: times[name] for name, offset in found.items() if offset == NO_OFFSET}
    return {**found, **brokers.offsets_at(dict.fromkeys(missed, LATEST))}, missed


def _for_all(given: Mapping[TopicPartition, int], names: list[TopicPartition], option: str) -> Offsets:
    """Return what is given for each partition; as in Spark's Kafka connector, none may be missing."""
    missing = [str(name) for name in names if name not in given]
    if missing:
        raise OptionError(f"option '{option}' must name all partitions; it lacks {', '.join(missing)}")
    extra = [str(name) for name in given if name not in set(names)]
    if extra:
        raise OptionError(f"option '{option}' has partitions that are not read: {', '.join(extra)}")
    return {name: given[name] for name in names}


def _check_not_beyond(brokers: Brokers, offsets: Offsets, option: str) -> None:
    """Refuse offsets that do not exist yet: a query would wait for them until it times out."""
    for name, latest in brokers.offsets_at(dict.fromkeys(offsets, LATEST)).items():
        if offsets[name] > latest:
            raise OptionError(
                f"option '{option}' has the offset {offsets[name]} for {name}, whose log ends at {latest}"
            )


def report_data_loss(message: str, *, fail: bool) -> None:
    """Fail the query because records are lost, or log that and continue, as `failOnDataLoss` demands."""
    if fail:
        raise DataLossError(f"{message}. To continue without them, set the option failOnDataLoss=false")
    _logger.warning("%s; continuing because of failOnDataLoss=false", message)
