"""From a frame to its answer: the API and version it names, the handler, and the encoded response.

Holds the one catch-all of the broker: a handler that fails in a way nobody expected costs its connection, with the
reason in the logging, and nothing else. Malformed bytes are a WireError and cost the connection too.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine
from types import CoroutineType
from typing import Any

from tailrace.broker.connection import Connection
from tailrace.broker.handlers import APIS, Api
from tailrace.broker.handlers.api_versions import unsupported_version
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import WireError
from tailrace.runtime.disk import FileRange
from tailrace.runtime.tasks import Tasks
from tailrace.runtime.transport import Part
from tailrace.wire.apis import ApiKey
from tailrace.wire.frames import RequestHeader, decode_request_header

logger = logging.getLogger("tailrace.broker")

_pack_plain = struct.Struct(">ii").pack
_pack_flexible = struct.Struct(">iib").pack
_CORRELATION_BYTES = 4
#: Up to this size a copy costs less than one more buffer to send.
_JOINED_BYTES = 4096


class Router:
    """Answers requests with the handlers of one broker."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._services = services
        self._tasks = tasks

    def answer(self, connection: Connection, frame: memoryview) -> list[Part] | asyncio.Future[list[Part]] | None:
        """Answer one request, now or in a future; None where no answer is due."""
        header, position = decode_request_header(frame, _is_flexible)
        api = APIS.get(header.api_key)
        if api is None:
            raise WireError(f"API {_api_name(header.api_key)} is not served here")
        if not api.first_decodable <= header.api_version <= api.max_version:
            if header.api_key == ApiKey.API_VERSIONS:
                return _frame(header._replace(api_version=0), api, unsupported_version())
            raise WireError(f"API {_api_name(header.api_key)} is not served in version {header.api_version}")
        if len(frame) > api.max_bytes:
            raise WireError(f"a {_api_name(header.api_key)} request of {len(frame)} bytes; the most is {api.max_bytes}")
        request = api.decode(header.api_version, frame[position:])
        context = connection.context
        if context is None or context.version != header.api_version or context.client_id != header.client_id:
            transport = connection.transport
            context = connection.context = RequestContext(
                header.api_version, header.client_id, connection.listener, transport.peer, transport.close
            )
        try:
            result = api.handle(self._services, context, request)
            if result is None:
                return None
            if type(result) is not CoroutineType:
                return _frame(header, api, result)
        except WireError:
            raise
        except Exception as error:
            raise _unexpected(header, error) from error
        return self._tasks.spawn(self._finish(header, api, result), f"{_api_name(header.api_key)} request")

    async def _finish(self, header: RequestHeader, api: Api, work: Coroutine[Any, Any, Any]) -> list[Part]:
        try:
            response = await work
            return [] if response is None else _frame(header, api, response)
        except Exception as error:
            raise _unexpected(header, error) from error


def _unexpected(header: RequestHeader, error: Exception) -> WireError:
    logger.exception("%s request v%d failed", _api_name(header.api_key), header.api_version, exc_info=error)
    return WireError(f"the request failed: {type(error).__name__}: {error}")


def _is_flexible(api_key: int, version: int) -> bool:
    api = APIS.get(api_key)
    return api is not None and version >= api.request.FLEXIBLE_FROM


def _api_name(api_key: int) -> str:
    return ApiKey(api_key).name if api_key in ApiKey.__members__.values() else str(api_key)


def _frame(header: RequestHeader, api: Api, response: Any) -> list[Part]:
    """Length, header and body of a response, ready to send."""
    version = header.api_version
    parts = api.encode(version, response)
    length = _CORRELATION_BYTES
    for part in parts:
        length += len(part)
    # The header of an ApiVersions response is never flexible: its reader does not know our versions yet.
    if version >= api.request.FLEXIBLE_FROM and header.api_key != ApiKey.API_VERSIONS:
        start = _pack_flexible(length + 1, header.correlation_id, 0)
    else:
        start = _pack_plain(length, header.correlation_id)
    first = parts[0]
    if len(first) <= _JOINED_BYTES and not isinstance(first, FileRange):
        parts[0] = start + first
    else:
        parts.insert(0, start)
    return parts
