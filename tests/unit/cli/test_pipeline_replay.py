"""`tailrace pipeline replay` and `compact`: what is refused before anything is asked of a broker."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tailrace.cli.pipeline import command
from tailrace.pipeline.failures import UnreachableBrokerError
from tests.support.brokers.broker_process import free_port


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["replay", "orders"], "Missing option '--to'"),
        (["replay", "orders", "--to", "a", "--from-offset", "1", "--since", "2h"], "Give offsets or times, not both"),
        (["replay", "orders", "--to", "a", "--to-offset", "1=2", "--until", "2h"], "Give offsets or times, not both"),
        (["replay", "orders", "--to", "a", "--from-offset", "1=2", "--from-offset", "1=3"], "twice for partition 1"),
        (["replay", "orders", "--to", "a", "--to-offset", "2", "--to-offset", "3"], "twice for all partitions"),
        (["replay", "orders", "--to", "a", "--from-offset", "x=2"], "'x' is not a whole number"),
        (["replay", "orders", "--to", "a", "--since", "1h", "--until", "2h"], "--since must be before --until"),
        (["replay", "orders", "--to", "a", "--since", "soon"], "'soon' is neither earliest, a time"),
        (["replay", "orders", "--to", "a", "--format", "json"], "--format and --schema need --where"),
        (["replay", "orders", "--to", "a", "--where", "x", "--schema", "x INT"], "--schema needs --format"),
        (["replay", "orders", "--to", "a", "--where", " "], "--where must not be empty"),
        (["replay", "orders", "--to", "a", "--rate", "0"], "0 is not between 1 and"),
        (["compact"], "Missing argument 'TOPIC...'"),
        (["compact", "orders", "--target-size", "big"], "'big' is not a size such as 128M or 1G"),
        (["compact", "orders", "--target-size", "2G"], "2G is not between 1 byte and 1G"),
        (["compact", "orders", "--min-files", "1"], "1 is not between 2 and"),
        (["compact", "orders", "--grace", "soon"], "'soon' is not a duration"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_is_wrong(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())


def test_without_a_broker_there_is_no_replay() -> None:
    arguments = ["replay", "orders", "--to", "again", "--bootstrap", f"127.0.0.1:{free_port()}"]
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, UnreachableBrokerError)
