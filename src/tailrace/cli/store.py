"""`tailrace store`: move a broker's metadata to the coordination store of a cluster."""

from __future__ import annotations

import asyncio
import os

import click

from tailrace.errors import StorageError


@click.group("store")
def command() -> None:
    """Move a broker's metadata to the store of a cluster.

    \b
    Example:
      tailrace store migrate --data-dir data --to etcd://127.0.0.1:2379/tailrace
    """


@command.command()
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False),
    default="data",
    show_default=True,
    metavar="DIR",
    help="First log directory of the broker, which holds its metadata.",
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="URL",
    help="Copy to this store: etcd://host:2379/prefix or zookeeper://host:2181/chroot.",
)
def migrate(data_dir: str, target: str) -> None:
    """Copy a stopped broker's metadata to etcd or ZooKeeper.

    The records stay where they are. Afterwards, start the broker with --coordination; other brokers can then join it.

    \b
    Example:
      tailrace store migrate --data-dir data --to etcd://127.0.0.1:2379/tailrace
    """
    from tailrace.cli.migration import migrate_store
    from tailrace.cli.run_broker import STORE_FILE
    from tailrace.runtime.system.process import DirectoryLock

    lock = DirectoryLock(data_dir)
    try:
        if not os.path.exists(f"{data_dir}/{STORE_FILE}"):
            raise StorageError(
                f"{data_dir} has no {STORE_FILE}: give the first log directory of a broker with --data-dir"
            )
        copied = asyncio.run(migrate_store(f"{data_dir}/{STORE_FILE}", target, _say))
    finally:
        lock.release()
    click.echo(f"copied {copied} entries; from now on, start the broker with:")
    click.echo(f"  tailrace serve --data-dir {data_dir} --coordination {target}")


def _say(text: str) -> None:
    click.echo(text, err=True)
