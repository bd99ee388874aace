"""ProveBroker 0: sends a challenge to a peer that claims to be a broker, then checks its proof.

Odd: a conversation of two requests, with its state in the connection. A wrong proof gets a response, and then the
connection is closed. A broker epoch that is unknown here may become known in a moment: only then the error code says
so.
"""

from __future__ import annotations

import asyncio
import logging

from tailrace.broker import peer_identity
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.broker_proof import NONCE_BYTES, PROOF_BYTES
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import NOTHING
from tailrace.wire.messages.prove_broker import ProveBrokerRequest, ProveBrokerResponse

logger = logging.getLogger("tailrace.broker")

_MAX_BYTES = 1024


def handle(services: Services, context: RequestContext, request: ProveBrokerRequest) -> ProveBrokerResponse:
    connection = context.connection
    if connection is None or (len(request.nonce), len(request.proof)) not in ((NONCE_BYTES, 0), (0, PROOF_BYTES)):
        return ProveBrokerResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        if not request.proof:
            client_nonce = bytes(request.nonce)
            nonce = peer_identity.challenge(services, connection, request.broker_id, request.broker_epoch, client_nonce)
            return ProveBrokerResponse(nonce=nonce)
        peer_identity.accept(services, connection, bytes(request.proof))
    except KafkaError as error:
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            logger.warning(
                "closed the connection from %s, which claims to be a broker: %s",
                context.peer,
                error,
                extra={"peer": context.peer, "repeats": "broker not proved"},
            )
            # After the response, which is sent when this returns.
            asyncio.get_running_loop().call_soon(context.disconnect)
        return ProveBrokerResponse(error_code=error.code)
    return ProveBrokerResponse()


API = Api(
    ProveBrokerRequest,
    0,
    0,
    handle,
    "tailrace only, between brokers: prove which broker connects. Not advertised.",
    max_bytes=_MAX_BYTES,
    needs=NOTHING,
)
