"""Where a result goes: which format a path asks for, and which paths are refused before Spark is started."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.errors import ConfigError
from tailrace.pipeline.sql.results import check_output, is_single_file, output_format_of, python_values


@pytest.mark.parametrize(
    ("path", "format", "single"),
    [
        ("totals.csv", "csv", True),
        ("totals.CSV", "csv", True),
        ("totals.parquet", "parquet", True),
        ("totals", "parquet", False),
        ("totals.csv/", "csv", False),
        ("s3a://bucket/totals.csv", "csv", False),
        ("hdfs://host/totals", "parquet", False),
    ],
)
def test_the_ending_of_a_path_says_what_to_write(path: str, format: str, single: bool) -> None:
    assert (output_format_of(path, None), is_single_file(path)) == (format, single)


def test_a_format_that_is_given_wins() -> None:
    assert output_format_of("totals.csv", "parquet") == "parquet"


@pytest.mark.parametrize("name", ["totals.csv", "totals"])
def test_what_is_there_is_kept_unless_asked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name == "totals" else path.touch()
    with pytest.raises(ConfigError, match=r"already exists; .*--overwrite"):
        check_output(str(path), overwrite=False)
    check_output(str(path), overwrite=True)
    check_output(str(tmp_path / "other.csv"), overwrite=False)


def test_a_directory_is_never_replaced_by_a_file_nor_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "totals.csv").mkdir()
    (tmp_path / "totals").touch()
    with pytest.raises(ConfigError, match="is a directory"):
        check_output(str(tmp_path / "totals.csv"), overwrite=True)
    with pytest.raises(ConfigError, match="is a file"):
        check_output(str(tmp_path / "totals"), overwrite=True)


def test_a_file_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        check_output(str(tmp_path / "nosuch" / "totals.csv"), overwrite=False)


def test_other_file_systems_are_not_looked_at() -> None:
    check_output("s3a://bucket/totals", overwrite=False)


def test_times_that_python_has_no_type_for_are_text() -> None:
    kind = pa.timestamp("us", "UTC")
    numbers = [0, None, -62_135_596_800_001_000, (1 << 63) - 1, -(1 << 63) + 808, 253_402_300_800_000_000]
    texts = [
        "0000-12-31T23:59:59.999Z",
        "+294247-01-10T04:00:54.775807Z",
        "-290308-12-21T19:59:05.225Z",
        "+10000-01-01T00:00:00.000Z",
    ]
    times = pa.array(numbers, pa.int64()).cast(kind)
    expected = [datetime(1970, 1, 1, tzinfo=UTC), None, *texts]
    assert python_values(times) == expected
    nested = pa.StructArray.from_arrays([times], fields=[pa.field("at", kind)])
    assert python_values(nested) == [{"at": value} for value in expected]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 6], pa.int32()), nested)
    assert python_values(lists) == [[{"at": value} for value in part] for part in (expected[:2], expected[2:])]
    days = pa.array([1, 2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    assert python_values(days) == [date(1970, 1, 2), "+5881580-07-11", "-5877641-06-23"]
