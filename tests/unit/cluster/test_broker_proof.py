"""Proofs of brokers: only the token's own proof is accepted, for the very challenge that it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.cluster.broker_proof import PROOF_BYTES, Challenge, is_proof, proof_of, verifier_of
from tailrace.cluster.image import BrokerImage

TOKEN = bytes(range(32))
CHALLENGE = Challenge("cluster", 2, 7, 1, b"c" * 32, b"s" * 32)


def test_a_proof_is_accepted_for_the_challenge_that_it_answers() -> None:
    proof = proof_of(TOKEN, CHALLENGE)
    assert len(proof) == PROOF_BYTES
    assert is_proof(proof, verifier_of(TOKEN), CHALLENGE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster_id", "another"),
        ("broker_id", 3),
        ("broker_epoch", 8),
        ("verifying_id", 3),
        ("client_nonce", b"d" * 32),
        ("server_nonce", b"t" * 32),
    ],
)
def test_a_proof_counts_for_no_other_challenge(field: str, value: Any) -> None:
    other = CHALLENGE._replace(**{field: value})
    assert not is_proof(proof_of(TOKEN, CHALLENGE), verifier_of(TOKEN), other)


def test_no_two_challenges_have_the_same_bytes() -> None:
    assert CHALLENGE._replace(broker_id=21, broker_epoch=7).to_bytes() != CHALLENGE._replace(broker_epoch=17).to_bytes()
    moved = CHALLENGE._replace(server_nonce=b"", cluster_id=f"{CHALLENGE.server_nonce.hex()}\ncluster")
    assert moved.to_bytes() != CHALLENGE.to_bytes()


def test_the_verifier_does_not_make_proofs() -> None:
    verifier = verifier_of(TOKEN)
    for guess in (proof_of(verifier, CHALLENGE), verifier, proof_of(b"another token", CHALLENGE)):
        assert not is_proof(guess, verifier, CHALLENGE)


@pytest.mark.parametrize("proof", [b"", b"x", proof_of(TOKEN, CHALLENGE)[:-1], proof_of(TOKEN, CHALLENGE) + b"\0"])
def test_a_proof_of_another_size_is_none(proof: bytes) -> None:
    assert not is_proof(proof, verifier_of(TOKEN), CHALLENGE)


def test_the_verifier_is_registered_and_earlier_releases_have_none() -> None:
    registered = BrokerImage(2, (), verifier=verifier_of(TOKEN))
    assert BrokerImage.from_bytes(registered.to_bytes()) == registered
    earlier = json.loads(registered.to_bytes())
    del earlier["verifier"]
    assert BrokerImage.from_bytes(json.dumps(earlier).encode()).verifier == b""
