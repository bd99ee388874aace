"""A server that speaks etcd's protocol and does what a test says: for what a real etcd does only now and then.

Answers are bytes, or exceptions that are told as gRPC errors; a call for which the script has nothing left waits until
its caller gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

Answer = bytes | tuple[grpc.StatusCode, str]
#: What to answer to a request; None for nothing at all.
Script = Callable[[bytes], Answer | None]
#: What a stream says when it is opened with this first request; it stays open and silent afterwards.
StreamScript = Callable[[bytes], list[bytes]]

RANGE, TXN = "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn"
WATCH, KEEP_ALIVE = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"
GRANT, REVOKE = "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"

_STREAMS = (WATCH, KEEP_ALIVE)
#: The request that every client asks first, to see whether somebody is there.
_PROBE = b"\x0a\x01\x00"


class ScriptedEtcd:
    """One member."""

    def __init__(self) -> None:
        self.port = 0
        self.scripts: dict[str, Script] = {RANGE: lambda request: b""}
        self.streams: dict[str, StreamScript] = {}
        self.requests: list[tuple[str, bytes]] = []
        self.metadata: list[dict[str, str]] = []
        self.answers_progress = True
        self._server: Any = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.requests)

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def unary(self, method: str, request: bytes, context: Any) -> bytes:
        if request.startswith(_PROBE):
            return b""
        self.requests.append((method, request))
        self.metadata.append(dict(context.invocation_metadata()))
        answer = self.scripts[method](request) if method in self.scripts else None
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, tuple):
            await context.abort(*answer)
        assert isinstance(answer, bytes)
        return answer

    async def stream(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        first = await anext(requests)
        self.requests.append((method, first))
        self.metadata.append(dict(context.invocation_metadata()))
        for message in self.streams[method](first):
            yield message
        async for _ in requests:
            if self.answers_progress:
                yield b""
        await asyncio.Event().wait()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, member: ScriptedEtcd) -> None:
        self._member = member

    def service(self, details: Any) -> Any:
        method = details.method

        async def unary(request: bytes, context: Any) -> bytes:
            return await self._member.unary(method, request, context)

        async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in self._member.stream(method, requests, context):
                yield message

        if method in _STREAMS:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


@asynccontextmanager
async def scripted_etcd(members: int) -> AsyncIterator[list[ScriptedEtcd]]:
    """Members that run until the end of the block."""
    made = [ScriptedEtcd() for _ in range(members)]
    for member in made:
        await member.start()
    try:
        yield made
    finally:
        for member in made:
            await member.stop()


# --- answers


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def header(revision: int) -> bytes:
    return message(1, number(3, revision))


def key_value(key: bytes, value: bytes, revision: int) -> bytes:
    return message(1, key) + number(3, revision) + message(5, value)


def put_event(key: bytes, value: bytes, revision: int) -> bytes:
    return message(11, message(2, key_value(key, value, revision)))
