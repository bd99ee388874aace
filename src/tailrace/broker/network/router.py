"""From a frame to its response: the API and version, the client's rights, the handler, and the encoding.

Has the broker's only catch-all: a handler that fails unexpectedly closes its connection, logs the reason, and nothing
else. Malformed bytes are a WireError and close the connection too.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Coroutine
from types import CoroutineType
from typing import Any, NamedTuple

from tailrace.broker import access
from tailrace.broker.handlers import APIS, Api
from tailrace.broker.handlers.api import Handler
from tailrace.broker.handlers.api_versions import unsupported_version
from tailrace.broker.monitoring.counters import RequestCounters, count_errors
from tailrace.broker.network.connection import Connection, Pending
from tailrace.broker.network.repeated_requests import RepeatedRequests
from tailrace.broker.services import Later, RequestContext, Services
from tailrace.errors import WireError
from tailrace.runtime.disk import FileRange
from tailrace.runtime.outcome import Outcome
from tailrace.runtime.tasks import Tasks
from tailrace.runtime.transport import Part
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_request_header
from tailrace.wire.primitives import MOST_ELEMENTS

logger = logging.getLogger("tailrace.broker")

_unpack_start = struct.Struct(">ii").unpack_from
_pack_plain = struct.Struct(">ii").pack
_pack_flexible = struct.Struct(">iib").pack
_CORRELATION_BYTES = 4
#: Up to this size, a copy is faster than one more buffer to send.
_JOINED_BYTES = 4096
_FLEXIBLE_FROM = {int(key): api.request.FLEXIBLE_FROM for key, api in APIS.items()}
#: Their handlers count errors themselves: searching every response would cost too much.
_COUNT_THEIR_ERRORS = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT)


class _Served(NamedTuple):
    """An API with the counters of its requests."""

    api: Api
    handle: Handler
    counters: RequestCounters
    has_countable_errors: bool


class Router:
    """Answers requests with the handlers of one broker."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._services = services
        self._quotas = services.quotas
        self._tasks = tasks
        self._served = {
            key: _Served(
                api, self._handler(api), services.counters.of_api(key, api.max_version), key not in _COUNT_THEIR_ERRORS
            )
            for key, api in APIS.items()
        }
        self._repeated = RepeatedRequests(services)
        self._find_repeated = self._repeated.find

    def _handler(self, api: Api) -> Handler:
        """Return the handler of an API; with an authorizer, it first checks the API's needs."""
        handle, refuse = api.handle, api.refuse
        if self._services.authorizer is None or refuse is None:
            return handle
        counters = self._services.counters

        def checked(services: Services, context: RequestContext, request: Any) -> Any:
            error = access.refusal_of(services, context, api.needs, request)
            if error is None:
                return handle(services, context, request)
            if api.request.API_KEY in _COUNT_THEIR_ERRORS:
                counters.refused(api.request.API_KEY, error.code)
            return refuse(context.version, request, error)

        return checked

    def answer(self, connection: Connection, frame: memoryview) -> list[Part] | Pending | None:
        """Answer one request, now or in a future; None if no response is due."""
        start, correlation_id = _unpack_start(frame)
        repeated = self._find_repeated(start)
        if repeated is not None and self._quotas is None:
            try:
                known = repeated.answer(connection, correlation_id, frame)
            except Exception as error:
                raise _unexpected(decode_request_header(frame, _FLEXIBLE_FROM)[0], error) from error
            if known is not None:
                return known
        header, position = decode_request_header(frame, _FLEXIBLE_FROM)
        served = self._served.get(header.api_key)
        if served is None:
            raise WireError(f"API {_api_name(header.api_key)} is not supported")
        api, handle, counters, has_countable_errors = served
        if not api.first_decodable <= header.api_version <= api.max_version:
            if header.api_key == ApiKey.API_VERSIONS:
                return _frame(header._replace(api_version=0), api, unsupported_version())
            raise WireError(f"API {_api_name(header.api_key)} is not supported in version {header.api_version}")
        if len(frame) <= MOST_ELEMENTS:  # so it cannot have more elements
            request = api.decode(header.api_version, frame[position:])
        else:
            request = _decode_large(header, api, frame, position)
        if repeated is not None:
            self._repeated.remember(repeated, frame, position, request)
        counter = counters.versions[header.api_version]
        context = connection.context
        if context is None or context.version != header.api_version or context.client_id != header.client_id:
            transport = connection.transport
            context = connection.context = RequestContext(
                header.api_version,
                header.client_id,
                connection.listener,
                transport.peer,
                transport.close,
                connection.principal,
                connection=connection,
                peer_broker=connection.peer_broker,
            )
        try:
            result = handle(self._services, context, request)
            kind = type(result)
            if kind is not CoroutineType and kind is not Later:
                if has_countable_errors and isinstance(result, Message):
                    count_errors(counters, result)
                # Counted together with all requests of this read: reading the clock for each would cost more.
                connection.answered.append(counter)
                if self._quotas is not None:
                    return self._throttled(header, context, api, result)
                return None if result is None else _frame(header, api, result)
        except WireError:
            raise
        except Exception as error:
            raise _unexpected(header, error) from error
        counter.requests += 1
        if kind is Later:
            return self._answer_later(header, context, served, result, connection.last_active)
        work = self._finish(header, context, served, result, connection.last_active)
        task = self._tasks.spawn(work, f"{_api_name(header.api_key)} request")
        # If the client disconnects before the coroutine has started, nothing else would close it.
        task.add_done_callback(lambda _: result.close())
        return task

    def _throttled(self, header: RequestHeader, context: RequestContext, api: Api, response: Any) -> list[Part] | None:
        """Encode a response, if there is one, with the throttle time of its client."""
        quotas = self._quotas
        throttle_ms = 0
        if quotas is not None:
            throttle_ms = quotas.throttle_time_ms(context.principal, context.client_id, header.api_key)
        return None if response is None else _frame(header, api, response, throttle_ms)

    def _answer_later(
        self, header: RequestHeader, context: RequestContext, served: _Served, later: Later, received: float
    ) -> Outcome[list[Part]]:
        answer: Outcome[list[Part]] = Outcome()

        def finish(done: Outcome[Any]) -> None:
            if answer.done():
                return  # the client has disconnected
            try:
                parts = self._ended(header, context, served, later.finish(done), received)
            except Exception as error:  # noqa: BLE001  told to the connection
                answer.set_exception(_unexpected(header, error))
            else:
                answer.set_result(parts)

        later.done.add_done_callback(finish)
        return answer

    async def _finish(
        self,
        header: RequestHeader,
        context: RequestContext,
        served: _Served,
        work: Coroutine[Any, Any, Any],
        received: float,
    ) -> list[Part]:
        try:
            return self._ended(header, context, served, await work, received)
        except Exception as error:
            raise _unexpected(header, error) from error

    def _ended(
        self, header: RequestHeader, context: RequestContext, served: _Served, response: Any, received: float
    ) -> list[Part]:
        if served.has_countable_errors and isinstance(response, Message):
            count_errors(served.counters, response)
        answer = self._throttled(header, context, served.api, response) or []
        served.counters.times.observe(self._services.clock.monotonic() - received)
        return answer


