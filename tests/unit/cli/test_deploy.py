"""The files in deploy/ call commands that exist, with options and keys that exist."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tailrace.broker.config.broker_config import load_config
from tailrace.cli.main import cli
from tailrace.cli.serve import command as serve
from tailrace.cli.serve import overrides_from_options

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SAMPLE = DEPLOY / "server.properties"
INSTALLED_SAMPLE = "/etc/tailrace/server.properties"


def check_command(arguments: list[str]) -> click.Context:
    """Have the command line parse what a file calls it with, with the sample where it will be installed."""
    name, *rest = [str(SAMPLE) if argument == INSTALLED_SAMPLE else argument for argument in arguments]
    found = cli.get_command(click.Context(cli), name)
    assert found is serve
    return found.make_context(name, rest)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "tailrace.service")
    return parser


def instructions() -> dict[str, str]:
    """The last of each kind of instruction in the Containerfile."""
    found = {}
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found[name] = rest
    return found


def test_the_sample_configuration_is_accepted_without_a_warning() -> None:
    config = load_config(str(SAMPLE), {})
    assert config.warnings == ()
    assert config.get_list("log.dirs") == ("/var/lib/tailrace",)
    assert config.get_int("metrics.port") == 9404


def test_what_the_sample_leaves_commented_out_would_be_accepted_too(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=[a-z.]+=)", "", SAMPLE.read_text(), flags=re.MULTILINE)
    assert text != SAMPLE.read_text()
    path = tmp_path / "server.properties"
    path.write_text(text)
    assert load_config(str(path), {}).warnings == ()


def test_the_unit_starts_a_command_that_exists_and_waits_to_be_told() -> None:
    service = unit()["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/tailrace/bin/tailrace"
    assert check_command(arguments).params["config_path"] == str(SAMPLE)
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["StateDirectory"] == "tailrace"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which is systemd's own")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # It looks for the program too, and there is none at the place where it would be installed.
    path = tmp_path / "tailrace.service"
    path.write_text((DEPLOY / "tailrace.service").read_text().replace("/opt/tailrace/bin/tailrace", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "tailrace.service" in line]
    assert complaints == []


def test_the_image_runs_a_command_that_exists_not_as_root_and_can_be_stopped() -> None:
    found = instructions()
    assert json.loads(found["ENTRYPOINT"]) == ["tailrace"]
    context = check_command(json.loads(found["CMD"]))
    parameters = context.params
    config = load_config(
        parameters["config_path"],
        overrides_from_options(parameters["settings"], None, None, None, parameters["log_format"], None),
    )
    assert config.get_str("tailrace.log.format") == "json"
    assert config.get_str("metrics.host") == "0.0.0.0"
    ports = {str(config.listeners[0].port), str(config.get_int("metrics.port"))}
    assert set(found["EXPOSE"].split()) == ports
    assert found["USER"].split(":")[0] not in ("0", "root")
    assert found["VOLUME"] == config.get_list("log.dirs")[0]
    assert found["STOPSIGNAL"] == "SIGTERM"


def test_the_health_check_asks_for_readiness_where_the_sample_has_it() -> None:
    health = instructions()["HEALTHCHECK"]
    program, option, code = json.loads(health[health.index("[") :])
    assert (program, option) == ("python", "-c")
    ast.parse(code)
    port = load_config(str(SAMPLE), {}).get_int("metrics.port")
    assert f"http://127.0.0.1:{port}/readyz" in code


def test_the_image_is_built_from_files_that_the_build_is_given() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    given = {line[1:] for line in ignore if line.startswith("!")}
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
                assert source.split("/")[0] in given


def test_images_are_named_without_a_host() -> None:
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        if line.startswith("FROM "):
            assert "/" not in line
