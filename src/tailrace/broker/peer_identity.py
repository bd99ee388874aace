"""Which broker the peer of a connection has proved to be, and the refusal of a peer that has not (ADR 21).

The only place that decides it. Invariant: a proof counts once, for the connection whose challenge it answers. This
module must not know what the peer asks for.
"""

from __future__ import annotations

from tailrace.broker.services import ProvingConnection, RequestContext, Services
from tailrace.cluster.broker_proof import Challenge, is_proof
from tailrace.cluster.features import PROVEN_BROKERS_LEVEL, TAILRACE_VERSION
from tailrace.errors import ErrorCode, KafkaError


def require_broker(services: Services, context: RequestContext, broker_id: int | None = None) -> None:
    """Refuse a peer that has not proved that it is a broker, or this very broker, in its newest epoch."""
    image = services.metadata.image
    if image.features.level(TAILRACE_VERSION) < PROVEN_BROKERS_LEVEL:
        return  # some brokers may not be able to prove their identity
    proved, connection = context.peer_broker, context.connection
    if proved is None or connection is None or (broker_id is not None and broker_id != proved):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "Only brokers may send this request, and the client has not proved that it is "
            + ("one." if broker_id is None else f"broker {broker_id}."),
        )
    registered = services.metadata.last_registration(proved)
    if registered is not None and connection.peer_epoch < registered.epoch:
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Broker {proved} has restarted: it is registered in epoch {registered.epoch}, but the client has "
            f"proved epoch {connection.peer_epoch}.",
        )


def challenge(
    services: Services, connection: ProvingConnection, broker_id: int, epoch: int, client_nonce: bytes
) -> bytes:
    """Start the proof of a peer that claims to be a broker: return a nonce, which replaces any earlier one."""
    _require_epoch(services, broker_id, epoch)
    nonce = services.identity.new_nonce()
    connection.challenge = Challenge(
        services.metadata.image.cluster_id, broker_id, epoch, services.broker_id, client_nonce, nonce
    )
    return nonce


def accept(services: Services, connection: ProvingConnection, proof: bytes) -> None:
    """Accept the peer of a connection as the broker that it was challenged as, if the proof is right."""
    asked, connection.challenge = connection.challenge, None
    if asked is None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "it sent a proof without a challenge")
    verifier = _require_epoch(services, asked.broker_id, asked.broker_epoch)
    if not verifier or not is_proof(proof, verifier, asked):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"its proof is not that of broker {asked.broker_id} in epoch {asked.broker_epoch}",
        )
    connection.proved(asked.broker_id, asked.broker_epoch)


def _require_epoch(services: Services, broker_id: int, epoch: int) -> bytes:
    """Return the verifier of a broker, if the epoch is the one that is known here.

    A broker that has just registered becomes known in a moment. One that has lost its session continues in its epoch,
    so its last registration counts. One that is stopping has an epoch that it never registers, and its fetches no
    longer count.
    """
    registered = services.metadata.last_registration(broker_id)
    if registered is None or registered.epoch != epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered in epoch {epoch}")
    return registered.verifier
