"""One row of the table of metrics, and short functions that create it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.broker.monitoring.exposition import Description, Kind, Sample
from tailrace.broker.monitoring.observed import Look

Samples: TypeAlias = Callable[[Look], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, and the source of its values."""

    description: Description
    samples: Samples


def counter(name: str, meaning: str, samples: Samples, *label_names: str) -> Metric:
    """A metric that only grows."""
    return Metric(Description(name, Kind.COUNTER, meaning, label_names), samples)


def gauge(name: str, meaning: str, samples: Samples, *label_names: str) -> Metric:
    """A metric that goes up and down."""
    return Metric(Description(name, Kind.GAUGE, meaning, label_names), samples)


def histogram(name: str, meaning: str, samples: Samples, *label_names: str, scale: float = 1.0) -> Metric:
    """A metric that counts measurements by size."""
    return Metric(Description(name, Kind.HISTOGRAM, meaning, label_names, scale), samples)


def one(value: Callable[[Look], float]) -> Samples:
    """Return a single sample without labels."""
    return lambda look: [Sample("", value(look))]
