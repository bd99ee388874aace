"""`df.write` and `df.writeStream` to topics, for Spark's Python data source API.

A write is at least once: a row is acknowledged before its task succeeds, and a task that runs again writes its rows
again. So a commit has nothing to do, and an abort cannot undo anything. Everything that can be known from the options
and the schema is checked here, in the driver, before any task runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tailrace.pipeline.connections.leaders import Leaders
from tailrace.pipeline.failures import OptionError
from tailrace.pipeline.sink.columns import WriteColumns, write_columns
from tailrace.pipeline.sink.settings import WriteSettings, write_settings

if TYPE_CHECKING:
    import pyarrow as pa

#: How long the planning of a batch write waits for a broker; its tasks wait for max.block.ms.
_FIRST_CONTACT_SECONDS = 10.0


@dataclass(frozen=True)
class RowsWritten(WriterCommitMessage):
    """The number of rows of a task, all of them acknowledged."""

    rows: int


class TopicWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame to topics."""

    def __init__(self, columns: WriteColumns, settings: WriteSettings) -> None:
        self._columns = columns
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write one task's rows and return when every one is acknowledged."""
        return _write(iterator, self._columns, self._settings)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch to topics."""

    def __init__(self, columns: WriteColumns, settings: WriteSettings) -> None:
        self._columns = columns
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write one task's rows and return when every one is acknowledged."""
        return _write(iterator, self._columns, self._settings)


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicWriter:
    """Return the writer of `df.write`; refuses options, columns, modes and topics that cannot be written."""
    settings = write_settings(options)
    columns = write_columns(schema, settings.topic)
    if overwrite:
        raise OptionError("mode 'overwrite' is not allowed: a topic can only be appended to; use mode('append')")
    leaders = Leaders(settings)
    try:
        leaders.refresh([] if settings.topic is None else [settings.topic], _FIRST_CONTACT_SECONDS)
    finally:
        leaders.close()
    return TopicWriter(columns, settings)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicStreamWriter:
    """Return the writer of `df.writeStream`; in output mode complete, each micro-batch appends the whole result."""
    settings = write_settings(options)
    return TopicStreamWriter(write_columns(schema, settings.topic), settings)


def _write(iterator: Iterator[pa.RecordBatch], columns: WriteColumns, settings: WriteSettings) -> RowsWritten:
    # The driver does not need it, and there every import delays the first row.
    from tailrace.pipeline.sink.topic_writing import write_rows

    return RowsWritten(write_rows(iterator, columns, settings))
