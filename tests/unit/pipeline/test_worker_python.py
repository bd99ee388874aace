"""The Python of Spark's workers: PySpark from its folder, and everything else as Python does it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tailrace.pipeline.spark.worker_python import command_beside_python, without_zip

WHERE = "import pyspark, sys; print(pyspark.__file__, *sys.argv[1:])"


def pyspark_folder() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def run(tmp_path: Path, *arguments: str) -> str:
    (tmp_path / "where.py").write_text(WHERE)
    path = os.pathsep.join([str(pyspark_folder() / "python/lib/pyspark.zip"), str(tmp_path)])
    done = subprocess.run(
        [command_beside_python(), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_module_gets_pyspark_from_its_folder_and_its_own_arguments(tmp_path: Path) -> None:
    assert Path(command_beside_python()).name == "tailrace-spark-python"
    found, *arguments = run(tmp_path, "-m", "where", "one", "two").split(" ")
    assert Path(found).samefile(pyspark_folder() / "__init__.py")
    assert arguments == ["one", "two"]


def test_anything_but_a_module_is_left_to_python(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", "import sys; print(sys.argv[1:])", "one") == "['one']"
    assert run(tmp_path, "-V") == f"Python {sys.version.split()[0]}"


def test_modules_are_looked_for_in_the_folder_where_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import sys; print(sys.path[0])")
    done = subprocess.run([command_beside_python(), "-m", "beside"], cwd=tmp_path, capture_output=True, check=True)
    assert Path(done.stdout.decode().strip()).samefile(tmp_path)


@pytest.mark.parametrize("folder", ["opt/spark", "site-packages/pyspark"])
def test_a_zip_stays_where_its_pyspark_is_nowhere_else(tmp_path: Path, folder: str) -> None:
    zip_file = str(tmp_path / folder / "python/lib/pyspark.zip")
    assert without_zip([zip_file, "elsewhere"]) == [zip_file, "elsewhere"]
