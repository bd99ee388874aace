"""Data files: their columns, how they are written, and how parts of them are read.

Rows are ordered by offset, in row groups of about a megabyte, so that a lookup reads little. Producer ids are not kept;
everything else that a consumer or a follower can see is. A file is built in memory and stored at once, with the
checksums in its manifest entry: of the whole file, of the footer, and of each page within the file. So an altered byte
is detected whichever part of a file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.archive.errors import ArchiveCorruptError, InvalidCommitError
from tailrace.archive.file_pieces import FilePieces
from tailrace.archive.layout import checksum, data_file_name, topic_directory
from tailrace.archive.location import Location
from tailrace.archive.manifest import ArchivedFile
from tailrace.model import Lineage

ROW_GROUP_BYTES = 1 << 20
#: The size at which a writer should finish a file and start another.
FILE_BYTES = 128 << 20

#: The two timestamp types of records, with Kafka's numbers.
CREATE_TIME = 0
LOG_APPEND_TIME = 1


def _field(number: int, name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """A column with the id by which other table formats identify it; the meaning of an id never changes."""
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(number)})


_HEADER = pa.struct([_field(11, "key", pa.string()), _field(12, "value", pa.binary(), nullable=True)])
#: Numbered as Iceberg numbers a table with these columns: top-level columns first, then nested ones.
SCHEMA = pa.schema(
    [
        _field(1, "topic", pa.string()),
        _field(2, "partition", pa.int32()),
        _field(3, "offset", pa.int64()),
        _field(4, "timestamp", pa.timestamp("ms", "UTC")),
        _field(5, "timestamp_type", pa.int32()),
        _field(6, "leader_epoch", pa.int32()),
        _field(7, "key", pa.binary(), nullable=True),
        _field(8, "value", pa.binary(), nullable=True),
        _field(9, "headers", pa.list_(_field(10, "element", _HEADER))),
    ]
)
#: The columns that differ between records, which writers take and readers return.
RECORD_SCHEMA = pa.schema([SCHEMA.field(index) for index in range(2, len(SCHEMA))])
_RECORD_COLUMNS = RECORD_SCHEMA.names
_HEADER_NAME = "headers.list.element.key"
_DICTIONARY = ["topic", "partition", "timestamp_type", "leader_epoch", _HEADER_NAME]
_TAIL_BYTES = 8
_MAGIC = b"PAR1"


def records_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of a few records, each a mapping of the columns of `RECORD_SCHEMA`."""
    return pa.Table.from_pylist(list(rows), schema=RECORD_SCHEMA)


