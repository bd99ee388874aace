"""How a broker proves which one it is: SCRAM's construction (RFC 5802) over a random token. Pure.

Each start of a broker draws a token, which never leaves the process, and registers its verifier. The verifier is enough
to check a proof, and not enough to make one. There is no salt and no iteration: nobody can guess a random token. A
proof is good for one challenge only, as both sides add a nonce, and for one pair of brokers.
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
    """What one proof is about."""

    cluster_id: str
    #: Who proves itself, and in which epoch.
    broker_id: int
    broker_epoch: int
    #: Who is shown the proof.
    verifying_id: int
    #: Drawn by the one who proves itself, and by the one who checks that.
    client_nonce: bytes
    server_nonce: bytes

    def to_bytes(self) -> bytes:
        """The same bytes for the same challenge, and for no other."""
        nonces = (self.client_nonce.hex(), self.server_nonce.hex())
        # The cluster's id comes last: it alone may hold anything.
        fields = (_PROOF_LABEL, self.broker_id, self.broker_epoch, self.verifying_id, *nonces, self.cluster_id)
        return "\n".join(map(str, fields)).encode()


def verifier_of(token: bytes) -> bytes:
    """What others need to check the proofs that are made with a token."""
    return sha256(_key_of(token)).digest()


def proof_of(token: bytes, challenge: Challenge) -> bytes:
    """The answer to a challenge."""
    return _xor(_key_of(token), _signature(verifier_of(token), challenge))


def is_proof(proof: bytes, verifier: bytes, challenge: Challenge) -> bool:
    """Whether an answer to a challenge was made with the token behind a verifier."""
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
