"""`tailrace pipeline archive`: command lines that are refused before a broker or Spark is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tailrace.cli.pipeline import command
from tests.support.brokers.broker_process import free_port


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing argument 'TOPIC...'"),
        (["orders", "--once", "--every", "1m"], "leave out --every"),
        (["orders", "payments", "orders"], "A topic is given twice"),
        (["orders", "--every", "often"], "'often' is not a duration"),
        (["orders", "--conf", "x"], "'x' is not NAME=VALUE"),
    ],
)
def test_wrong_command_lines_are_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, ["archive", *arguments])
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_broker_that_is_not_there_is_told_before_spark_is_started() -> None:
    result = CliRunner().invoke(command, ["archive", "orders", "--bootstrap", f"127.0.0.1:{free_port()}"])
    assert str(result.exception).startswith("cannot reach a broker")
