"""The data source `tailrace`: topics as tables and streams of Spark.

Owns what Spark requires of a source as a whole; separate modules for reading and writing are imported when needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class TailraceSource(DataSource):
    """Topics, with the options and columns of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "tailrace"

    def schema(self) -> StructType:
        """Return the columns that the options choose."""
        from tailrace.pipeline.source.options import chosen_by_options
        from tailrace.pipeline.source.schema import spark_schema

        return spark_schema(chosen_by_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for one batch query."""
        from tailrace.pipeline.source.options import parse_read_options
        from tailrace.pipeline.source.reader import TopicReader
        from tailrace.pipeline.source.schema import chosen_columns

        return TopicReader(parse_read_options(self.options, streaming=False), chosen_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for one streaming query."""
        from tailrace.pipeline.source.options import parse_read_options
        from tailrace.pipeline.source.schema import chosen_columns
        from tailrace.pipeline.source.stream_reader import TopicStreamReader

        return TopicStreamReader(parse_read_options(self.options, streaming=True), chosen_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for one batch query."""
        from tailrace.pipeline.sink.writer import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer for one streaming query."""
        from tailrace.pipeline.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)
