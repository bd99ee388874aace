"""The identity that this process shows to other brokers, and how it proves it to them (ADR 21).

Owns the token of this start of the broker. Invariant: the token never leaves this object. `peer_identity` checks proofs
on the other side.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.broker.network.peer import PeerConnection
from tailrace.cluster.broker_proof import NONCE_BYTES, TOKEN_BYTES, Challenge, proof_of, verifier_of
from tailrace.cluster.features import PROVEN_BROKERS_LEVEL, TAILRACE_VERSION, supports_level
from tailrace.cluster.image import BrokerImage
from tailrace.errors import ErrorCode
from tailrace.runtime import Runtime
from tailrace.wire.messages.prove_broker import ProveBrokerRequest, ProveBrokerResponse

_VERSION = 0


class UnknownBrokerError(ConnectionError):
    """The other broker does not know yet that this one is registered, or knows another process with its id."""


class BrokerIdentity:
    """The identity of one start of a broker."""

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], cluster_id: Callable[[], str], runtime: Runtime
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._cluster_id = cluster_id
        self._runtime = runtime
        self._token = runtime.secret_bytes(TOKEN_BYTES)
        #: The registered value with which other brokers check proofs.
        self.verifier = verifier_of(self._token)

    def new_nonce(self) -> bytes:
        """Return a nonce for one challenge."""
        return self._runtime.secret_bytes(NONCE_BYTES)

    async def prove_to(self, peer: BrokerImage, connection: PeerConnection, seconds: float) -> None:
        """Prove on a new connection which broker this is, if the other side can check it.

        Raises `UnknownBrokerError` if the other side may accept the proof in a moment; the connection still works.
        Raises another `ConnectionError` if the other side does not answer in time, or refuses.
        """
        if not supports_level(peer.features, TAILRACE_VERSION, PROVEN_BROKERS_LEVEL):
            return
        nonce, epoch = self.new_nonce(), self._broker_epoch()
        first = ProveBrokerRequest(broker_id=self._broker_id, broker_epoch=epoch, nonce=nonce)
        answer = await connection.call(first, _VERSION, ProveBrokerResponse, seconds)
        self._require_accepted(peer, epoch, answer)
        challenge = Challenge(self._cluster_id(), self._broker_id, epoch, peer.broker_id, nonce, bytes(answer.nonce))
        second = ProveBrokerRequest(proof=proof_of(self._token, challenge))
        self._require_accepted(peer, epoch, await connection.call(second, _VERSION, ProveBrokerResponse, seconds))

    def _require_accepted(self, peer: BrokerImage, epoch: int, answer: ProveBrokerResponse) -> None:
        if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            raise UnknownBrokerError(
                f"broker {peer.broker_id} does not know broker {self._broker_id} in epoch {epoch} yet; it learns "
                "new epochs from the metadata store"
            )
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionError(
                f"broker {peer.broker_id} refused the proof that this is broker {self._broker_id} in epoch "
                f"{epoch} (error {answer.error_code}); check that no other process uses this node.id"
            )
