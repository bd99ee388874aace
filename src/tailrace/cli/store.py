"""`tailrace store`: move a broker's metadata to the store of a cluster."""

from __future__ import annotations

import asyncio
import os

import click

from tailrace.errors import StorageError


@click.group("store")
def command() -> None:
    """Move the metadata of a broker to the store of a cluster.

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
    help="The first log directory of the broker, which has its metadata.",
)
@click.option(
    "--to", "target", required=True, metavar="URL", help="etcd://host:2379/prefix or zookeeper://host:2181/chroot."
)
def migrate(data_dir: str, target: str) -> None:
    """Copy the metadata of a stopped broker to etcd or ZooKeeper, so that it can become one of several.

    The records stay where they are. Afterwards the broker is started with --coordination, and others can join it.

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
            raise StorageError(f"{data_dir} has no {STORE_FILE}: it is not the first log directory of a broker")
        copied = asyncio.run(migrate_store(f"{data_dir}/{STORE_FILE}", target, _say))
    finally:
        lock.release()
    click.echo(f"copied {copied} entries; start the broker from now on with:")
    click.echo(f"  tailrace serve --data-dir {data_dir} --coordination {target}")


def _say(text: str) -> None:
    click.echo(text, err=True)
