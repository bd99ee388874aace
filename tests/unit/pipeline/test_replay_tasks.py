"""What a replay task reads from the files of an archive with undecodable batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.archive.errors import ArchiveCorruptError
from tailrace.archive.location import open_location
from tailrace.archive.manifest import load_snapshot
from tailrace.pipeline.failures import CorruptBatchError
from tailrace.pipeline.replay.source import ArchiveSource
from tailrace.pipeline.replay.tasks import read_span
from tailrace.pipeline.source.ranges import OffsetRange
from tests.unit.archive.rows import TOPIC
from tests.unit.archive.test_quarantine import archive_with_quarantine


def test_quarantined_batches_end_a_replay_or_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    location = open_location(f"file://{tmp_path}")
    archive = archive_with_quarantine(location)
    assert load_snapshot(location, archive).quarantined_batches == 2
    source = ArchiveSource(f"{tmp_path}/{archive.directory}")
    (span,) = source.spans([OffsetRange(TOPIC, 0, 0, 25)])
    with pytest.raises(CorruptBatchError, match=f"the batch at offsets 10 to 14 of {TOPIC}-0 cannot be decoded"):
        list(read_span(span, None))
    read = [
        offset for rows in read_span(span, None, skips_corrupt=True) for offset in rows.column("offset").to_pylist()
    ]
    assert read == [*range(10), *range(15, 20)]
    assert "skipped 2 batches of 10 offsets" in caplog.text
    # What is not asked for does not matter.
    (span,) = source.spans([OffsetRange(TOPIC, 0, 15, 20)])
    assert [rows.num_rows for rows in read_span(span, None)] == [5]


def test_a_version_whose_side_file_is_missing_is_not_whole(tmp_path: Path) -> None:
    location = open_location(f"file://{tmp_path}")
    archive = archive_with_quarantine(location)
    (side_file,) = load_snapshot(location, archive).side_files
    location.delete(f"{archive.directory}/{side_file.name}")
    with pytest.raises(ArchiveCorruptError, match=r"no version of .* is complete"):
        ArchiveSource(f"{tmp_path}/{archive.directory}")
