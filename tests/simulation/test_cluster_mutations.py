"""The checkers of the simulated cluster bite: for each invariant a broker that is broken on purpose is caught."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailrace.testing.cluster_history import Violation
from tailrace.testing.cluster_run import run_seed
from tailrace.testing.mutations import MUTATIONS

#: Some faults need a coincidence: by so many seeds each has come about.
MOST_SEEDS = 40


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_broker_is_caught(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.switched_on():
        seed, violation = first_violation(mutation.likely_seeds)
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
