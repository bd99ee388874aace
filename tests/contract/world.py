"""The worlds that each contract runs in: a loop, a disk and a network that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tailrace.runtime.disk import Disk
from tailrace.runtime.system.disk import SystemDisk
from tailrace.runtime.system.network import SystemNetwork
from tailrace.runtime.transport import Network
from tailrace.testing.disk import SimDisk
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork

T = TypeVar("T")

SIMULATED_SEEDS = range(8)
WORLDS = ["system", "system-uvloop", *(f"simulated-{seed}" for seed in SIMULATED_SEEDS)]
#: Few, so that every contract also covers files whose descriptor was closed in between.
MAX_OPEN_FILES = 3


@dataclass(frozen=True)
class World:
    """A disk with an empty directory, a network, and a way to run a coroutine with them."""

    disk: Disk
    root: str
    network: Network
    run: Callable[[Coroutine[Any, Any, T]], T]
    #: More bytes than the buffers between two ends of a connection hold.
    more_than_buffers: int


def _more_than_socket_buffers() -> int:
    """More than the largest size of the kernel's buffers on both sides of a connection."""
    limits = [Path(f"/proc/sys/net/ipv4/tcp_{kind}mem").read_text().split()[-1] for kind in "rw"]
    return sum(map(int, limits)) * 3 // 2


def system_world(directory: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[World]:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        yield World(
            SystemDisk(max_open_files=MAX_OPEN_FILES),
            str(directory),
            SystemNetwork(),
            runner.run,
            _more_than_socket_buffers(),
        )


def simulated_world(seed: int) -> Iterator[World]:
    loop = SimLoop(seed)
    disk = SimDisk(loop.random_for("disk"))
    disk.make_directory("/data")
    network = SimNetwork(loop, loop.random_for("network"))
    yield World(disk, "/data", network.host("broker"), loop.run, 1 << 20)
    if not loop.is_closed():
        loop.close()


def make_world(name: str, directory: Path) -> Iterator[World]:
    if name == "system":
        yield from system_world(directory, asyncio.new_event_loop)
    elif name == "system-uvloop":
        yield from system_world(directory, uvloop.new_event_loop)
    else:
        yield from simulated_world(int(name.removeprefix("simulated-")))
