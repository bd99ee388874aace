"""The Java that Spark would take: missing, broken, too old or fine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.pipeline.spark.java import JavaError, check_java


def java_that_says(folder: Path, text: str, code: int = 0) -> Path:
    """A Java home whose java prints this, as Java does, to standard error."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {code}\n")
    command.chmod(0o755)
    return folder


def environment(home: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    "version", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS', 'openjdk version "25-ea"']
)
def test_a_java_that_is_recent_enough_passes(tmp_path: Path, version: str) -> None:
    check_java(environment(java_that_says(tmp_path, version)))


def test_without_java_home_the_path_is_searched(tmp_path: Path) -> None:
    home = java_that_says(tmp_path, 'openjdk version "17.0.1"')
    check_java({"PATH": f"{home / 'bin'}:/usr/bin:/bin"})


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.2", 11), ("16", 16)])
def test_an_old_java_is_refused_with_its_version_and_what_to_install(tmp_path: Path, version: str, number: int) -> None:
    with pytest.raises(JavaError) as caught:
        check_java(environment(java_that_says(tmp_path, f'openjdk version "{version}"')))
    assert f"is Java {number};" in str(caught.value)
    assert "Java 17 or later" in str(caught.value)
    assert "apt-get install default-jre-headless" in str(caught.value)


def test_no_java_at_all_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"none was found; install Java 17 or later .*default-jre-headless.*JAVA_HOME"):
        check_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_a_java_that_does_not_run_says_why(tmp_path: Path) -> None:
    home = java_that_says(tmp_path, "Error: could not find libjvm.so", code=6)
    with pytest.raises(JavaError, match=r"does not report its version \(Error: could not find libjvm.so\)"):
        check_java(environment(home))
