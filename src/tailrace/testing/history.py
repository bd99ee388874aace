"""Checkers that observe a broker from outside: what producers were promised against what readers find.

Each raises AssertionError with what it saw. None knows how the broker works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tailrace.records.record import Record
from tailrace.testing.workload import Acknowledged, SimProducer


def check_offsets_contiguous(records: Sequence[Record]) -> None:
    """Check that offsets start at 0 without gaps: nothing is ever deleted in these runs."""
    for expected, record in enumerate(records):
        if record.offset != expected:
            raise AssertionError(f"found offset {record.offset}, expected {expected}")


def check_only_what_was_sent(records: Sequence[Record], producers: Iterable[SimProducer]) -> None:
    """Check that every record was sent."""
    sent = {value for producer in producers for value in producer.sent}
    for record in records:
        if record.value not in sent:
            raise AssertionError(f"offset {record.offset} has {record.value!r}, which was never sent")


def check_order(records: Sequence[Record], producer: SimProducer, *, may_have_lost: bool) -> None:
    """Check that a producer's records are in order; under idempotence, none is duplicated.

    Without idempotence, records without a response appear again from some earlier point on, but never ahead of their
    predecessors. If acknowledged records may be lost, a retry may start anywhere: then there is nothing to check.
    """
    prefix = producer.name.encode() + b":"
    values = [record.value for record in records if record.value is not None]
    numbers = [int(value[len(prefix) :]) for value in values if value.startswith(prefix)]
    for before, after in pairwise(numbers):
        if producer.is_idempotent and after <= before:
            raise AssertionError(f"{producer.name}: {after} follows {before}")
        if not producer.is_idempotent and not may_have_lost and after > before + 1:
            raise AssertionError(f"{producer.name}: {after} follows {before}; those in between came later or never")


def check_promises(records: Sequence[Record], acknowledged: Iterable[Acknowledged]) -> None:
    """Check that every acknowledged record is where the producer was told."""
    for promise in acknowledged:
        found = records[promise.offset].value if promise.offset < len(records) else None
        if found != promise.value:
            raise AssertionError(
                f"{promise.value!r} was acknowledged at offset {promise.offset}, but found {found!r} (the log "
                f"ends at {len(records)})"
            )


def check_is_prefix(before: Sequence[Record], after: Sequence[Record]) -> None:
    """Check that a later reading has the same values at the same offsets, as far as both go."""
    for old, new in zip(before, after, strict=False):
        if old.value != new.value:
            raise AssertionError(f"offset {old.offset} was {old.value!r} and is now {new.value!r}")
