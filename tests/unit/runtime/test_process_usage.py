"""The reported usage of a process is its real usage."""

from __future__ import annotations

import os
import resource
import time

from tailrace.runtime.system.process_usage import process_usage


def test_the_figures_are_those_of_this_process() -> None:
    before = process_usage()
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    memory = bytearray(os.urandom(1) * (64 << 20))
    try:
        usage = process_usage()
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert usage.open_descriptors == before.open_descriptors + 5
    assert usage.max_descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert usage.resident_bytes > before.resident_bytes + (len(memory) >> 1)
    assert usage.virtual_bytes >= usage.resident_bytes
    # Clock ticks are a hundredth of a second, and the boot time is in whole seconds.
    assert abs(usage.cpu_seconds - sum(os.times()[:2])) < 0.5
    assert time.time() - 24 * 3600 < usage.start_time <= time.time() + 1
