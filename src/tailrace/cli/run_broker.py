"""Running a broker in the foreground: the real outside world, signals, and the one line that says it is ready."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import sys

import click

from tailrace import __version__
from tailrace.broker.assembly import Broker
from tailrace.broker.config import BrokerConfig
from tailrace.cluster.store import Unavailable
from tailrace.errors import StorageError
from tailrace.runtime.system import system_runtime
from tailrace.runtime.system.network import SystemNetwork
from tailrace.runtime.system.process import DirectoryLock, default_open_files, raise_descriptor_limit
from tailrace.stores.sqlite import SqliteStore

logger = logging.getLogger("tailrace")

_STORE_FILE = "metadata.sqlite"
_FAILED = 1


def run_broker(config: BrokerConfig) -> int:
    """Run a broker until it is told to stop; the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        try:
            return runner.run(_serve(config))
        except (StorageError, Unavailable) as error:
            click.echo(f"Error: {error}", err=True)
        except OSError as error:
            click.echo(f"Error: {_listen_problem(config, error)}", err=True)
        return _FAILED


def _listen_problem(config: BrokerConfig, error: OSError) -> str:
    listeners = ", ".join(str(endpoint) for endpoint in config.listeners)
    if error.errno == errno.EADDRINUSE:
        return f"a port of {listeners} is in use: stop what listens there, or choose another with --port"
    return f"cannot listen on {listeners}: {error.strerror or error}"


async def _serve(config: BrokerConfig) -> int:
    stop = asyncio.Event()
    exit_code = 0

    def fail(error: BaseException) -> None:
        nonlocal exit_code
        logger.critical("the broker stops: %s", error, exc_info=error)
        exit_code = _FAILED
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    directories = config.get_list("log.dirs")
    locks = [DirectoryLock(directory) for directory in directories]
    limit = raise_descriptor_limit()
    network = SystemNetwork(
        config.get_int("socket.listen.backlog.size"),
        config.get_int("socket.send.buffer.bytes"),
        config.get_int("socket.receive.buffer.bytes"),
    )
    runtime = system_runtime(config.get_int("tailrace.open.files.max") or default_open_files(limit), network)
    store = SqliteStore(f"{directories[0]}/{_STORE_FILE}")
    broker = Broker(config, runtime, store)
    broker.on_fatal = fail
    try:
        await broker.start()
        # What start-up made stays for ever: looking at it in every collection would only cost pauses.
        gc.collect()
        gc.freeze()
        _say_ready(broker, directories)
        await stop.wait()
        logger.info("stopping")
    finally:
        await broker.stop()
        await store.close()
        for lock in locks:
            lock.release()
    if exit_code == 0:
        click.echo("tailrace stopped")
    return exit_code


def _say_ready(broker: Broker, directories: tuple[str, ...]) -> None:
    image = broker.metadata.image
    endpoints = image.brokers[image.controller_id].endpoints
    addresses = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)
    click.echo(f"tailrace {__version__} ready on {addresses} (data in {', '.join(directories)}; Ctrl-C stops it)")
    sys.stdout.flush()
