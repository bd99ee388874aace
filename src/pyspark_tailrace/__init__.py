"""Where Spark finds the data source `tailrace` by itself: it looks for `DefaultSource` in modules named `pyspark_*`."""

from __future__ import annotations

from tailrace.pipeline.source.data_source import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
