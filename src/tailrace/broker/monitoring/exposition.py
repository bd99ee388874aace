"""Prometheus's text format: names, labels and values as lines. This module must not know what any metric means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tailrace.runtime.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Kind(Enum):
    """The kind of a metric: it only grows, goes up and down, or counts measurements by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Sample(NamedTuple):
    """One value of a metric, with its labels as `labels` writes them."""

    labels: str
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Description:
    """The name, kind and meaning of a metric."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    #: The factor that converts a histogram's measurements to the unit in the metric's name.
    scale: float = 1.0


def labels(**values: str | int) -> str:
    """Format labels for the space between the braces."""
    return ",".join(f'{name}="{escape(str(value))}"' for name, value in values.items())


def escape(value: str) -> str:
    """Escape a label's value."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def lines(description: Description, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield a metric as text, line by line, so that the writer may pause in between."""
    name = description.name
    meaning = description.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {meaning}\n# TYPE {name} {description.kind.value}\n"
    for text, value in samples:
        if isinstance(value, Histogram):
            yield from _histogram_lines(name, text, value, description.scale)
        elif text:
            yield f"{name}{{{text}}} {number(value)}\n"
        else:
            yield f"{name} {number(value)}\n"


def _histogram_lines(name: str, text: str, histogram: Histogram, scale: float) -> Iterator[str]:
    before = f"{text}," if text else ""
    braces = f"{{{text}}}" if text else ""
    count = 0
    for bound, below in zip(histogram.bounds, histogram.counts, strict=False):
        count += below
        yield f'{name}_bucket{{{before}le="{bound * scale:g}"}} {count}\n'
    count += histogram.counts[-1]
    yield f'{name}_bucket{{{before}le="+Inf"}} {count}\n'
    yield f"{name}_sum{braces} {number(histogram.total * scale)}\n{name}_count{braces} {count}\n"


def number(value: float) -> str:
    """Format a value; integers stay integers, however large."""
    if isinstance(value, int):
        return str(int(value))
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
