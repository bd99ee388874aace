"""Which seeds a test runs: always the same ones, some that nobody has seen, or a single one that is replayed.

TAILRACE_SIM_SEEDS sets how many, TAILRACE_SIM_SEED which one. The fresh ones are a quarter of all: day by day they get
further than any fixed set, and a failure names its seed.
"""

from __future__ import annotations

import os
import secrets

_USUAL = "200"
_FIRST_FRESH = 1_000_000


def chunks_of_seeds(size: int, one_in: int = 1) -> list[list[int]]:
    """The seeds in chunks, one for each test; expensive tests run fewer seeds."""
    only = os.environ.get("TAILRACE_SIM_SEED")
    if only is not None:
        return [[int(only)]]
    count = max(1, int(os.environ.get("TAILRACE_SIM_SEEDS", _USUAL)) // one_in)
    fresh = count // 4
    first = _FIRST_FRESH + secrets.randbelow(1 << 31)
    seeds = [*range(count - fresh), *range(first, first + fresh)]
    return [seeds[start : start + size] for start in range(0, count, size)]


def name_of_chunk(seeds: list[int]) -> str:
    """The name of a chunk."""
    return f"{seeds[0]}-{seeds[-1]}"