class FileWriter:
    """Writes one file: records of one partition, ordered by offset, from a first offset on."""

    def __init__(
        self,
        topic: str,
        lineage: Lineage,
        partition: int,
        first_offset: int,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
        compression_level: int | None = None,
    ) -> None:
        self._topic = topic
        self._lineage = lineage
        self._partition = partition
        self._first_offset = first_offset
        self._row_group_bytes = row_group_bytes
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            compression_level=compression_level,
            use_dictionary=_DICTIONARY,
            write_statistics=["offset", "timestamp"],
            write_page_checksum=True,
            store_schema=False,
        )
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._next_offset = first_offset
        self._rows = 0
        self._min_timestamp: int | None = None
        self._max_timestamp: int | None = None

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def bytes(self) -> int:
        """The approximate size of the file so far; records waiting for their row group count uncompressed."""
        return int(self._sink.tell()) + self._pending_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last written record."""
        return self._next_offset

    def write(self, records: pa.RecordBatch | pa.Table) -> None:
        """Add records with the columns of `RECORD_SCHEMA`; other columns are ignored."""
        if records.num_rows == 0:
            return
        table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
        table = table.select(_RECORD_COLUMNS).cast(RECORD_SCHEMA)
        offsets = table.column("offset").to_numpy()
        if offsets[0] < self._next_offset or (np.diff(offsets) <= 0).any():
            raise InvalidCommitError(
                f"{self._topic}-{self._partition}: records are not ordered by offset, from {self._next_offset} on"
            )
        times = table.column("timestamp").cast(pa.int64()).to_numpy()
        low, high = int(times.min()), int(times.max())
        self._min_timestamp = low if self._min_timestamp is None else min(low, self._min_timestamp)
        self._max_timestamp = high if self._max_timestamp is None else max(high, self._max_timestamp)
        self._next_offset = int(offsets[-1]) + 1
        self._rows += table.num_rows
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= self._row_group_bytes:
            self._write_pending()

    def _write_pending(self) -> None:
        if not self._pending:
            return
        records = pa.concat_tables(self._pending)
        groups = max(1, self._pending_bytes // self._row_group_bytes)
        table = pa.Table.from_arrays(
            [
                pa.repeat(pa.scalar(self._topic), records.num_rows),
                pa.repeat(pa.scalar(self._partition, pa.int32()), records.num_rows),
                *records.columns,
            ],
            schema=SCHEMA,
        )
        self._writer.write_table(table, row_group_size=-(-records.num_rows // groups))
        self._pending.clear()
        self._pending_bytes = 0

    def finish(self, next_offset: int | None = None) -> tuple[ArchivedFile, pa.Buffer]:
        """The file and its manifest entry; its range ends at an offset at or after the last record."""
        end = self._next_offset if next_offset is None else next_offset
        if end < self._next_offset or end <= self._first_offset:
            raise InvalidCommitError(
                f"{self._topic}-{self._partition}: a file from {self._first_offset} with records up to "
                f"{self._next_offset - 1} cannot end at {end}"
            )
        self._write_pending()
        self._writer.close()
        content = self._sink.getvalue()
        view = memoryview(content)
        footer_bytes = int.from_bytes(view[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
        file = ArchivedFile(
            name=data_file_name(self._partition, self._first_offset, end),
            partition=self._partition,
            first_offset=self._first_offset,
            next_offset=end,
            rows=self._rows,
            bytes=len(view),
            checksum=checksum(view),
            footer_bytes=footer_bytes,
            footer_checksum=checksum(view[-footer_bytes:]),
            min_timestamp=self._min_timestamp,
            max_timestamp=self._max_timestamp,
        )
        return file, content

    def store(self, location: Location, next_offset: int | None = None) -> ArchivedFile:
        """Finish and store the file; it joins the archive when a manifest that names it is committed."""
        file, content = self.finish(next_offset)
        location.write_new(f"{topic_directory(self._topic, self._lineage)}/{file.name}", memoryview(content))
        return file


@dataclass(frozen=True, slots=True)
class Footer:
    """The positions of a file's row groups, with their offsets and times."""

    metadata: Any
    #: The start of each row group, and of the footer after the last.
    starts: tuple[int, ...]
    #: Uncompressed size of each row group.
    sizes: tuple[int, ...]
    first_offsets: np.ndarray[Any, np.dtype[np.int64]]
    last_offsets: np.ndarray[Any, np.dtype[np.int64]]
    max_timestamps: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def row_groups(self) -> int:
        return len(self.last_offsets)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory it takes in a cache; the parsed footer is several times as large as its bytes."""
        return int(self.metadata.serialized_size) * 6 + 64 * self.row_groups

    def group_at(self, offset: int) -> int:
        """The first row group with a record at or after an offset; the number of row groups if there is none."""
        return int(np.searchsorted(self.last_offsets, offset))


def read_footer(content: bytes, file: ArchivedFile) -> Footer:
    """Parse the last `footer_bytes` of a file; ArchiveCorruptError if they are not what was written."""
    if checksum(content) != file.footer_checksum or content[-4:] != _MAGIC:
        raise ArchiveCorruptError(f"{file.name} was altered: the checksum of its footer is {checksum(content)}")
    try:
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + content))
        leaves = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        offset, timestamp = leaves["offset"], leaves["timestamp"]
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        spans = [group.column(offset).statistics for group in groups]
        times = [group.column(timestamp).statistics.max_raw for group in groups]
        starts = [_start_of(group.column(0)) for group in groups]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ArchiveCorruptError(f"cannot read the footer of {file.name}: {error}") from error
    return Footer(
        metadata,
        (*starts, file.bytes - file.footer_bytes),
        tuple(group.total_byte_size for group in groups),
        np.array([span.min for span in spans], np.int64),
        np.array([span.max for span in spans], np.int64),
        np.array(times, np.int64),
    )


def _start_of(column: Any) -> int:
    dictionary = column.dictionary_page_offset
    return int(column.data_page_offset if dictionary is None else min(dictionary, column.data_page_offset))


def read_row_groups(content: bytes, first: int, last: int, footer: Footer, file: ArchivedFile) -> list[pa.Table]:
    """The records of row groups first to last from their bytes; page checksums are verified."""
    try:
        reader = pq.ParquetFile(
            pa.PythonFile(FilePieces([(footer.starts[first], content)], file.bytes), mode="r"),
            metadata=footer.metadata,
            page_checksum_verification=True,
            pre_buffer=False,
        )
        tables = [
            reader.read_row_group(index, columns=_RECORD_COLUMNS, use_threads=False) for index in range(first, last + 1)
        ]
    except (OSError, ValueError) as error:
        raise ArchiveCorruptError(f"{file.name} was altered or truncated: {error}") from error
    for index, table in enumerate(tables, first):
        offsets = table.column("offset")
        if table.num_rows == 0 or offsets[0].as_py() != footer.first_offsets[index]:
            raise ArchiveCorruptError(f"row group {index} of {file.name} does not start at the offset in its footer")
    return tables
