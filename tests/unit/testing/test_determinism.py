from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tailrace.runtime.disk import FileRange
from tailrace.runtime.transport import Transport
from tailrace.testing import loop as sim
from tailrace.testing.disk import SimDisk
from tailrace.testing.network import SimNetwork


class _Echo:
    """Stores what it receives and sends it back from the file."""

    def __init__(self, transport: Transport, disk: SimDisk) -> None:
        self._transport = transport
        self._disk = disk
        self._file = disk.open(f"/log/{transport.peer}", create=True)
        self._buffer = bytearray(5000)

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        position = self._file.size
        self._file.append(self._buffer[:size])
        self._transport.send([b"<", FileRange(self._file, position, size), b">"])

    def drained(self) -> None:
        """Nothing to go on with."""

    def disconnected(self, reason: Exception | None) -> None:
        """The file stays."""


class _Client:
    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._buffer = bytearray(777)

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        """The trace has it."""

    def drained(self) -> None:
        self.transport.send([b"drained"])

    def disconnected(self, reason: Exception | None) -> None:
        """The trace has it."""


async def _busy_scenario() -> str:
    """Several clients, a cut, a crash and a power cut, summed up in one line."""
    loop = sim.current()
    disk = SimDisk(loop.random_for("disk"))
    network = SimNetwork(loop, loop.random_for("network"))
    random = loop.random_for("clients")
    disk.make_directory("/log")
    await network.host("broker").listen("", 9092, lambda transport: _Echo(transport, disk))

    async def client(name: str) -> None:
        transport = await network.host(name).connect("broker", 9092, _Client)
        for _ in range(10):
            transport.send([random.randbytes(random.randint(1, 30_000))])
            await asyncio.sleep(random.random())
            await disk.offload(lambda: disk.sync_directory("/log"))

    tasks = [asyncio.create_task(client(f"client-{number}")) for number in range(5)]
    await asyncio.sleep(1)
    network.cut("client-1", "broker")
    await asyncio.sleep(1)
    network.crash("client-2")
    network.heal()
    await asyncio.gather(*tasks)
    disk.crash()
    sizes = [len(disk.read_file(f"/log/{name}") or b"") for name in disk.list("/log")]
    return f"{loop.time()!r} {loop.steps} {network.trace.digest} {network.trace.count} {disk.trace.digest} {sizes}"


def _summary(seed: int) -> str:
    return sim.run(_busy_scenario(), seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    assert _summary(seed) == _summary(seed)


def test_other_seeds_give_other_runs() -> None:
    assert len(dict.fromkeys(_summary(seed) for seed in range(5))) == 5


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_run_is_the_same_in_another_process(hash_seed: str) -> None:
    program = f"import runpy; print(runpy.run_path({__file__!r})['_summary'](3))"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert other.stdout.strip() == _summary(3)