def _decode_large(header: RequestHeader, api: Api, frame: memoryview, position: int) -> Any:
    """Decode a large request, unless it is too large to handle without delaying others."""
    name = _api_name(header.api_key)
    if len(frame) > api.max_bytes:
        raise WireError(f"{name} request of {len(frame)} bytes; at most {api.max_bytes} are allowed")
    try:
        return api.decode_bounded(header.api_version, frame[position:])
    except WireError as error:
        raise WireError(f"{name} request of {len(frame)} bytes: {error}") from None


def _unexpected(header: RequestHeader, error: Exception) -> WireError:
    logger.exception(
        "%s request v%d failed: this is a fault of the broker, please report it",
        _api_name(header.api_key),
        header.api_version,
        exc_info=error,
        extra={"request": _api_name(header.api_key), "version": header.api_version, "repeats": "request failed"},
    )
    return WireError(f"the request failed: {type(error).__name__}: {error}")


def _api_name(api_key: int) -> str:
    return ApiKey(api_key).name if api_key in ApiKey.__members__.values() else str(api_key)


def _frame(header: RequestHeader, api: Api, response: Any, throttle_ms: int = 0) -> list[Part]:
    """Return length, header and body of a response, ready to send."""
    version = header.api_version
    parts = api.encode(version, response, throttle_ms)
    length = _CORRELATION_BYTES
    for part in parts:
        length += len(part)
    # The header of an ApiVersions response is never flexible: the client does not know the broker's versions yet.
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
