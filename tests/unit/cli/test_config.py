"""Mistakes that `tailrace config` and `tailrace topic alter` report before they ask a broker."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tailrace.cli.main import cli


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config", "set", "topic", "orders"], "Nothing to change: give KEY=VALUE, or --delete KEY."),
        (["config", "set", "topic", "orders", "retention.ms"], "'retention.ms' is not NAME=VALUE."),
        (["config", "set", "topic", "orders", "a=1", "a=2"], "KEY=VALUE gives 'a' twice."),
        (["config", "set", "topic", "orders", "a=1", "--delete", "a"], "'a' is given twice."),
        (["config", "set", "broker-default", "--delete", "a", "--delete", "a"], "'a' is given twice."),
        (["config", "set", "broker", "one", "a=1"], "'one' is not a whole number."),
        (["config", "get", "topic"], "Missing argument 'NAME'."),
        (["config", "get", "cluster"], "No such command 'cluster'"),
        (["topic", "alter", "orders"], "Nothing to alter: give --partitions, --set or --delete."),
        (["topic", "alter", "orders", "--partitions", "0"], "0 is not between 1 and"),
        (["topic", "alter", "orders", "--set", "a=1", "--delete", "a"], "'a' is given twice."),
    ],
)
def test_a_mistake_on_the_command_line_is_said(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert said in result.stderr
