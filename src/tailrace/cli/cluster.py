"""`tailrace cluster`: run several brokers on this machine; show and manage clusters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tailrace.cli.options import PairType, WholeNumber, client_options, pairs_without_repeats
from tailrace.cli.output import count_of, print_json, print_table, shown
from tailrace.cli.serve import DEFAULT_HOST, DEFAULT_PORT
from tailrace.runtime.system.listening import listening_process

if TYPE_CHECKING:
    from tailrace.client.cluster import ClusterState, ReplicaState
    from tailrace.client.features import Features

_DEFAULT_BROKERS = 3
_MOST_BROKERS = 100
_DEFAULT_DIRECTORY = "cluster"
_MOST_LISTED = 20
_FAILED = 1
_MAX_LEVEL = 2**15 - 1


@click.group("cluster")
def command() -> None:
    """Run a cluster on this machine; show and manage any cluster.

    \b
    Examples:
      tailrace cluster start --brokers 3
      tailrace cluster status
    """


@command.command()
@click.option(
    "--brokers",
    type=WholeNumber(1, _MOST_BROKERS),
    default=_DEFAULT_BROKERS,
    show_default=True,
    help="Number of brokers.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default=_DEFAULT_DIRECTORY,
    show_default=True,
    metavar="DIR",
    help="Keep the records of all brokers in DIR, each broker in its own subdirectory.",
)
@click.option(
    "--port",
    type=WholeNumber(1, 65535 - _MOST_BROKERS),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the first broker; the others use the ports after it.",
)
@click.option("--host", metavar="NAME", default=DEFAULT_HOST, show_default=True, help="Listen on this address.")
@click.option(
    "--set",
    "settings",
    type=PairType(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a configuration key on every broker. May be repeated.",
)
def start(brokers: int, data_dir: str, port: int, host: str, settings: tuple[tuple[str, str], ...]) -> int:
    """Run a cluster of brokers on this machine until Ctrl-C.

    Each broker is a process of its own, as started by `tailrace serve`. Topics have three replicas by default, or one
    on each broker if there are fewer. If you start the cluster again on the same directory, its data is still there.

    \b
    Examples:
      tailrace cluster start
      tailrace cluster start --brokers 5 --data-dir /var/lib/tailrace --port 9092
    """
    from tailrace.cli.supervisor import run_cluster

    return run_cluster(brokers, data_dir, host, port, pairs_without_repeats(settings, "--set"))


@command.command()
@client_options
def status(bootstrap: str, as_json: bool) -> int:
    """Show the brokers, the controller and unhealthy partitions.

    Exits with 1 if a partition has no leader, or refuses writes because it has fewer in-sync replicas than
    min.insync.replicas. Lagging replicas and missing brokers alone do not change the exit code.

    \b
    Examples:
      tailrace cluster status
      tailrace cluster status --bootstrap broker1:9092 --json
    """
    from tailrace.client.cluster import describe_cluster

    state = describe_cluster(bootstrap)
    if as_json:
        print_json(_as_json(state))
    else:
        _print_state(state)
    return _FAILED if any(each.is_offline or each.refuses_writes for each in state.partitions) else 0


def _as_json(state: ClusterState) -> dict[str, object]:
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "warning": state.warning,
        "brokers": [
            {
                "id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "pid": listening_process(broker.host, broker.port),
            }
            for broker in state.brokers
        ],
        "missing_brokers": list(state.missing),
        "topics": state.topics,
        "leaders": {str(broker_id): count for broker_id, count in state.leaders.items()},
        "under_replicated": [_name(partition) for partition in state.partitions if partition.is_under_replicated],
        "offline": [_name(partition) for partition in state.partitions if partition.is_offline],
        "refusing_writes": [_name(partition) for partition in state.partitions if partition.refuses_writes],
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            for partition in state.partitions
        ],
    }


def _name(partition: ReplicaState) -> str:
    return f"{partition.topic}-{partition.partition}"


def _print_state(state: ClusterState) -> None:
    if state.warning is not None:
        click.echo(f"Warning: {state.warning}", err=True)
    controller = "no controller" if state.controller is None else f"controller {state.controller}"
    click.echo(
        f"cluster {state.cluster_id}: {count_of(len(state.brokers), 'broker')}, {controller}, "
        f"{count_of(state.topics, 'topic')}, {count_of(len(state.partitions), 'partition')}"
    )
    leaders = state.leaders
    print_table(
        ("BROKER", "ADDRESS", "RACK", "PID", "LEADS"),
        [
            (
                broker.broker_id,
                f"{broker.host}:{broker.port}",
                broker.rack,
                listening_process(broker.host, broker.port),
                leaders.get(broker.broker_id, 0),
            )
            for broker in state.brokers
        ],
    )
    for broker_id, count in state.missing.items():
        click.echo(f"broker {broker_id} is missing: it holds replicas of {count_of(count, 'partition')}")
    _print_partitions("offline (no leader)", [each for each in state.partitions if each.is_offline])
    refusing = [each for each in state.partitions if each.refuses_writes]
    _print_partitions("refusing writes with acks=all (fewer in-sync replicas than min.insync.replicas)", refusing)
    _print_partitions(
        "under-replicated",
        [
            each
            for each in state.partitions
            if each.is_under_replicated and not each.is_offline and not each.refuses_writes
        ],
    )
    if not any(each.is_offline or each.is_under_replicated for each in state.partitions):
        click.echo("all partitions have a leader, and all replicas are in sync")


def _print_partitions(what: str, partitions: list[ReplicaState]) -> None:
    if not partitions:
        return
    click.echo(f"{count_of(len(partitions), 'partition')} {what}:")
    print_table(
        ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "MIN ISR"),
        [
            (
                partition.topic,
                partition.partition,
                partition.leader,
                ",".join(map(str, partition.replicas)),
                ",".join(map(str, partition.isr)),
                partition.min_insync_replicas,
            )
            for partition in partitions[:_MOST_LISTED]
        ],
    )
    if len(partitions) > _MOST_LISTED:
        click.echo(f"… and {len(partitions) - _MOST_LISTED} more; --json lists all")


@command.command("elect-leaders")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="Elect leaders only in this topic. May be repeated."
)
@click.option(
    "--unclean", is_flag=True, help="Elect out-of-sync replicas where no in-sync one is alive; may lose records."
)
@client_options
def elect_leaders(topics: tuple[str, ...], unclean: bool, bootstrap: str, as_json: bool) -> None:
    """Elect the preferred leader of each partition.

    The preferred leader is the first replica.

    With --unclean, elect a leader only for partitions without one, from replicas that may lack records. Records that
    only the other replicas have are lost.

    \b
    Example:
      tailrace cluster elect-leaders --topic orders
    """
    from tailrace.client.cluster import describe_cluster
    from tailrace.client.elections import elect

    state = describe_cluster(bootstrap)
    wanted: dict[str, list[int]] = {}
    for partition in state.partitions:
        if not topics or partition.topic in topics:
            wanted.setdefault(partition.topic, []).append(partition.partition)
    missing = [name for name in topics if name not in wanted]
    if missing:
        raise click.UsageError(f"Topic {shown(missing[0])} does not exist; list all topics with: tailrace topic list")
    outcome = elect(bootstrap, wanted, unclean=unclean)
    if as_json:
        print_json({"elected": outcome.elected, "failed": outcome.failed})
        return
    click.echo(f"elected a new leader for {count_of(len(outcome.elected), 'partition')}")
    for name, reason in outcome.failed.items():
        click.echo(f"{name}: {reason}", err=True)


@command.command("features")
@click.argument("change", type=click.Choice(["upgrade", "downgrade"]), required=False)
@click.argument("feature", type=PairType(), required=False, metavar="[NAME=LEVEL]")
@click.option("--unsafe", is_flag=True, help="Downgrade even if this loses metadata that only newer releases know.")
@click.option("--dry-run", is_flag=True, help="Check the change without making it.")
@client_options
def features(
    change: str | None,
    feature: tuple[str, str] | None,
    unsafe: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show the cluster's features, or change the level of one.

    Upgrade a feature once every broker runs the new release. Until then, all brokers can go back to the old release.
    After that, downgrade the feature before a broker goes back.

    \b
    Examples:
      tailrace cluster features
      tailrace cluster features upgrade tailrace.version=3
      tailrace cluster features downgrade tailrace.version=1 --dry-run
    """
    from tailrace.client.features import describe_features, update_feature

    if change is None:
        if unsafe or dry_run:
            raise click.UsageError("--unsafe and --dry-run need upgrade or downgrade.")
        state = describe_features(bootstrap)
        if as_json:
            print_json({"epoch": state.epoch, "features": [asdict(each) for each in state.features]})
        else:
            _print_features(state)
        return
    if feature is None:
        raise click.UsageError(f"Give the feature to {change} as NAME=LEVEL, for example tailrace.version=2.")
    if unsafe and change == "upgrade":
        raise click.UsageError("--unsafe is only for downgrade.")
    name, level = feature[0], _level(feature[1])
    update_feature(bootstrap, name, level, downgrade=change == "downgrade", unsafe=unsafe, dry_run=dry_run)
    if as_json:
        print_json({"feature": name, "level": level, "dry_run": dry_run})
    else:
        click.echo(f"{name}={level} can be finalized" if dry_run else f"finalized {name}={level}")


def _level(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _MAX_LEVEL):
        raise click.UsageError(f"{shown(text)} is not a level: give a whole number from 0 to {_MAX_LEVEL}.")
    return int(text)


def _print_features(state: Features) -> None:
    print_table(
        ("FEATURE", "SUPPORTED", "FINALIZED"),
        [
            (each.name, None if each.lowest is None else f"{each.lowest} to {each.highest}", each.level)
            for each in state.features
        ],
    )
    click.echo(f"epoch {state.epoch}")
