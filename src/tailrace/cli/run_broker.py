"""Runs a broker in the foreground on the real system, until a signal stops it.

Prints a line to standard output when the broker is ready and another when it has stopped. The log goes to standard
error. A service manager that asks for it is notified too.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time

import click

from tailrace import __version__
from tailrace.broker.assembly import Broker, ProcessIdentity
from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.monitoring.monitoring import MonitoringPortError
from tailrace.cli.log_output import JSON, set_up_logging
from tailrace.cluster.keys import MOVED_TO
from tailrace.cluster.store import Store, Unavailable
from tailrace.errors import StorageError
from tailrace.runtime.clock import Clock
from tailrace.runtime.system import system_runtime
from tailrace.runtime.system.network import SystemNetwork
from tailrace.runtime.system.process import (
    DirectoryLock,
    UnusableDirectoryError,
    connections_beside,
    default_open_files,
    raise_descriptor_limit,
)
from tailrace.runtime.system.process_usage import process_usage
from tailrace.runtime.system.service_manager import notify
from tailrace.runtime.system.watchdog import LoopWatchdog
from tailrace.stores.opening import open_store
from tailrace.stores.sqlite import SqliteStore

logger = logging.getLogger("tailrace")

#: In the first log directory.
STORE_FILE = "metadata.sqlite"
_FAILED = 1
#: The broker warns if its limit of descriptors is lower.
_FEW_DESCRIPTORS = 1024
#: How often the broker retries a store that it cannot reach, and how often it logs that.
_STORE_RETRY_SECONDS = 1.0
_STORE_SAID_SECONDS = 10.0
#: New objects that trigger a garbage collection; Python's 700 are fewer than a hundred requests take.
_COLLECT_AFTER_OBJECTS = 10_000


def run_broker(config: BrokerConfig) -> int:
    """Run a broker until it is told to stop; return the exit code."""
    set_up_logging(
        config.get_str("tailrace.log.format"),
        config.get_str("tailrace.log.level"),
        config.get_int("tailrace.log.repeats.per.minute"),
    )
    for warning in config.warnings:
        _tell(config, logging.WARNING, warning)
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        try:
            return runner.run(_serve(config))
        except (StorageError, Unavailable, MonitoringPortError) as error:
            _tell(config, logging.ERROR, str(error))
        except OSError as error:
            _tell(config, logging.ERROR, _listen_problem(config, error))
        return _FAILED


def _tell(config: BrokerConfig, level: int, text: str) -> None:
    """Report a problem: as plain text, or as a JSON log line if the log is JSON."""
    if config.get_str("tailrace.log.format") == JSON:
        logger.log(level, "%s", text)
    else:
        click.echo(f"{logging.getLevelName(level).capitalize()}: {text}", err=True)


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
    locks, unusable = _lock(directories)
    limit = raise_descriptor_limit()
    open_files = config.get_int("tailrace.open.files.max") or default_open_files(limit)
    connections = connections_beside(open_files, limit)
    if limit < _FEW_DESCRIPTORS:
        logger.warning(
            "only %d files and sockets may be open at once: %d connections and %d segment files at most; "
            "if that is too few, raise the limit (ulimit -n, LimitNOFILE)",
            limit,
            connections,
            open_files,
        )
    network = SystemNetwork(
        config.get_int("socket.listen.backlog.size"),
        config.get_int("socket.send.buffer.bytes"),
        config.get_int("socket.receive.buffer.bytes"),
        connections,
    )
    runtime = system_runtime(open_files, network)
    store = await _reach_store(config, f"{directories[0]}/{STORE_FILE}", runtime.clock, stop)
    if store is None:
        return exit_code
    broker = Broker(config, runtime, store)
    broker.on_fatal = fail
    for directory, reason in unusable.items():
        broker.partitions.take_offline(directory, reason)
    broker.observed.process_usage = process_usage
    broker.process = ProcessIdentity(socket.gethostname(), os.getpid())
    try:
        await broker.start()
        # Objects made at start-up live for ever: scanning them in every collection would only cost pauses.
        gc.collect()
        gc.freeze()
        # Objects of requests in flight are not garbage; reference counting frees them without a collection.
        gc.set_threshold(_COLLECT_AFTER_OBJECTS)
        watchdog = _watch_loop(broker, loop)
        _say_ready(broker, directories)
        try:
            await stop.wait()
        finally:
            if watchdog is not None:
                watchdog.stop()
        logger.info("stopping: refusing new requests, syncing and closing logs")
        notify("STOPPING=1", "syncing and closing logs")
    finally:
        stop_began = time.monotonic()
        await broker.stop()
        await store.close()
        for lock in locks:
            lock.release()
    took = time.monotonic() - stop_began
    logger.info("stopped after %.3f s", took, extra={"duration_s": round(took, 3), "exit_code": exit_code})
    if exit_code == 0:
        _say("tailrace stopped")
    return exit_code


def _watch_loop(broker: Broker, loop: asyncio.AbstractEventLoop) -> LoopWatchdog | None:
    """Report slow steps of the event loop, which delay every request."""
    threshold_ms = broker.config.get_int("tailrace.loop.slow.step.ms")
    if not threshold_ms:
        return None
    watchdog = LoopWatchdog(loop, threshold_ms)
    broker.observed.slow_steps = lambda: watchdog.slow_steps
    watchdog.start()
    return watchdog


async def _reach_store(config: BrokerConfig, file: str, clock: Clock, stop: asyncio.Event) -> Store | None:
    """Return the metadata store once it answers, or None if the broker is told to stop first."""
    url = config.get_optional_str("tailrace.coordination")
    if url is None:
        own = SqliteStore(file)
        moved = await own.get(MOVED_TO)
        if moved is None:
            return own
        await own.close()
        raise StorageError(
            f"the metadata of this broker was moved to {moved.value.decode()}: start it with "
            f"--coordination {moved.value.decode()}, or use the old metadata with --coordination sqlite:{file}"
        )
    store = open_store(url, clock)
    said_at: float | None = None
    while not stop.is_set():
        try:
            await store.get(MOVED_TO)
            return store
        except Unavailable as error:
            if said_at is None or time.monotonic() - said_at >= _STORE_SAID_SECONDS:
                said_at = time.monotonic()
                _tell(
                    config,
                    logging.WARNING,
                    f"cannot reach the coordination store: {error}; retrying. Check --coordination and the store",
                )
        try:
            async with asyncio.timeout(_STORE_RETRY_SECONDS):
                await stop.wait()
        except TimeoutError:
            pass
    await store.close()
    return None


def _lock(directories: tuple[str, ...]) -> tuple[list[DirectoryLock], dict[str, StorageError]]:
    """Lock the log directories. Continue without those that cannot be used, except for the first."""
    locks: list[DirectoryLock] = []
    unusable: dict[str, StorageError] = {}
    for directory in directories:
        try:
            locks.append(DirectoryLock(directory))
        except UnusableDirectoryError as error:
            # The first one holds the metadata: without it there is nothing to serve.
            if directory == directories[0]:
                raise
            unusable[directory] = error
    return locks, unusable


def _say_ready(broker: Broker, directories: tuple[str, ...]) -> None:
    node_id = broker.config.get_int("node.id")
    endpoints = broker.metadata.image.brokers[node_id].endpoints
    addresses = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)
    partitions = sum(1 for _ in broker.partitions)
    listeners = [f"{endpoint.listener}://{endpoint.host}:{endpoint.port}" for endpoint in endpoints]
    _log_started(broker, node_id, listeners, directories, partitions)
    notify("READY=1", f"serving {partitions} partitions on {addresses}")
    _say(f"tailrace {__version__} ready on {addresses} (data in {', '.join(directories)}; Ctrl-C stops it)")


def _say(text: str) -> None:
    """Print a line to standard output, which may be closed by now."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python must not try to write the rest of the buffer when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log_started(
    broker: Broker, node_id: int, listeners: list[str], directories: tuple[str, ...], partitions: int
) -> None:
    found, address = broker.lifecycle, broker.monitoring.address
    cluster_id = broker.metadata.image.cluster_id
    metrics = None if address is None else f"http://{address[0]}:{address[1]}/metrics"
    offline = [directory.path for directory in broker.partitions.directories if directory.failure is not None]
    logger.info(
        "started tailrace %s as node %d of cluster %s: listening on %s, metrics %s, %d partitions in %s%s, "
        "logs %s in %.3f s",
        __version__,
        node_id,
        cluster_id,
        ", ".join(listeners),
        metrics or "off",
        partitions,
        ", ".join(directories),
        f" ({', '.join(offline)} offline)" if offline else "",
        "opened" if found.stopped_cleanly else "checked and opened",
        found.recovery_seconds,
        extra={
            "version": __version__,
            "node_id": node_id,
            "cluster_id": cluster_id,
            "listeners": listeners,
            "metrics": metrics,
            "log_dirs": list(directories),
            "offline_log_dirs": offline,
            "partitions": partitions,
            "recovery_s": round(found.recovery_seconds, 3),
            "stopped_cleanly": found.stopped_cleanly,
        },
    )
