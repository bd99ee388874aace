"""Runs a local cluster in the foreground: its brokers as processes, and the metadata store that they share.

The supervisor owns the store's file and serves it over a socket, so it notices at once when a broker is killed. It
restarts nothing: it reports each broker that exits, and the others continue. Brokers stop when their supervisor ends,
however it ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import click

from tailrace import __version__
from tailrace.cli.log_output import set_up_logging
from tailrace.errors import StorageError
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.system.process import DirectoryLock
from tailrace.stores.server import StoreServer

_STORE_FILE = "metadata.sqlite"
_SOCKET = "store.sock"
_BROKER_DIRECTORY = re.compile(r"broker-(\d+)$")
_MOST_REPLICAS = 3
_READY_SECONDS = 60.0
_STOP_SECONDS = 60.0
_KILLED_BY_PARENTS_END = 1
_LINES_SHOWN = 15


@dataclass(slots=True)
class _Broker:
    """One broker of the cluster, running or not."""

    number: int
    port: int
    log_path: str
    process: asyncio.subprocess.Process


def run_cluster(brokers: int, data_dir: str, host: str, port: int, settings: Mapping[str, str]) -> int:
    """Run a cluster until it is told to stop; return the exit code."""
    set_up_logging("text", "WARNING", 60)
    directory = os.path.abspath(data_dir)
    lock = DirectoryLock(directory)
    try:
        _require_all_brokers(directory, brokers)
        _require_free(host, range(port, port + brokers))
        return asyncio.run(_Supervisor(directory, host, port, brokers, settings).run())
    finally:
        lock.release()


def _require_all_brokers(directory: str, brokers: int) -> None:
    """Refuse to start fewer brokers than the data directory has records of."""
    known = [int(match[1]) for name in os.listdir(directory) if (match := _BROKER_DIRECTORY.match(name))]
    if known and max(known) > brokers:
        raise StorageError(
            f"{directory} has the records of {max(known)} brokers: start all of them with --brokers {max(known)}, or "
            "choose another --data-dir"
        )


def _require_free(host: str, ports: Sequence[int]) -> None:
    """Refuse to start anything while a port is in use."""
    for port in ports:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise StorageError(
                    f"cannot use port {port} of {host} ({error.strerror}): the brokers need ports {ports[0]} to "
                    f"{ports[-1]}; stop what listens there, or choose others with --port"
                ) from error


class _Supervisor:
    """The processes of one local cluster."""

    def __init__(self, directory: str, host: str, port: int, brokers: int, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._host = host
        self._port = port
        self._count = brokers
        self._settings = {"default.replication.factor": str(min(brokers, _MOST_REPLICAS)), **settings}
        self._brokers: list[_Broker] = []
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for stopping in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stopping, self._signalled)
        store = StoreServer(f"{self._directory}/{_STORE_FILE}", f"{self._directory}/{_SOCKET}", SystemClock())
        await store.start()
        try:
            for number in range(1, self._count + 1):
                self._brokers.append(await self._start(number))
            if not await self._wait_until_ready():
                return 0 if self._stop.is_set() else 1
            addresses = ", ".join(f"{self._host}:{broker.port}" for broker in self._brokers)
            click.echo(
                f"tailrace {__version__} cluster of {self._count} ready on {addresses} (data in {self._directory}; "
                "Ctrl-C stops it)"
            )
            sys.stdout.flush()
            return await self._watch()
        finally:
            await self._stop_all()
            await store.close()
            click.echo("tailrace cluster stopped")

    def _signalled(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            for broker in self._brokers:
                if broker.process.returncode is None:
                    broker.process.kill()

    async def _start(self, number: int) -> _Broker:
        directory = f"{self._directory}/broker-{number}"
        port = self._port + number - 1
        command = [
            *(sys.executable, "-m", "tailrace", "serve", "--node-id", str(number), "--data-dir", directory),
            *("--host", self._host, "--port", str(port), "--coordination", f"unix://{self._directory}/{_SOCKET}"),
        ]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        log_path = f"{self._directory}/broker-{number}.log"
        with _append_to(log_path) as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C must reach only the supervisor, which stops the brokers one after another.
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )
        return _Broker(number, port, log_path, process)

    # --- starting

    async def _wait_until_ready(self) -> bool:
        """Wait until all brokers are ready; return False if one fails or the cluster is told to stop."""
        ready = asyncio.gather(*[self._becomes_ready(broker) for broker in self._brokers])
        stopped = asyncio.ensure_future(self._stop.wait())
        either: list[asyncio.Future[Any]] = [ready, stopped]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=_READY_SECONDS)
        stopped.cancel()
        if self._stop.is_set():
            ready.cancel()
            return False
        if not ready.done():
            ready.cancel()
            click.echo(f"Error: the brokers were not ready within {_READY_SECONDS:.0f} s", err=True)
            return False
        failed = [broker for broker, is_ready in zip(self._brokers, ready.result(), strict=True) if not is_ready]
        for broker in failed:
            code = await broker.process.wait()
            click.echo(
                f"Error: broker {broker.number} did not start (exit code {code}); {broker.log_path} ends with:",
                err=True,
            )
            click.echo(_last_lines(broker.log_path), err=True)
        return not failed

    async def _becomes_ready(self, broker: _Broker) -> bool:
        """Return whether a broker reports that it is ready before it exits."""
        assert broker.process.stdout is not None
        line = await broker.process.stdout.readline()
        return b" ready on " in line

    # --- running

    async def _watch(self) -> int:
        """Report brokers that exit, until told to stop; return 1 if none is left."""
        ends = {asyncio.ensure_future(broker.process.wait()): broker for broker in self._brokers}
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while ends:
                done, _ = await asyncio.wait([*ends, stopped], return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    return 0
                for end in [each for each in ends if each in done]:
                    broker = ends.pop(end)
                    click.echo(
                        f"broker {broker.number} (pid {broker.process.pid}) exited: {_how(end.result())}; "
                        f"see its log, {broker.log_path}. The other brokers continue.",
                        err=True,
                    )
            click.echo("Error: all brokers have exited", err=True)
            return 1
        finally:
            for waiting in [*ends, stopped]:
                waiting.cancel()

    # --- stopping

    async def _stop_all(self) -> None:
        """Stop one broker after another, so that each hands over its partitions and the controller role."""
        for broker in reversed(self._brokers):
            process = broker.process
            if process.returncode is not None:
                continue
            _send(process.terminate)
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                click.echo(f"broker {broker.number} did not stop within {_STOP_SECONDS:.0f} s: killing it", err=True)
                _send(process.kill)
                await process.wait()


def _append_to(path: str) -> IO[bytes]:
    return open(path, "ab")


def _send(how: Callable[[], None]) -> None:
    try:
        how()
    except ProcessLookupError:
        pass


def _end_with_parent() -> Callable[[], None] | None:
    """Return what a child process runs first, so that it gets SIGTERM when its parent ends, however that ends."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return lambda: library.prctl(_KILLED_BY_PARENTS_END, signal.SIGTERM)


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_lines(path: str) -> str:
    with open(path, errors="replace") as log:
        return "".join(log.readlines()[-_LINES_SHOWN:]).rstrip()
