"""Which broker the peer of a connection has proved to be.

Invariant: a proof counts for the connection whose challenge it answers, once.
"""

from __future__ import annotations

from tailrace.broker.services import ProvingConnection, Services
from tailrace.cluster.broker_proof import Challenge, is_proof
from tailrace.errors import ErrorCode, KafkaError


def challenge(
    services: Services, connection: ProvingConnection, broker_id: int, epoch: int, client_nonce: bytes
) -> bytes:
    """Begin the proof of a peer that says which broker it is: a nonce for that, in place of any earlier one."""
    _require_epoch(services, broker_id, epoch)
    nonce = services.identity.new_nonce()
    connection.challenge = Challenge(
        services.metadata.image.cluster_id, broker_id, epoch, services.broker_id, client_nonce, nonce
    )
    return nonce


def accept(services: Services, connection: ProvingConnection, proof: bytes) -> None:
    """Take the peer of a connection for the broker that it was challenged as, if the proof is right."""
    asked, connection.challenge = connection.challenge, None
    if asked is None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "it proves something that it was not asked for")
    verifier = _require_epoch(services, asked.broker_id, asked.broker_epoch)
    if not verifier or not is_proof(proof, verifier, asked):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"its proof is not that of broker {asked.broker_id} in epoch {asked.broker_epoch}",
        )
    connection.proved(asked.broker_id, asked.broker_epoch)


def _require_epoch(services: Services, broker_id: int, epoch: int) -> bytes:
    """The verifier of a broker in an epoch, if it is the one that is known here.

    A broker that has just registered is known in a moment. One that has lost its session goes on in its epoch, so its
    last registration counts. One that stops is in an epoch that it never registers, and its fetches count no more.
    """
    registered = services.metadata.last_registration(broker_id)
    if registered is None or registered.epoch != epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered in epoch {epoch}")
    return registered.verifier
