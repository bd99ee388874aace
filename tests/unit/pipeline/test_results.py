"""Where a result goes: which format a path asks for, and which paths are refused before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.pipeline.results import check_output, is_single_file, output_format_of


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
    with pytest.raises(ConfigError, match=r"is already there; .*--overwrite"):
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
    with pytest.raises(ConfigError, match="there is no directory"):
        check_output(str(tmp_path / "nosuch" / "totals.csv"), overwrite=False)


def test_other_file_systems_are_not_looked_at() -> None:
    check_output("s3a://bucket/totals", overwrite=False)
