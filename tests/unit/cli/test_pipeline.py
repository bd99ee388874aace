"""`tailrace pipeline run`: options of the command and of the job, and what is refused before Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tailrace.cli.pipeline import command, parse_job_options
from tailrace.pipeline.jobs.declaration import Table, Topic, job
from tests.support.brokers.broker_process import free_port

JOB = """
from tailrace.pipeline.jobs.declaration import Table, Topic, job

@job(source=Topic("orders", schema="id LONG"), sink=Table("t"))
def large_orders(orders, *, least: float = 100.0, label: str = "x"):
    return orders
"""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "my_job.py"
    path.write_text(JOB)
    return path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["run", *arguments])


@job(source=Topic("orders"), sink=Table("t"))
def _options(orders: Any, *, least: float = 1.5, name: str, count: int = 3, is_exact: bool = False) -> Any: ...


def test_options_of_a_job_have_the_types_of_its_parameters() -> None:
    assert parse_job_options(_options, ["--name", "a", "--is-exact", "--least=2"]) == {
        "least": 2.0,
        "name": "a",
        "count": 3,
        "is_exact": True,
    }
    assert parse_job_options(_options, ["--name", "a", "--no-is-exact"])["is_exact"] is False


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--name"),
        (["--name", "a", "--count", "many"], "Invalid value for '--count'"),
        (["--name", "a", "--chekpoint", "dir"], "--chekpoint"),
        (["--name", "a", "stray"], "unexpected extra argument (stray)"),
    ],
)
def test_wrong_options_are_refused_with_those_that_there_are(arguments: list[str], complaint: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse_job_options(_options, arguments)
    assert complaint in str(caught.value)
    assert "job 'options' has the options --least, --name, --count, --is-exact" in str(caught.value)


def test_a_job_may_not_take_an_option_of_the_command() -> None:
    @job(source=Topic("orders"), sink=Table("t"))
    def greedy(orders: Any, *, once: bool = False) -> Any: ...

    with pytest.raises(click.UsageError, match="option 'once' of job 'greedy' is also an option of this command"):
        parse_job_options(greedy, [])


def test_the_help_of_a_file_has_the_options_of_its_job(job_file: Path) -> None:
    result = _run(str(job_file), "--help")
    assert result.exit_code == 0
    assert "Options of job large-orders:" in result.output
    assert "--least FLOAT" in result.output
    assert "[default: 100.0]" in result.output
    assert "Options of job" not in _run("--help").output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["FILE", "--once", "--every", "1m"], "leave out --every"),
        (["FILE", "--chekpoint", "x"], "--chekpoint"),
        (["--least", "5", "FILE"], "Give the file before the options of its job"),
        (["FILE", "--conf", "x"], "'x' is not NAME=VALUE"),
    ],
)
def test_wrong_command_lines_are_refused(job_file: Path, arguments: list[str], complaint: str) -> None:
    result = _run(*(str(job_file) if argument == "FILE" else argument for argument in arguments))
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_broker_that_is_not_there_is_told_before_spark_is_started(job_file: Path) -> None:
    result = _run(str(job_file), "--bootstrap", f"127.0.0.1:{free_port()}")
    assert str(result.exception).startswith("cannot reach a broker")
