"""The wheel, installed into an environment of its own, is a broker and a command line that work."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.archives.archived_topics import RETENTION_CHECK_MS, archived_configs, some_records
from tests.support.archives.archiver import archive_up_to
from tests.support.brokers.broker_process import BrokerProcess, free_port
from tests.support.brokers.scrape import get
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.topics import create_topic, eventually
from tests.support.wheel import ROOT, build_wheel, run


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a release."""
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def tailrace(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tailrace` command of a new environment into which only the wheel was installed."""
    environment = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", environment)
    run(environment / "bin/python", "-m", "pip", "install", "--quiet", wheel)
    return environment / "bin/tailrace"


def test_the_wheel_holds_the_packages_and_their_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    # Spark looks for data sources in modules named pyspark_*.
    assert {root.split("-")[0].removesuffix(".dist") for root in roots} == {"tailrace", "pyspark_tailrace"}
    assert "tailrace/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_every_file_of_the_pipeline(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len([path for path in sources if "pipeline" in path.parts]) > 10
    assert {str(path.relative_to(ROOT / "src")) for path in sources} <= names


def test_what_spark_needs_is_an_extra(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert "spark" in (metadata.get_all("Provides-Extra") or ())
    needed = metadata.get_all("Requires-Dist") or []
    for package in ("pyspark", "pyarrow", "pandas", "numpy", "fastavro"):
        assert [one for one in needed if re.match(rf"{package}\b", one) and "extra == 'spark'" in one], needed
        assert not [one for one in needed if re.match(rf"{package}\b", one) and "extra" not in one], needed


def test_the_installed_dependencies_agree_with_each_other(tailrace: Path) -> None:
    run(tailrace.with_name("python"), "-m", "pip", "check")


def test_the_version_is_the_wheels(tailrace: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert version in run(tailrace, "--version")


def test_neither_the_package_nor_a_command_imports_spark_before_it_runs_one() -> None:
    # In the environment of the tests, where both are installed.
    code = """
import importlib, pkgutil, sys
import tailrace, tailrace.cli, tailrace.client, tailrace.broker.assembly
for module in pkgutil.walk_packages(tailrace.cli.__path__, "tailrace.cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert "tailrace.cli.sql" in sys.modules and "tailrace.cli.pipeline" in sys.modules
print([name for name in ("pyspark", "pyarrow", "numpy", "pandas") if name in sys.modules])
"""
    checkout = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert run(sys.executable, "-c", code, environment=checkout).strip() == "[]"


def test_without_spark_its_commands_say_how_to_install_it(tailrace: Path, tmp_path: Path) -> None:
    run(tailrace.with_name("python"), "-c", "import importlib.util; assert not importlib.util.find_spec('pyspark')")
    job = tmp_path / "job.py"
    job.write_text("from tailrace.pipeline.jobs.declaration import Table, Topic, job\n")
    with BrokerProcess(tmp_path / "data", executable=tailrace) as broker:
        for command in (("sql", "SELECT 1"), ("pipeline", "run", job)):
            run(tailrace, *command[:1], "--help")
            done = subprocess.run(
                [tailrace, *command, "--bootstrap", broker.bootstrap],
                capture_output=True,
                text=True,
                cwd="/",
                timeout=300,
            )
            assert done.returncode == 1, done
            assert "pip install 'tailrace[spark]'" in done.stderr
            assert "Traceback" not in done.stderr


def test_records_go_through_an_installed_broker(tailrace: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", executable=tailrace) as broker:
        server = ("--bootstrap", broker.bootstrap)
        run(tailrace, "topic", "create", "greetings", *server)
        run(tailrace, "produce", "greetings", "--key-separator", ":", *server, stdin="a:hello\nb:world\n")
        broker.restart()
        output = run(tailrace, "consume", "greetings", "--json", *server)
    records = [json.loads(line) for line in output.splitlines()]
    assert [(one["offset"], one["key"], one["value"]) for one in records] == [(0, "a", "hello"), (1, "b", "world")]


def test_without_what_archives_are_read_with_archiving_is_refused(tailrace: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", executable=tailrace) as broker:
        run(tailrace, "topic", "create", "orders", "--bootstrap", broker.bootstrap)
        archived = ("tailrace.archive.enable=true", f"tailrace.archive.uri={tmp_path}")
        for command in (
            ("topic", "create", "others", "--config", archived[0], "--config", archived[1]),
            ("config", "set", "topic", "orders", *archived),
        ):
            done = subprocess.run(
                [tailrace, *command, "--bootstrap", broker.bootstrap],
                capture_output=True,
                text=True,
                cwd="/",
                timeout=300,
            )
            assert done.returncode == 1, done
            assert "pip install 'tailrace[archive]'" in done.stderr
            assert "Traceback" not in done.stderr


def test_a_broker_that_loses_what_archives_are_read_with_keeps_its_records(tailrace: Path, tmp_path: Path) -> None:
    records = some_records(2_000)
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.bootstrap, "events", **archived_configs(tmp_path / "archive"))
        ConfluentClient(broker.bootstrap).produce("events", records)
        archive_up_to(broker.bootstrap, "events", {0: len(records)})
    port = free_port()
    config = {"log.retention.check.interval.ms": RETENTION_CHECK_MS, "metrics.port": str(port)}
    with BrokerProcess(tmp_path / "data", executable=tailrace, config=config) as broker:
        assert eventually(lambda: b"\ntailrace_archive_unreadable_topics 1" in get(port, "/metrics").body)
        found = ConfluentClient(broker.bootstrap).consume("events", 0, len(records), timeout_seconds=60)
        assert [one.value for one in found] == [one.value for one in records]
        status = subprocess.run(
            [tailrace, "archive", "status", "events", "--bootstrap", broker.bootstrap],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=300,
        )
        assert "broker 1 cannot read the archive" in status.stderr
        assert "pip install 'tailrace[archive]'" in status.stderr
