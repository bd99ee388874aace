"""The wheel, installed into an environment of its own, is a broker and a command line that work."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, stdin: str = "", timeout_seconds: int = 300) -> str:
    """Run a command to its end and give its output; a failure shows all it printed."""
    # Away from the checkout, so that nothing is imported from there by accident.
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, cwd="/", timeout=timeout_seconds, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release would be: from the source distribution."""
    output = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", output, ROOT)
    (built,) = output.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def tailrace(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tailrace` command of a new environment into which only the wheel was installed."""
    environment = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", environment)
    run(environment / "bin/python", "-m", "pip", "install", "--quiet", wheel)
    return environment / "bin/tailrace"


def test_the_wheel_holds_the_package_and_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names}
    assert {root.split("-")[0].removesuffix(".dist") for root in roots} == {"tailrace"}
    assert "tailrace/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_dependencies_agree_with_each_other(tailrace: Path) -> None:
    run(tailrace.with_name("python"), "-m", "pip", "check")


def test_the_version_is_the_wheels(tailrace: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert version in run(tailrace, "--version")


def test_records_go_through_an_installed_broker(tailrace: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", executable=tailrace) as broker:
        server = ("--bootstrap", broker.bootstrap)
        run(tailrace, "topic", "create", "greetings", *server)
        run(tailrace, "produce", "greetings", "--key-separator", ":", *server, stdin="a:hello\nb:world\n")
        broker.restart()
        output = run(tailrace, "consume", "greetings", "--json", *server)
    records = [json.loads(line) for line in output.splitlines()]
    assert [(one["offset"], one["key"], one["value"]) for one in records] == [(0, "a", "hello"), (1, "b", "world")]
