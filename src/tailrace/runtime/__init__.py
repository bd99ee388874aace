"""Ports to the outside world: clock, disk, network, helper. Real ones are in `runtime.system`, simulated in `testing`.

Core code uses time, disk, network and randomness only through these ports, so a whole broker also runs in a seeded
simulation. Threads run behind `Disk.offload`; core code never calls an executor itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk
from tailrace.runtime.helper import Helper
from tailrace.runtime.transport import Network


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world of one broker."""

    clock: Clock
    disk: Disk
    network: Network
    random: Random
    helper: Helper
    #: For reads of the archive, which must neither wait for other work nor slow down live traffic: it may be limited to
    #: idle processors. Without it, `helper` does this work.
    archive_helper: Helper | None = None
    #: The source of tokens and nonces, if not `random`: in a simulation this leaves the other random draws unchanged.
    secrets: Random | None = None

    def secret_bytes(self, size: int) -> bytes:
        """Unpredictable bytes; the real `random` is unpredictable, too."""
        return (self.secrets or self.random).randbytes(size)
