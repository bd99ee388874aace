"""`tailrace group`: list, describe and delete consumer groups, and reset their offsets."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from tailrace.cli.durations import DurationType
from tailrace.cli.options import MAX_INT32, MAX_INT64, MomentType, ParamType, WholeNumber, client_options
from tailrace.cli.output import count_of, print_json, print_table

if TYPE_CHECKING:
    from tailrace.client import GroupDescription, GroupMember
    from tailrace.client.offset_resets import OffsetChange, Scope, Target

#: Spelled as in Kafka's tools. The newer protocol has Assigning and Reconciling, the classic one the rebalances.
_STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
_TYPES = ("classic", "consumer")
_EDGES = ("earliest", "latest", "current")


class TargetType(ParamType):
    """`earliest`, `latest`, `current` or an offset."""

    name = "WHERE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        text = str(value).lower()
        if text in _EDGES:
            return text
        if not (text.isascii() and text.isdigit()) or int(text) > MAX_INT64:
            self.fail(f"'{value}' is neither earliest, latest, current nor an offset.", param, ctx)
        return int(text)


class TopicScopeType(ParamType):
    """A topic, or some of its partitions as `orders:0,2`; the value is the name and the numbers, or None for all."""

    name = "TOPIC[:N,N]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...] | None]:
        if isinstance(value, tuple):
            return value
        name, separator, numbers = str(value).partition(":")
        if not name:
            self.fail(f"'{value}' names no topic.", param, ctx)
        if not separator:
            return name, None
        parts = [part.strip() for part in numbers.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) <= MAX_INT32 for part in parts):
            self.fail(f"'{numbers}' is not a list of partitions such as 0,2.", param, ctx)
        return name, tuple(dict.fromkeys(map(int, parts)))


@click.group("group")
def command() -> None:
    """List, describe, delete and reset consumer groups.

    A group is a set of consumers that share a name. Each partition of a topic is read by one of them.
    The group commits the offset it has reached in each partition.

    \b
    Examples:
      tailrace group list
      tailrace group describe billing
      tailrace group reset-offsets billing --topic orders --to earliest
    """


@command.command("list")
@click.option("--state", type=click.Choice(_STATES, case_sensitive=False), help="Show only groups in this state.")
@click.option("--type", "kind", type=click.Choice(_TYPES, case_sensitive=False), help="Show only groups of this type.")
@client_options
def list_groups(state: str | None, kind: str | None, bootstrap: str, as_json: bool) -> None:
    """List all groups.

    TYPE is consumer for groups of the newer rebalance protocol (KIP-848), and classic for all others.

    \b
    Examples:
      tailrace group list
      tailrace group list --state empty
    """
    from tailrace.client import Groups

    groups = Groups(bootstrap).list(state=state, type=kind)
    if as_json:
        for group in groups:
            print_json({"group": group.group, "type": group.type, "state": group.state})
    elif groups:
        print_table(("GROUP", "TYPE", "STATE"), [(group.group, group.type, group.state) for group in groups])
    elif state is not None or kind is not None:
        click.echo("no groups match; list all with: tailrace group list", err=True)
    else:
        click.echo("no groups yet; a consumer with a group.id creates one when it subscribes or commits", err=True)


# --- describing


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--members", "with_members", is_flag=True, help="Show the members instead of the offsets.")
@client_options
def describe(names: tuple[str, ...], with_members: bool, bootstrap: str, as_json: bool) -> None:
    """Show the offsets, lag and members of each GROUP.

    COMMITTED is the offset from which the group continues, LOG-END the offset that the next record
    will get, and LAG the difference. MEMBER is the consumer that reads the partition now.

    \b
    Examples:
      tailrace group describe billing
      tailrace group describe billing --members
    """
    from tailrace.client import Groups

    groups = Groups(bootstrap)
    for position, name in enumerate(dict.fromkeys(names)):
        description = groups.describe(name)
        if as_json:
            print_json(_as_json(description))
            continue
        if position:
            click.echo()
        _print_head(description)
        if with_members:
            _print_members(description)
        else:
            _print_progress(description)


def _print_head(description: GroupDescription) -> None:
    coordinator = description.coordinator
    parts = [
        description.state,
        f"{description.type} protocol",
        count_of(len(description.members), "member"),
        f"lag {description.lag}",
    ]
    if description.assignor is not None:
        parts.append(f"assignor {description.assignor}")
    if description.epoch is not None:
        parts.append(f"epoch {description.epoch}")
    parts.append(f"coordinator {coordinator.broker_id} ({coordinator.address})")
    click.echo(f"{description.group}: {', '.join(parts)}")


def _print_progress(description: GroupDescription) -> None:
    if not description.progress:
        click.echo("  no committed offsets, no assigned partitions")
        return
    rows = []
    for each in description.progress:
        member = each.member
        who = (None, None, None) if member is None else (member.member_id, member.client_id, member.host)
        rows.append((each.topic, each.partition, each.committed, each.log_end, each.lag, *who))
    print_table(("TOPIC", "PARTITION", "COMMITTED", "LOG-END", "LAG", "MEMBER", "CLIENT", "HOST"), rows)


def _print_members(description: GroupDescription) -> None:
    if not description.members:
        click.echo("  no members")
        return
    rows = [
        (member.member_id, member.instance_id, member.client_id, member.host, member.epoch, _partitions_of(member))
        for member in description.members
    ]
    print_table(("MEMBER", "INSTANCE", "CLIENT", "HOST", "EPOCH", "PARTITIONS"), rows)


def _partitions_of(member: GroupMember) -> str | None:
    """`orders:0,2 bills:1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in member.partitions:
        by_topic.setdefault(topic, []).append(number)
    return " ".join(f"{topic}:{','.join(map(str, sorted(by_topic[topic])))}" for topic in sorted(by_topic)) or None


def _as_json(description: GroupDescription) -> dict[str, Any]:
    return {
        "group": description.group,
        "type": description.type,
        "state": description.state,
        "coordinator": {"broker": description.coordinator.broker_id, "address": description.coordinator.address},
        "assignor": description.assignor,
        "epoch": description.epoch,
        "lag": description.lag,
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "epoch": member.epoch,
                "topics": list(member.topics),
                "partitions": [{"topic": topic, "partition": number} for topic, number in member.partitions],
            }
            for member in description.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": each.committed,
                "log_end": each.log_end,
                "lag": each.lag,
                "member": None if each.member is None else each.member.member_id,
            }
            for each in description.progress
        ],
    }


# --- resetting


@command.command("reset-offsets")
@click.argument("group")
@click.option("--all-topics", is_flag=True, help="Reset every topic in which the group has committed offsets.")
@click.option(
    "--topic",
    "topics",
    type=TopicScopeType(),
    multiple=True,
    help="Reset this topic, or only these partitions of it. May be repeated.",
)
@click.option(
    "--to",
    type=TargetType(),
    help="Reset to earliest, latest, an offset, or current (to --export the current offsets).",
)
@click.option(
    "--to-datetime", type=MomentType(), help="Reset to the first record at or after this time (UTC by default)."
)
@click.option(
    "--by-duration",
    type=DurationType(),
    help="Reset to the first record within this time before now: 90m, 2h, 1d12h, P1DT2H.",
)
@click.option("--shift", type=WholeNumber(-MAX_INT64, MAX_INT64), help="Move forward by N offsets, or back by -N.")
@click.option(
    "--from-file",
    type=click.File("r", encoding="utf-8"),
    help="Reset to the offsets in a file that --export wrote; - reads standard input.",
)
@click.option("--execute", is_flag=True, help="Carry out the plan. Without this option, only show it.")
@click.option("--dry-run", is_flag=True, help="Only show the plan; the default.")
@click.option("--export", is_flag=True, help="Print the plan as CSV for --from-file; change nothing.")
@client_options
def reset_offsets(
    group: str,
    all_topics: bool,
    topics: tuple[tuple[str, tuple[int, ...] | None], ...],
    to: str | int | None,
    to_datetime: int | None,
    by_duration: int | None,
    shift: int | None,
    from_file: TextIO | None,
    execute: bool,
    dry_run: bool,
    export: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Reset the offsets of GROUP.

    Choose the partitions (--topic or --all-topics) and the new offsets (one of the options below).
    Nothing changes until you add --execute. The group must have no members: stop its consumers first.
    If a partition does not have the offset, the command uses the nearest that it has.

    \b
    Examples:
      tailrace group reset-offsets billing --topic orders --to earliest
      tailrace group reset-offsets billing --topic orders:0,2 --to 42 --execute
      tailrace group reset-offsets billing --all-topics --by-duration 2h --execute
      tailrace group reset-offsets billing --all-topics --to current --export > offsets.csv
      tailrace group reset-offsets billing --from-file offsets.csv --execute
    """
    if sum((execute, dry_run, export)) > 1:
        raise click.UsageError("Give only one of --execute, --dry-run and --export.")
    if export and as_json:
        raise click.UsageError("--export prints CSV: leave out --json.")
    chosen = {
        "--to": to,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--shift": shift,
        "--from-file": from_file,
    }
    given = [option for option, value in chosen.items() if value is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} were given" if given else "none was given"
        raise click.UsageError(f"Give exactly one of {', '.join(chosen)}; {found}.")
    _check_scope(all_topics, topics, from_file is not None)
    from tailrace.client import Groups
    from tailrace.client.offset_resets import apply, check_unused, plan, to_csv

    target = _target(to, to_datetime, by_duration, shift, from_file)
    groups = Groups(bootstrap)
    planned = plan(groups, group, _scope(all_topics, topics), target)
    if export:
        click.echo(to_csv(planned.changes), nl=False)
        return
    if execute:
        apply(groups, planned)
    _print_plan(group, planned.changes, execute, as_json)
    if not execute:
        click.echo("nothing was changed; add --execute to carry out the plan", err=True)
        check_unused(planned)
    elif planned.description is None and not as_json:
        click.echo(f"group {group} did not exist; it was created", err=True)


def _check_scope(all_topics: bool, topics: Sequence[tuple[str, tuple[int, ...] | None]], is_from_file: bool) -> None:
    if is_from_file:
        if all_topics or topics:
            raise click.UsageError("The file names the partitions: leave out --topic and --all-topics.")
    elif bool(topics) == all_topics:
        raise click.UsageError("Choose the partitions: give --all-topics, or --topic for each topic.")
    names = [name for name, _ in topics]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"--topic gives '{name}' twice: list its partitions together, as in {name}:0,2.")


def _scope(all_topics: bool, topics: Sequence[tuple[str, tuple[int, ...] | None]]) -> Scope | None:
    from tailrace.client.offset_resets import AllTopics, SomeTopics

    if all_topics:
        return AllTopics()
    return SomeTopics(dict(topics)) if topics else None


def _target(
    to: str | int | None,
    to_datetime: int | None,
    by_duration: int | None,
    shift: int | None,
    from_file: TextIO | None,
) -> Target:
    from tailrace.client.offset_resets import AtOffset, AtTime, Edge, ShiftBy, from_csv

    if to is not None:
        return AtOffset(to) if isinstance(to, int) else Edge(to)
    if to_datetime is not None:
        return AtTime(to_datetime)
    if by_duration is not None:
        return AtTime(max(0, int(time.time() * 1000) - by_duration))
    if shift is not None:
        return ShiftBy(shift)
    assert from_file is not None
    return from_csv(from_file.read(), from_file.name)


def _print_plan(group: str, changes: Sequence[OffsetChange], is_done: bool, as_json: bool) -> None:
    if as_json:
        for change in changes:
            print_json(
                {
                    "group": group,
                    "topic": change.topic,
                    "partition": change.partition,
                    "before": change.before,
                    "after": change.after,
                    "asked": change.after if change.asked is None else change.asked,
                    "executed": is_done,
                }
            )
        return
    print_table(
        ("TOPIC", "PARTITION", "BEFORE", "AFTER"),
        [(change.topic, change.partition, change.before, change.after) for change in changes],
    )
    for change in changes:
        if change.asked is not None:
            click.echo(
                f"{change.topic}-{change.partition} has no offset {change.asked}; the nearest is {change.after}",
                err=True,
            )


# --- deleting


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option(
    "--offsets",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Delete only the offsets in TOPIC; keep the group. May be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete(names: tuple[str, ...], topics: tuple[str, ...], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete each GROUP, or only its offsets in some topics.

    To delete a group, stop all its members. To delete its offsets in a topic, stop the members that
    subscribe to that topic.

    \b
    Examples:
      tailrace group delete billing
      tailrace group delete billing --offsets orders
    """
    from tailrace.client import ClientError, Groups

    wanted = list(dict.fromkeys(names))
    what = f"the offsets in {', '.join(topics)}" if topics else "all offsets and metadata"
    if not yes and sys.stdin.isatty() and not click.confirm(f"Delete {what} of {', '.join(wanted)}?", err=True):
        raise ClientError("nothing was deleted")
    groups = Groups(bootstrap)
    failures: list[ClientError] = []
    for name in wanted:
        # None means the whole group.
        for topic in dict.fromkeys(topics) or (None,):
            told: dict[str, Any] = {"group": name} if topic is None else {"group": name, "topic": topic}
            try:
                partitions = None if topic is None else groups.delete_offsets(name, topic)
                if topic is None:
                    groups.delete(name)
            except ClientError as error:
                failures.append(error)
                if as_json:
                    print_json({**told, "deleted": False, "error": str(error)})
                continue
            if as_json:
                print_json({**told, "deleted": True, **({} if partitions is None else {"partitions": partitions})})
            elif partitions is None:
                click.echo(f"deleted group {name}")
            else:
                click.echo(f"deleted the offsets of group {name} in {count_of(partitions, 'partition')} of {topic}")
    if failures:
        raise ClientError("; ".join(dict.fromkeys(map(str, failures))))
