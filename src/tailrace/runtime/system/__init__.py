"""The real clock, disk, network and helper. Only the command line imports them; all other code uses the ports."""

from __future__ import annotations

from random import SystemRandom

from tailrace.runtime import Runtime
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.system.disk import SystemDisk
from tailrace.runtime.system.helper import SystemHelper
from tailrace.runtime.system.network import SystemNetwork


def system_runtime(max_open_files: int, network: SystemNetwork) -> Runtime:
    """The real outside world; call this in a running event loop."""
    return Runtime(
        SystemClock(),
        SystemDisk(max_open_files),
        network,
        SystemRandom(),
        SystemHelper(),
        archive_helper=SystemHelper(only_when_idle=True),
    )
