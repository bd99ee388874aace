"""The page on compatibility names the versions that the tests install and tests that exist."""

from __future__ import annotations

import json
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
INTEROP = ROOT / "tests" / "interop"
SPARK = ROOT / "tests" / "spark"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def python_versions() -> dict[str, str]:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    return dict(re.fullmatch(r"([\w-]+)([^;]*)(?:;.*)?", one).groups() for one in wanted)  # type: ignore[union-attr]


def node_versions() -> dict[str, str]:
    package = json.loads((INTEROP / "node" / "package.json").read_text(encoding="utf-8"))
    return {**package["dependencies"], "node": package["engines"]["node"]}


def java_versions() -> set[str]:
    root = ElementTree.parse(INTEROP / "java" / "pom.xml").getroot()
    return {
        dependency.findtext("version", "")
        for dependency in root.iter("dependency")
        if dependency.findtext("groupId") == "org.apache.kafka"
    }


def named_version(client: str) -> str:
    """The version in the table's row of a client."""
    found = re.search(rf"^\| {re.escape(client)}[^|]*\| ([^|]+) \|", PAGE, re.MULTILINE)
    assert found is not None, f"the page has no row for {client}"
    return found[1]


def rows_of(heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None, f"the page has no table of {heading}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()]


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_python_clients_have_the_versions_of_the_project(client: str) -> None:
    assert named_version(client) == python_versions()[client]


def test_node_and_its_clients_have_the_versions_of_their_package() -> None:
    versions = node_versions()
    assert named_version("Node") == versions["node"]
    for client in ("kafkajs", "@platformatic/kafka"):
        assert named_version(client) == versions[client]
    # What is installed is what the lock names.
    lock = json.loads((INTEROP / "node" / "package-lock.json").read_text(encoding="utf-8"))
    assert lock["packages"][""]["dependencies"] == {name: one for name, one in versions.items() if name != "node"}
    assert lock["packages"][""]["engines"] == {"node": versions["node"]}


def test_java_has_the_version_of_its_jars() -> None:
    (version,) = java_versions()
    assert named_version("kafka-clients") == version
    assert f"All of version {version}," in PAGE


def test_sparks_connector_has_the_version_of_its_jars() -> None:
    root = ElementTree.parse(SPARK / "java" / "pom.xml").getroot()
    versions = {one.findtext("artifactId", ""): one.findtext("version") for one in root.iter("dependency")}
    assert versions["spark-sql-kafka-0-10_2.13"] == "${connector.version}"
    assert named_version("spark-sql-kafka-0-10").split(",")[0] == root.findtext("properties/connector.version")
    assert f"kafka-clients {versions['kafka-clients']}" in PAGE


def test_every_python_of_the_project_was_tested() -> None:
    start = "Programming Language :: Python :: "
    named = [one.removeprefix(start) for one in PROJECT["classifiers"] if one.startswith(start)]
    assert [".".join(row[0].split(".")[:2]) for row in rows_of("Python")] == named


def test_the_oldest_pyspark_of_the_project_was_tested() -> None:
    (bounds,) = (one for one in PROJECT["optional-dependencies"]["spark"] if one.startswith("pyspark"))
    oldest = rows_of("pyspark")[0][0]
    assert bounds.startswith(f"pyspark>={oldest.removesuffix('.0')},")


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert len(named) > 10
    assert not [name for name in sorted(named) if not any((folder / name).exists() for folder in (INTEROP, SPARK))]


def test_every_note_is_used_and_written() -> None:
    written = re.findall(r"^\[\^(\d)\]:", PAGE, re.MULTILINE)
    used = re.findall(r"\[\^(\d)\](?!:)", PAGE)
    assert written == sorted(set(written)) == sorted(set(used))
