"""The checkers of the simulated cluster work: for each invariant, they catch a deliberately broken broker.

Each is run with a seed in which it is known to do harm. With TAILRACE_MUTATIONS=all nothing is known beforehand: each
has to be caught by one of the first seeds there are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tailrace.testing.cluster.history import Violation
from tailrace.testing.cluster.mutations import MUTATIONS
from tailrace.testing.cluster.run import run_seed
from tailrace.testing.cluster.wider_mutations import WIDER_MUTATIONS
from tailrace.testing.cluster.wider_run import FIRST_WIDER_SEED

#: A run that is caught ends wherever it is, and leaves coroutines behind that nobody has begun to await.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ALL = os.environ.get("TAILRACE_MUTATIONS") == "all"
#: Seeds that bring a fault about, early. Where the broker's code has changed since, it may take others: then the first
#: ones are tried, enough of them for a fault that shows in one of six.
KNOWN_SEEDS: dict[str, int] = {
    "a removal from the ISR counts before the store has confirmed it": 1,
    "the high watermark is the log end": 0,
    "acks=2 counts replicas that are not in sync": 3,
    "min.insync.replicas counts as 1": 1,
    "a client that claims to be a replica is believed": 0,
    "any proof of a broker is accepted": 0,
    "no replica rejoins the ISR": 0,
    "the high watermark goes back with the followers": 4,
    "consumers read up to the log end": 0,
    "any incarnation of a broker may join the ISR": 2,
    "a broker that crashed stays in the ISR": 0,
    "a broker that crashed names its successor": 0,
    "a leader accepts records right after a handover of unknown outcome": 2,
    "a leader without a lease keeps its clients": 23,
    "an election starts no new epoch": 0,
    "a leader is elected from outside the ISR": 0,
    "an election does not ask for the longest log": 1,
    "a deposed controller keeps writing": 1,
    "a follower does not truncate what its leader lacks": 3,
    "producer state is not truncated with the log": 0,
    "brokers do not detect duplicates": 0,
    "a coordinator loads only what it knows to be committed": 1,
    "group commits are acknowledged before they are committed": 5,
    "retention does not wait for the archive": 3,
    "an archive accepts commits on any base version": 3,
    "readers do not look in the archive": 1,
    "commits of a deleted topic count for its namesake": 50_000_000,
    "a deletion removes more records than requested": 50_000_000,
    "a log start is reported before it is saved": 50_000_002,
    "a setting is acknowledged and not stored": 50_000_000,
    "unclean elections never happen": 50_000_007,
    "flush.messages does not hold back the promise": 50_000_002,
    "consumers get data that rotted on disk": 50_000_000,
    "readers skip the first of several batches": 50_000_000,
    "leases use a clock that stops while the machine sleeps": 50_000_008,
    "producers are forgotten too early": 50_000_000,
    "a new producer epoch must continue the old sequence": 50_000_000,
    "files are removed in the loop": 50_000_002,
}
MOST_SEEDS = 40
_ALL_MUTATIONS = MUTATIONS | WIDER_MUTATIONS


def test_there_is_a_seed_for_every_mutation() -> None:
    assert set(KNOWN_SEEDS) == set(_ALL_MUTATIONS)


@pytest.mark.parametrize("name", _ALL_MUTATIONS)
def test_a_broken_broker_is_caught(name: str) -> None:
    mutation = _ALL_MUTATIONS[name]
    with mutation.switched_on():
        seed, violation = first_violation(
            [] if ALL else [KNOWN_SEEDS[name]], is_wider=name in WIDER_MUTATIONS, favoured=mutation.favoured
        )
    print(f"{name}: caught by seed {seed}: {violation}")
    assert violation.invariant in mutation.caught_by


def first_violation(seeds: Sequence[int], *, is_wider: bool, favoured: str | None) -> tuple[int, Violation]:
    """The first objection, in seeds that are known to bring the fault about, or else in any."""
    first = FIRST_WIDER_SEED if is_wider else 0
    for seed in (*seeds, *range(first, first + MOST_SEEDS)):
        try:
            run_seed(seed, favoured=favoured)
        except Violation as violation:
            return seed, violation
    raise AssertionError(f"nobody noticed in {MOST_SEEDS} seeds")
