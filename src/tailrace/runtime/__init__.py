"""Ports to the outside world: clock, disk, network, helper. Real ones are in `runtime.system`, simulated in `testing`.

Core code reaches time, disk, network and randomness only through these, so that a whole broker also runs
inside a seeded simulation. Threads live behind `Disk.offload`; core code calls no executor itself.
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
    #: For reads of the archive, which must not wait for other work, nor hold up live traffic: it may work only when
    #: processors are idle. The one above does it as well.
    archive_helper: Helper | None = None
    #: Where tokens and nonces come from, if not from `random`: a simulation keeps its other draws as they are.
    secrets: Random | None = None

    def secret_bytes(self, size: int) -> bytes:
        """Bytes that nobody can foresee; the real `random` is one that cannot be foreseen."""
        return (self.secrets or self.random).randbytes(size)
