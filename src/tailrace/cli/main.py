"""The `tailrace` command: its subcommands and its exit codes.

Exit codes: 0 success, 1 the operation failed, 2 the command line or configuration is wrong, 130 interrupted.
Each subcommand is a module that is imported on first use. None of them imports the Kafka client library or Spark
before it needs it, so a broker starts without both.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tailrace import __version__
from tailrace.cli.options import require_utf8
from tailrace.cli.output import in_plain_words, shown
from tailrace.errors import ConfigError, TailraceError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_COMMANDS = {
    "serve": "tailrace.cli.serve",
    "cluster": "tailrace.cli.cluster",
    "topic": "tailrace.cli.topic",
    "config": "tailrace.cli.config",
    "produce": "tailrace.cli.produce",
    "consume": "tailrace.cli.consume",
    "group": "tailrace.cli.group",
    "archive": "tailrace.cli.archive",
    "sql": "tailrace.cli.sql",
    "pipeline": "tailrace.cli.pipeline",
    "log": "tailrace.cli.log",
    "store": "tailrace.cli.store",
    "doctor": "tailrace.cli.doctor",
    "completion": "tailrace.cli.completion",
}


#: Commands whose arguments are all names and values of the cluster, never files or records.
_COMMANDS_WITHOUT_BYTES = frozenset(("topic", "config", "consume", "group", "archive"))


class LazyGroup(click.Group):
    """A group that imports each subcommand on first use and ends the process with tailrace's exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`). Python would fail again when it flushes at exit, so the rest
            # of the buffer goes to /dev/null.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = "tailrace", *_: Any, **extra: Any
    ) -> NoReturn:
        extra["standalone_mode"] = False
        given = list(sys.argv[1:] if args is None else args)
        try:
            _require_text(given)
            code = super().main(given, prog_name, **extra)
        except click.Abort as abort:
            _print_notes(abort.__cause__)
            sys.exit(EXIT_INTERRUPTED)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except UnicodeEncodeError as error:
            sys.exit(_report(ConfigError(f"{shown(str(error.object))} is not valid UTF-8"), EXIT_USAGE))
        except ConfigError as error:
            sys.exit(_report(error, EXIT_USAGE))
        except (TailraceError, OSError) as error:
            sys.exit(_report(error, EXIT_FAILED))
        sys.exit(code if isinstance(code, int) else 0)


def _require_text(arguments: Sequence[str]) -> None:
    """Refuse names that are not UTF-8: no broker has such names, and librdkafka crashes on them."""
    if arguments and arguments[0] in _COMMANDS_WITHOUT_BYTES:
        for argument in arguments:
            require_utf8(argument)


def _report(error: Exception, code: int) -> int:
    click.echo(f"Error: {in_plain_words(str(error))}", err=True)
    _print_notes(error)
    return code


def _print_notes(error: BaseException | None) -> None:
    for note in getattr(error, "__notes__", ()):
        click.echo(note, err=True)


@click.group("tailrace", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tailrace", message="%(prog)s %(version)s")
def cli() -> None:
    """A message queue that speaks the Kafka protocol.

    \b
    Start a broker, then in another terminal send a message and read it:
      tailrace serve
      echo hello | tailrace produce greetings
      tailrace consume greetings
    """


def main() -> NoReturn:
    """Run the command line and end the process."""
    cli.main()
