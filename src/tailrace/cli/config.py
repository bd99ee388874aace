"""`tailrace config`: show and change the configuration of topics and brokers while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tailrace.cli.options import MAX_INT32, PairType, WholeNumber, client_options, pairs_without_repeats
from tailrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from tailrace.client import ConfigOwner

_all_option = click.option("--all", "show_all", is_flag=True, help="Also show keys that have their default value.")
_pairs_argument = click.argument("pairs", nargs=-1, type=PairType(), metavar="[KEY=VALUE]...")
_delete_option = click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Remove what is set for KEY, so that its default applies. May be repeated.",
)


@click.group("config")
def command() -> None:
    """Show or change the configuration of topics and brokers.

    \b
    Examples:
      tailrace config get topic orders --all
      tailrace config set topic orders retention.ms=86400000
      tailrace config set broker-default log.retention.ms=604800000
    """


@command.group("get")
def get_command() -> None:
    """Show the configuration of a topic, a broker or all brokers.

    \b
    SOURCE says where a value comes from:
      topic           set on the topic
      broker          set on this broker at run time
      broker-default  set on all brokers at run time
      static          set in the file or on the command line of the broker
      default         not set anywhere

    \b
    Example:
      tailrace config get topic orders
    """


@get_command.command("topic")
@click.argument("name")
@_all_option
@client_options
def get_topic(name: str, show_all: bool, bootstrap: str, as_json: bool) -> None:
    """Show the configuration of the topic NAME.

    \b
    Example:
      tailrace config get topic orders --all
    """
    from tailrace.client import ConfigOwner

    _show(ConfigOwner.topic(name), show_all, bootstrap, as_json)


@get_command.command("broker")
@click.argument("broker_id", type=WholeNumber(0, MAX_INT32), metavar="ID")
@_all_option
@client_options
def get_broker(broker_id: int, show_all: bool, bootstrap: str, as_json: bool) -> None:
    """Show the configuration of the broker ID.

    \b
    Example:
      tailrace config get broker 1 --all
    """
    from tailrace.client import ConfigOwner

    _show(ConfigOwner.broker(broker_id), show_all, bootstrap, as_json)


@get_command.command("broker-default")
@client_options
def get_broker_default(bootstrap: str, as_json: bool) -> None:
    """Show what is set on all brokers at run time.

    \b
    Example:
      tailrace config get broker-default
    """
    from tailrace.client import ConfigOwner

    _show(ConfigOwner.all_brokers(), True, bootstrap, as_json)


def _show(owner: ConfigOwner, show_all: bool, bootstrap: str, as_json: bool) -> None:
    from tailrace.client import Configs

    values = Configs(bootstrap).get(owner)
    shown = [value for value in values if show_all or value.source != "default"]
    if as_json:
        for value in shown:
            print_json(
                {
                    "name": value.name,
                    "value": value.value,
                    "source": value.source,
                    "read_only": value.is_read_only,
                }
            )
    elif shown:
        print_table(("KEY", "VALUE", "SOURCE"), [(value.name, value.value, value.source) for value in shown])
    elif show_all:
        click.echo(f"nothing is set for {owner}", err=True)
    else:
        click.echo(f"nothing is set for {owner}; --all shows the defaults", err=True)


@command.group("set")
def set_command() -> None:
    """Change the configuration of a topic, a broker or all brokers.

    A change takes effect without a restart and survives restarts.

    \b
    Example:
      tailrace config set topic orders retention.ms=86400000 --delete cleanup.policy
    """


@set_command.command("topic")
@click.argument("name")
@_pairs_argument
@_delete_option
@client_options
def set_topic(
    name: str, pairs: tuple[tuple[str, str], ...], deleted: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    """Change the configuration of the topic NAME.

    \b
    Examples:
      tailrace config set topic orders retention.ms=86400000 max.message.bytes=2000000
      tailrace config set topic orders --delete retention.ms
    """
    from tailrace.client import ConfigOwner

    _change(ConfigOwner.topic(name), pairs, deleted, bootstrap, as_json)


@set_command.command("broker")
@click.argument("broker_id", type=WholeNumber(0, MAX_INT32), metavar="ID")
@_pairs_argument
@_delete_option
@client_options
def set_broker(
    broker_id: int, pairs: tuple[tuple[str, str], ...], deleted: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    """Change the configuration of the broker ID.

    \b
    Example:
      tailrace config set broker 1 max.connections=2000
    """
    from tailrace.client import ConfigOwner

    _change(ConfigOwner.broker(broker_id), pairs, deleted, bootstrap, as_json)


@set_command.command("broker-default")
@_pairs_argument
@_delete_option
@client_options
def set_broker_default(
    pairs: tuple[tuple[str, str], ...], deleted: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    """Change the configuration of all brokers.

    A value that is set on one broker overrides it there.

    \b
    Example:
      tailrace config set broker-default log.retention.ms=604800000
    """
    from tailrace.client import ConfigOwner

    _change(ConfigOwner.all_brokers(), pairs, deleted, bootstrap, as_json)


def _change(
    owner: ConfigOwner, pairs: tuple[tuple[str, str], ...], deleted: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    settings = changes_from_options(pairs, deleted, "KEY=VALUE")
    if not settings and not deleted:
        raise click.UsageError("Nothing to change: give KEY=VALUE, or --delete KEY.")
    from tailrace.client import Configs

    Configs(bootstrap).change(owner, to=settings, delete=deleted)
    if as_json:
        print_json({"set": settings, "deleted": list(deleted)})
    else:
        print_changes(str(owner), settings, deleted)


def changes_from_options(pairs: tuple[tuple[str, str], ...], deleted: tuple[str, ...], option: str) -> dict[str, str]:
    """Return what to set; raise UsageError if a key occurs twice or is both set and deleted."""
    settings = pairs_without_repeats(pairs, option)
    for position, name in enumerate(deleted):
        if name in settings or name in deleted[:position]:
            raise click.UsageError(f"'{name}' is given twice.")
    return settings


def print_changes(owner: str, settings: dict[str, str], deleted: tuple[str, ...]) -> None:
    """Print each change."""
    for name, value in settings.items():
        click.echo(f"{owner}: {name} is now {value}")
    for name in deleted:
        click.echo(f"{owner}: {name} is no longer set")
