"""The command line as a whole: what it offers, how it fails, and how little it loads."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import tailrace
from tailrace.cli import options
from tailrace.cli.main import cli
from tailrace.client import connection

COMMANDS = (
    *("serve", "cluster", "topic", "config", "produce", "consume", "group", "archive", "sql", "pipeline"),
    *("log", "store", "doctor", "completion"),
)
CLIENT_COMMANDS = (
    ["topic", "create", "orders"],
    ["topic", "list"],
    ["topic", "describe", "orders"],
    ["topic", "alter", "orders", "--partitions", "2"],
    ["topic", "alter", "orders", "--set", "retention.ms=5"],
    ["topic", "delete", "orders", "--yes"],
    ["config", "get", "topic", "orders"],
    ["config", "get", "broker", "1"],
    ["config", "set", "broker-default", "max.connections=5"],
    ["produce", "orders", "--value", "x"],
    ["consume", "orders"],
    ["cluster", "status"],
    ["cluster", "elect-leaders"],
    ["cluster", "features"],
    ["cluster", "features", "upgrade", "tailrace.version=2"],
    ["group", "list"],
    ["group", "describe", "billing"],
    ["group", "reset-offsets", "billing", "--all-topics", "--to", "earliest"],
    ["group", "delete", "billing", "--yes"],
    ["archive", "status", "orders"],
    ["archive", "verify", "orders"],
    ["sql", "SELECT * FROM orders"],
)


@pytest.fixture
def nowhere() -> str:
    """An address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_version_is_the_packages() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tailrace {tailrace.__version__}\n")


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.split("Commands:\n")[1].splitlines()]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["cluster"],
        ["cluster", "start"],
        ["cluster", "status"],
        ["cluster", "elect-leaders"],
        ["cluster", "features"],
        ["store"],
        ["store", "migrate"],
        ["topic"],
        ["topic", "create"],
        ["topic", "list"],
        ["topic", "describe"],
        ["topic", "alter"],
        ["topic", "delete"],
        ["config"],
        ["config", "get"],
        ["config", "get", "topic"],
        ["config", "get", "broker"],
        ["config", "get", "broker-default"],
        ["config", "set"],
        ["config", "set", "topic"],
        ["config", "set", "broker"],
        ["config", "set", "broker-default"],
        ["produce"],
        ["consume"],
        ["group"],
        ["group", "list"],
        ["group", "describe"],
        ["group", "reset-offsets"],
        ["group", "delete"],
        ["sql"],
        ["pipeline"],
        ["pipeline", "run"],
        ["log"],
        ["log", "dump"],
        ["doctor"],
        ["completion"],
    ],
    ids=" ".join,
)
def test_help_of_every_command_shows_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"tailrace {' '.join(command)}" in result.stdout.split("Example")[1]


def groups_of_commands(group: click.Group, *names: str) -> Iterator[list[str]]:
    """The names that lead to each group of commands, the top one included."""
    yield list(names)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from groups_of_commands(command, *names, name)


@pytest.mark.parametrize("group", list(groups_of_commands(cli)), ids=" ".join)
def test_lists_of_commands_show_whole_sentences(group: list[str]) -> None:
    result = CliRunner().invoke(cli, [*group, "--help"], terminal_width=80)
    assert result.exit_code == 0
    for line in result.stdout.split("Commands:\n")[1].splitlines():
        assert line.endswith("."), line
        assert not line.endswith("..."), line


@pytest.mark.parametrize(
    "command", [[], ["nonsense"], ["topic", "create"], ["consume"], ["topic", "list", "--nonsense"]]
)
def test_a_wrong_command_line_ends_with_2(command: list[str]) -> None:
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2
    assert "Usage: tailrace" in result.stderr


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=" ".join)
def test_an_unreachable_broker_ends_with_1_and_says_what_to_do(command: list[str], nowhere: str) -> None:
    result = CliRunner().invoke(cli, [*command, "--bootstrap", nowhere])
    assert result.exit_code == 1
    assert f"cannot reach a broker at {nowhere}" in result.stderr
    assert "start it with: tailrace serve" in result.stderr


def test_the_environment_names_the_broker(nowhere: str) -> None:
    result = CliRunner().invoke(cli, ["topic", "list"], env={"TAILRACE_BOOTSTRAP": nowhere})
    assert result.exit_code == 1
    assert f"cannot reach a broker at {nowhere}" in result.stderr


def test_a_bootstrap_without_a_port_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["topic", "list", "--bootstrap", "localhost"])
    assert result.exit_code == 2
    assert "'localhost' is not HOST:PORT" in result.stderr


def test_the_client_and_the_command_line_agree_on_the_default_address() -> None:
    assert options.DEFAULT_BOOTSTRAP == connection.DEFAULT_BOOTSTRAP


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["serve", "--help"], ["doctor", "--help"], ["completion", "bash"]],
    ids=" ".join,
)
def test_the_kafka_client_library_is_loaded_only_by_commands_that_use_it(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from tailrace.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert 'tailrace.cli.main' in sys.modules\n"
        "    assert 'confluent_kafka' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--help"], ["sql", "--help"], ["pipeline", "--help"], ["topic", "--help"]])
def test_spark_is_loaded_only_when_a_query_or_job_runs(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from tailrace.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert not {'pyspark', 'py4j', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete "), ("zsh", "#compdef tailrace"), ("fish", "complete ")]
)
def test_completion_prints_a_script_that_calls_tailrace_back(shell: str, sign: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert sign in result.stdout
    assert f"_TAILRACE_COMPLETE={shell}_complete" in result.stdout


def test_completion_offers_the_subcommands() -> None:
    environment = {"_TAILRACE_COMPLETE": "bash_complete", "COMP_WORDS": "tailrace topic ", "COMP_CWORD": "2"}
    result = CliRunner().invoke(cli, [], env=environment)
    assert [line.split(",")[1] for line in result.stdout.splitlines()] == [
        "alter",
        "create",
        "delete",
        "describe",
        "list",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "create", "a\udcffb"],
        ["topic", "create", "orders", "--config", "a\udcffb=1"],
        ["topic", "describe", "a\udcffb"],
        ["topic", "delete", "a\udcffb"],
        ["topic", "alter", "orders", "--set", "retention.ms=a\udcffb"],
        ["config", "get", "topic", "a\udcffb"],
        ["config", "set", "broker", "1", "log.retention.ms=a\udcffb"],
        ["produce", "a\udcffb", "--value", "x"],
        ["produce", "orders", "--value", "x", "--header", "a\udcffb=1"],
        ["consume", "a\udcffb"],
        ["group", "delete", "a\udcffb"],
        ["group", "reset-offsets", "billing", "--topic", "a\udcffb", "--to", "5"],
        ["archive", "status", "a\udcffb"],
        ["topic", "list", "--bootstrap", "a\udcffb:9092"],
        ["cluster", "status", "--bootstrap", "a\udcffb:9092"],
    ],
)
def test_names_that_are_not_utf_8_are_refused(command: list[str]) -> None:
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2
    assert "a\\xffb" in result.stderr
    assert "is not valid UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("option", "number"), [("--partitions", "100001"), ("--partitions", "-1"), ("--replication-factor", "10001")]
)
def test_more_partitions_or_replicas_than_there_can_be_are_refused(option: str, number: str) -> None:
    result = CliRunner().invoke(cli, ["topic", "create", "orders", option, number])
    assert result.exit_code == 2
    assert f"{number} is not between 1 and" in result.stderr
