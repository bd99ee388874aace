"""One row of the table of metrics, and the short ways to write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.broker.monitoring.exposition import Description, Kind, Sample
from tailrace.broker.monitoring.observed import Look

Samples: TypeAlias = Callable[[Look], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, and where its values come from."""

    description: Description
    samples: Samples


def counter(name: str, meaning: str, samples: Samples, *label_names: str) -> Metric:
    """A metric that only grows."""
    return Metric(Description(name, Kind.COUNTER, meaning, label_names), samples)


def gauge(name: str, meaning: str, samples: Samples, *label_names: str) -> Metric:
    """A metric that moves."""
    return Metric(Description(name, Kind.GAUGE, meaning, label_names), samples)


def histogram(name: str, meaning: str, samples: Samples, *label_names: str, scale: float = 1.0) -> Metric:
    """Measurements by size."""
    return Metric(Description(name, Kind.HISTOGRAM, meaning, label_names, scale), samples)


def one(value: Callable[[Look], float]) -> Samples:
    """A single sample without labels."""
    return lambda look: [Sample("", value(look))]
