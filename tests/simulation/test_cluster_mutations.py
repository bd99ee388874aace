"""The checkers of the simulated cluster bite: for each invariant a broker that is broken on purpose is caught.

Some faults need a coincidence that comes about in one seed of many. Those for which a seed is known are run every time,
all of them with TAILRACE_MUTATIONS=all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tailrace.testing.cluster_history import Violation
from tailrace.testing.cluster_run import run_seed
from tailrace.testing.mutations import MUTATIONS

ALL = os.environ.get("TAILRACE_MUTATIONS") == "all"
#: Seeds that bring a fault about; where the broker's code has changed since, it may take others.
KNOWN_SEEDS = {
    "a removal from the ISR counts before the store has confirmed it": 4,
    "the high watermark is the log end": 0,
    "min.insync.replicas is taken for 1": 0,
    "nobody gets back into the ISR": 0,
    "consumers read up to the log end": 0,
    "a broker that crashed stays in the ISR": 0,
    "an election is no new epoch": 0,
    "a leader is elected from outside the ISR": 0,
}
MOST_SEEDS = 40 if ALL else 12


@pytest.mark.parametrize("name", MUTATIONS if ALL else KNOWN_SEEDS)
def test_a_broken_broker_is_caught(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.switched_on():
        seed, violation = first_violation([KNOWN_SEEDS[name]] if name in KNOWN_SEEDS else [])
    assert violation.invariant in mutation.caught_by
    print(f"{name}: caught by seed {seed}: {violation}")


def first_violation(seeds: Sequence[int]) -> tuple[int, Violation]:
    """The first objection, in seeds that are known to bring the fault about, or else in any."""
    for seed in (*seeds, *range(MOST_SEEDS)):
        try:
            run_seed(seed)
        except Violation as violation:
            return seed, violation
    raise AssertionError(f"nobody noticed in {MOST_SEEDS} seeds")
