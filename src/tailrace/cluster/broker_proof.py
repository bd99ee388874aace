"""How a broker proves its identity: SCRAM's construction (RFC 5802) over a random token. Pure.

Each start of a broker draws a token, which never leaves the process, and registers its verifier. The verifier can check
a proof but cannot make one. Salt and iterations are unnecessary, because nobody can guess a random token. Both sides
add a nonce, so a proof is valid for one challenge only, and for one pair of brokers.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import NamedTuple

TOKEN_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32

_KEY_LABEL = b"tailrace broker key"
_PROOF_LABEL = "tailrace broker proof"


class Challenge(NamedTuple):
    """What one proof covers."""

    cluster_id: str
    #: The broker that proves its identity, and its epoch.
    broker_id: int
    broker_epoch: int
    #: The broker that verifies the proof.
    verifying_id: int
    #: Drawn by the proving broker and by the verifying broker, respectively.
    client_nonce: bytes
    server_nonce: bytes

    def to_bytes(self) -> bytes:
        """An unambiguous encoding: different challenges have different bytes."""
        nonces = (self.client_nonce.hex(), self.server_nonce.hex())
        # The cluster's id comes last because it may contain anything.
        fields = (_PROOF_LABEL, self.broker_id, self.broker_epoch, self.verifying_id, *nonces, self.cluster_id)
        return "\n".join(map(str, fields)).encode()


def verifier_of(token: bytes) -> bytes:
    """The verifier that others need to check proofs made with a token."""
    return sha256(_key_of(token)).digest()


def proof_of(token: bytes, challenge: Challenge) -> bytes:
    """The answer to a challenge, made with a token."""
    return _xor(_key_of(token), _signature(verifier_of(token), challenge))


def is_proof(proof: bytes, verifier: bytes, challenge: Challenge) -> bool:
    """Whether a proof was made for this challenge with the token of this verifier."""
    if len(proof) != PROOF_BYTES:
        return False
    key = _xor(proof, _signature(verifier, challenge))
    return hmac.compare_digest(sha256(key).digest(), verifier)


def _key_of(token: bytes) -> bytes:
    return hmac.digest(token, _KEY_LABEL, "sha256")


def _signature(verifier: bytes, challenge: Challenge) -> bytes:
    return hmac.digest(verifier, challenge.to_bytes(), "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
