"""`tailrace topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.config import changes_from_options, print_changes
from tailrace.cli.options import (
    MOST_PARTITIONS,
    MOST_REPLICAS,
    PairType,
    WholeNumber,
    client_options,
    pairs_without_repeats,
)
from tailrace.cli.output import count_of, print_json, print_table

if TYPE_CHECKING:
    from tailrace.client import TopicState


@click.group("topic")
def command() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Example:
      tailrace topic create orders --partitions 3
    """


@command.command()
@click.argument("name")
@click.option(
    "--partitions",
    type=WholeNumber(1, MOST_PARTITIONS),
    help="Number of partitions.  [default: the broker's num.partitions]",
)
@click.option(
    "--replication-factor",
    type=WholeNumber(1, MOST_REPLICAS),
    help="Number of replicas of each partition.  [default: the broker's default.replication.factor]",
)
@click.option(
    "--config",
    "configs",
    type=PairType(),
    multiple=True,
    help="Set a topic config, for example retention.ms=3600000. May be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic already exists.")
@client_options
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create the topic NAME.

    \b
    Examples:
      tailrace topic create orders
      tailrace topic create orders --partitions 6 --config retention.ms=86400000
    """
    from tailrace.client import TopicExistsError, Topics

    settings = pairs_without_repeats(configs, "--config")
    created = True
    try:
        Topics(bootstrap).create(name, partitions=partitions, replication_factor=replication_factor, configs=settings)
    except TopicExistsError:
        if not if_not_exists:
            raise
        created = False
    if as_json:
        print_json({"topic": name, "created": created})
    else:
        click.echo(f"created topic {name}" if created else f"topic {name} already exists")


@command.command("list")
@client_options
def list_topics(bootstrap: str, as_json: bool) -> None:
    """List all topics.

    \b
    Example:
      tailrace topic list
    """
    from tailrace.client import Topics

    topics = Topics(bootstrap).list()
    if as_json:
        for topic in topics:
            print_json(
                {
                    "topic": topic.name,
                    "partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                }
            )
    elif topics:
        rows = [(topic.name, topic.partitions, topic.replication_factor) for topic in topics]
        print_table(("TOPIC", "PARTITIONS", "REPLICATION"), rows)
    else:
        click.echo("no topics yet; create one with: tailrace topic create NAME", err=True)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@client_options
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the partitions, offsets and configs of each topic NAME.

    EARLIEST is the offset of the first record, LATEST the offset that the next record will get.

    \b
    Example:
      tailrace topic describe orders
    """
    from tailrace.client import Topics

    topics = Topics(bootstrap)
    for position, name in enumerate(dict.fromkeys(names)):
        state = topics.describe(name)
        if as_json:
            print_json(_as_json(state))
            continue
        if position:
            click.echo()
        _print_state(state)


def _print_state(state: TopicState) -> None:
    click.echo(f"{state.name}: {count_of(len(state.partitions), 'partition')}, id {state.topic_id}")
    for key, value in state.configs.items():
        click.echo(f"  {key}={value}")
    print_table(
        ("PARTITION", "LEADER", "REPLICAS", "ISR", "EARLIEST", "LATEST"),
        [
            (
                partition.partition,
                partition.leader,
                ",".join(map(str, partition.replicas)),
                ",".join(map(str, partition.isr)),
                partition.earliest_offset,
                partition.latest_offset,
            )
            for partition in state.partitions
        ],
    )


def _as_json(state: TopicState) -> dict[str, Any]:
    return {
        "topic": state.name,
        "topic_id": state.topic_id,
        "configs": dict(state.configs),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "earliest_offset": partition.earliest_offset,
                "latest_offset": partition.latest_offset,
            }
            for partition in state.partitions
        ],
    }


@command.command()
@click.argument("name")
@click.option(
    "--partitions", type=WholeNumber(1, MOST_PARTITIONS), help="New partition count; must exceed the current one."
)
@click.option(
    "--set", "pairs", type=PairType(), multiple=True, metavar="KEY=VALUE", help="Set a topic config. May be repeated."
)
@click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Remove a topic config, so that the broker's value applies. May be repeated.",
)
@client_options
def alter(
    name: str,
    partitions: int | None,
    pairs: tuple[tuple[str, str], ...],
    deleted: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add partitions to the topic NAME, or change its configuration.

    Existing records stay where they are, but new records of a key may go to another partition.

    \b
    Examples:
      tailrace topic alter orders --partitions 6
      tailrace topic alter orders --set retention.ms=86400000 --delete max.message.bytes
    """
    settings = changes_from_options(pairs, deleted, "--set")
    if partitions is None and not settings and not deleted:
        raise click.UsageError("Nothing to alter: give --partitions, --set or --delete.")
    from tailrace.client import ConfigOwner, Configs, Topics

    if settings or deleted:
        Configs(bootstrap).change(ConfigOwner.topic(name), to=settings, delete=deleted)
        if not as_json:
            print_changes(f"topic '{name}'", settings, deleted)
    if partitions is not None:
        Topics(bootstrap).add_partitions(name, partitions)
        if not as_json:
            click.echo(f"topic '{name}' now has {count_of(partitions, 'partition')}")
    if as_json:
        print_json({"topic": name, "partitions": partitions, "set": settings, "deleted": list(deleted)})


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete(names: tuple[str, ...], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete each topic NAME and all its records.

    \b
    Example:
      tailrace topic delete orders
    """
    from tailrace.client import ClientError, Topics

    wanted = list(dict.fromkeys(names))
    if not yes and sys.stdin.isatty():
        question = f"Delete {', '.join(wanted)} and every record in {'it' if len(wanted) == 1 else 'them'}?"
        if not click.confirm(question, err=True):
            raise ClientError("nothing was deleted")
    topics = Topics(bootstrap)
    failures: list[ClientError] = []
    for name in wanted:
        try:
            topics.delete(name)
        except ClientError as error:
            failures.append(error)
            if as_json:
                print_json({"topic": name, "deleted": False, "error": str(error)})
            continue
        if as_json:
            print_json({"topic": name, "deleted": True})
        else:
            click.echo(f"deleted topic {name}")
    if failures:
        raise ClientError("; ".join(map(str, failures)))
