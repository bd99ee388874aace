"""Ids of columns in the files: new files have them, earlier ones have none, and every reader takes both together."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.archive import parquet
from tailrace.archive.compaction import Merge, write_merged
from tailrace.archive.layout import TopicArchive
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, load_snapshot
from tailrace.archive.parquet import RECORD_SCHEMA
from tailrace.archive.reader import ArchiveReader
from tailrace.archive.scan import Wanted, scan_files
from tailrace.archive.verify import verify
from tailrace.client.archive import ArchiveStatus
from tailrace.pipeline.archiving import quarantine_retry
from tailrace.pipeline.archiving.commit import TopicArchiver
from tailrace.pipeline.source.archived_reading import batch_of
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.schema import COLUMNS
from tailrace.records.batch import iterate_batches
from tests.unit.archive.rows import TOPIC, TOPIC_ID, Row, commit, read_rows, row, store, to_table

#: As Iceberg numbers the columns of a table; tables of other formats that took files over depend on them.
IDS = {
    "topic": 1,
    "partition": 2,
    "offset": 3,
    "timestamp": 4,
    "timestamp_type": 5,
    "leader_epoch": 6,
    "key": 7,
    "value": 8,
    "headers": 9,
    "headers.element": 10,
    "headers.element.key": 11,
    "headers.element.value": 12,
}
SPANS = ((0, 10), (10, 20), (20, 30), (30, 40))
#: In each file a few offsets have no record.
OFFSETS = [offset for offset in range(40) if offset % 10 != 5]
ROWS = [row(offset, headers=(("h", b"%d" % offset), ("none", None))) for offset in OFFSETS]


class Mixed:
    """An archive whose files were written by this version and by one before it, in turn."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.location: Location = open_location(str(root))
        self.files: list[ArchivedFile] = []
        for number, (start, end) in enumerate(SPANS):
            with monkeypatch.context() as earlier:
                if number % 2 == 0:
                    earlier.setattr(parquet, "SCHEMA", _without_ids(parquet.SCHEMA))
                    earlier.setattr(parquet, "RECORD_SCHEMA", _without_ids(parquet.RECORD_SCHEMA))
                self.files.append(
                    store(self.location, [each for each in ROWS if start <= each.offset < end], (start, end))
                )
        self.archive: TopicArchive = commit(self.location, self.files)
        self.snapshot = load_snapshot(self.location, self.archive)

    def path(self, file: ArchivedFile) -> Path:
        return self.root / self.snapshot.directory / file.name

    def ids(self, file: ArchivedFile) -> dict[str, int]:
        """The ids in the Parquet schema of a file, by the path of what has one."""
        return dict(_ids_of(pq.ParquetFile(self.path(file)).schema_arrow))

    def offsets(self, file: ArchivedFile) -> list[int]:
        found: list[int] = pq.ParquetFile(self.path(file)).read(["offset"]).column("offset").to_pylist()
        return found


def _without_ids(schema: pa.Schema) -> pa.Schema:
    """The same columns as earlier versions wrote them."""
    headers = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    types = {"headers": pa.list_(pa.field("element", headers, nullable=False))}
    return pa.schema([pa.field(each.name, types.get(each.name, each.type), each.nullable) for each in schema])


def _ids_of(fields: pa.Schema | pa.StructType, above: str = "") -> list[tuple[str, int]]:
    found = []
    for field in fields:
        path = f"{above}{field.name}"
        if field.metadata and b"PARQUET:field_id" in field.metadata:
            found.append((path, int(field.metadata[b"PARQUET:field_id"])))
        if pa.types.is_list(field.type):
            found += _ids_of(pa.struct([field.type.value_field]), f"{path}.")
        elif pa.types.is_struct(field.type):
            found += _ids_of(field.type, f"{path}.")
    return found


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mixed:
    return Mixed(tmp_path, monkeypatch)


def test_new_files_have_the_ids_and_those_of_earlier_versions_none(mixed: Mixed) -> None:
    assert [mixed.ids(file) for file in mixed.files] == [{}, IDS, {}, IDS]
    # Nothing else differs.
    old, new = (pq.ParquetFile(mixed.path(file)).schema_arrow for file in mixed.files[:2])
    assert old.equals(new, check_metadata=False)


def test_a_file_without_records_has_the_ids_too(tmp_path: Path) -> None:
    location = open_location(str(tmp_path))
    file = store(location, [], (0, 5))
    directory = load_snapshot(location, commit(location, [file])).directory
    assert dict(_ids_of(pq.ParquetFile(tmp_path / directory / file.name).schema_arrow)) == IDS


def test_brokers_read_both(mixed: Mixed) -> None:
    reader = ArchiveReader(mixed.location)
    found: list[Row] = []
    offset = 0
    while offset < 40:
        data = reader.read(mixed.archive, 0, offset, 1 << 20)
        found += read_rows(data, "aiokafka")
        *_, (_, last) = iterate_batches(data)
        offset = last.next_offset
    assert found == ROWS
    report = verify(mixed.location, mixed.archive)
    assert report.is_sound


def test_the_data_source_reads_both(mixed: Mixed) -> None:
    wanted = Wanted(0, 40, tuple(RECORD_SCHEMA.names))
    scanned = [each.table for each in scan_files(mixed.location, mixed.snapshot.directory, mixed.files, wanted)]
    batches = [batch_of(table, OffsetRange(TOPIC, 0, 0, 40), COLUMNS) for table in scanned]
    table = pa.Table.from_batches(batches)
    assert table.column("offset").to_pylist() == OFFSETS
    assert table.column("value").to_pylist() == [each.value for each in ROWS]
    assert [[(name["key"], name["value"]) for name in each] for each in table.column("headers").to_pylist()] == [
        list(each.headers) for each in ROWS
    ]
    assert pa.concat_tables(scanned).num_rows == len(ROWS)


def test_duckdb_and_pandas_read_both(mixed: Mixed) -> None:
    files = [str(mixed.path(file)) for file in mixed.files]
    for order in (files, files[::-1]):
        query = (
            'SELECT "offset", value, headers[1].value FROM read_parquet($files, hive_partitioning = false) ORDER BY 1'
        )
        rows = duckdb.sql(query, params={"files": order}).fetchall()
        assert rows == [(each.offset, each.value, each.headers[0][1]) for each in ROWS]
        frame = pd.read_parquet(order, partitioning=None).sort_values("offset")
        assert frame.value.tolist() == [each.value for each in ROWS]
        assert frame.topic.unique().tolist() == [TOPIC]


def test_a_file_that_compaction_makes_of_both_has_the_ids(mixed: Mixed) -> None:
    for files in (mixed.files, mixed.files[1:]):
        merged = write_merged(mixed.location, mixed.snapshot, Merge(tuple(files)))
        assert mixed.ids(merged) == IDS
        assert mixed.offsets(merged) == [offset for offset in OFFSETS if offset >= files[0].first_offset]


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_a_retry_of_quarantined_batches_writes_anew_has_the_ids(mixed: Mixed, number: int) -> None:
    status = ArchiveStatus(TOPIC, TOPIC_ID, True, mixed.location.uri, -1, 1, mixed.archive.manifest or "", 1)
    archiver = TopicArchiver("nobody:1", status, mixed.location)
    archiver.snapshot = mixed.snapshot
    file = mixed.files[number]
    decoded = row(file.first_offset + 5)
    rewritten = quarantine_retry._rewritten(archiver, file, to_table([decoded]))
    assert mixed.ids(rewritten) == IDS
    assert mixed.offsets(rewritten) == sorted([*mixed.offsets(file), decoded.offset])
