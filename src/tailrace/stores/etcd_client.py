"""Calls to an etcd cluster: connections to its members, their choice, authentication, and the meaning of errors.

Owns one gRPC channel for each member. It uses one member until that fails, then the next one. A repeatable call is
tried at every member before it fails. Any other call is tried elsewhere only if it certainly did nothing. It does not
know what is stored.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from typing import Any

# We log failures once. gRPC's own lines on standard error, one per attempt and per started process, would drown them.
# It reads these variables on import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from tailrace.cluster.store import Refused, TooLarge, Unavailable
from tailrace.errors import TailraceError
from tailrace.runtime.clock import Clock
from tailrace.stores.addresses import ServerAddress
from tailrace.stores.etcd_messages import (
    WatchMessage,
    authenticate_request,
    progress_request,
    range_request,
    read_authenticate_response,
    read_watch_response,
    understood,
    watch_request,
)

logger = logging.getLogger("tailrace.stores")

RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"

#: Makes a member without a leader refuse at once, or end the stream, instead of staying silent.
_HAS_LEADER = ("hasleader", "true")
#: After this long without a message, a watch is asked for a sign of life, and given up if it does not answer.
_SILENCE_SECONDS = 2.0
_ANSWER_SECONDS = 3.0
#: Pause between two rounds over all members.
_PAUSE_SECONDS = 0.05
#: Time limit for one of several members; slightly longer than a member waits for an election before it checks again.
_INSIST_SECONDS = 1.5

_OPTIONS = [
    # Room for a page of a list, or a large transaction: far above gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # Detects dead connections; etcd allows a ping every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC would wait up to two minutes between attempts.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, the time limit of one connection attempt.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Every store has its own connections, without any proxy for the web.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class NothingDone(Unavailable):
    """The call did not reach etcd, or etcd rejected it untouched: it may be tried elsewhere."""


class LeaseNotFound(Refused):
    """The lease has ended."""


class Compacted(TailraceError):
    """The requested history is gone."""


class AnswerTooLarge(Refused):
    """The answer is larger than the receive limit."""


class _StaleToken(NothingDone):
    """Our authentication token has expired, or its member has lost it."""


class _Member:
    """One member of the cluster and the channel to it."""

    def __init__(self, endpoint: str, credentials: Any) -> None:
        self.endpoint = endpoint
        self._credentials = credentials

    @cached_property
    def _channel(self) -> Any:
        # Created on the first call, because it belongs to the running loop.
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.endpoint, options=_OPTIONS)
        return grpc.aio.secure_channel(self.endpoint, self._credentials, options=_OPTIONS)

    async def connect(self, seconds: float) -> None:
        """Return once connected; `NothingDone` with the reason if there is no connection in time."""
        if self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return
        try:
            # Any answer will do, even an error: the member answers this read alone, and cheaply.
            await self.invoke(RANGE, range_request(b"\0", serializable=True), seconds, [])
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise NothingDone(f"etcd at {self.endpoint}: {_reason(error)}") from error

    async def invoke(self, method: str, request: bytes, seconds: float, metadata: Sequence[tuple[str, str]]) -> bytes:
        """Send one request and return its answer."""
        if method != LEASE_KEEP_ALIVE:
            answer: bytes = await self._channel.unary_unary(method)(request, timeout=seconds, metadata=metadata)
            return answer
        # Formally a stream. Each renewal has its own, so that no dead stream goes unnoticed between two renewals.
        call = self._channel.stream_stream(method)(timeout=seconds, metadata=metadata)
        try:
            await call.write(request)
            answer = await call.read()
            if answer is grpc.aio.EOF:
                raise NothingDone(f"etcd at {self.endpoint}: the keep-alive stream ended without an answer")
            return answer
        finally:
            call.cancel()

    def stream(self, method: str, metadata: Sequence[tuple[str, str]]) -> Any:
        return self._channel.stream_stream(method)(metadata=metadata)

    async def close(self) -> None:
        if "_channel" in self.__dict__:
            await self._channel.close()


class EtcdClient:
    """Calls to whichever member answers."""

    def __init__(self, address: ServerAddress, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        credentials = _credentials(address) if address.is_secure else None
        self._members = [_Member(endpoint, credentials) for endpoint in address.endpoints]
        self._current = 0
        self._is_failing = False
        self._token: str | None = None
        self._authentication: asyncio.Task[str] | None = None
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def call(self, method: str, request: bytes, *, may_repeat: bool, seconds: float | None = None) -> bytes:
        """Send one request and return its answer, within the time limit of calls."""
        seconds = self._address.timeout_seconds if seconds is None else seconds
        deadline = self._clock.monotonic() + seconds
        share = seconds / min(len(self._members), 3)
        reasons: dict[str, str] = {}
        attempts = 0
        has_new_token = False
        if self.is_closed:
            raise Unavailable(_CLOSED)
        while True:
            member = self._members[self._current]
            left = deadline - self._clock.monotonic()
            connecting = min(left, share)
            try:
                return await self._attempt(member, method, request, connecting, connecting if may_repeat else left)
            except Refused:
                raise
            except Unavailable as error:
                if connecting == share or member.endpoint not in reasons:  # an attempt that was cut short has no reason
                    reasons[member.endpoint] = str(error)
                if isinstance(error, _StaleToken) and not has_new_token:
                    has_new_token = True
                else:
                    self._leave(member, str(error))
                    attempts += 1
                left = deadline - self._clock.monotonic()
                if not may_repeat and not isinstance(error, NothingDone):
                    raise
                if left <= 0 or self.is_closed:
                    raise Unavailable("; ".join(reasons.values())) from error
            if attempts and attempts % len(self._members) == 0:
                await self.pause(min(_PAUSE_SECONDS, left))

    async def call_anyone(self, method: str, request: bytes, seconds: float) -> bytes:
        """Ask all members at once, repeatedly, until one of them answers: for calls that are urgent and repeatable."""
        deadline = self._clock.monotonic() + seconds
        asking = [asyncio.ensure_future(self._insist(member, method, request, deadline)) for member in self._members]
        failure = Unavailable(_CLOSED)
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    return await answer
                except Unavailable as error:
                    failure = error
            raise failure
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _insist(self, member: _Member, method: str, request: bytes, deadline: float) -> bytes:
        while True:
            seconds = min(deadline - self._clock.monotonic(), _INSIST_SECONDS)
            try:
                return await self._attempt(member, method, request, seconds, seconds)
            except Refused:
                raise
            except Unavailable:
                if self.is_closed or self._clock.monotonic() >= deadline:
                    raise
            await self.pause(_PAUSE_SECONDS)

    async def _attempt(self, member: _Member, method: str, request: bytes, connecting: float, seconds: float) -> bytes:
        deadline = self._clock.monotonic() + seconds
        try:
            await member.connect(connecting)
            metadata = await self._metadata(member, connecting)
            left = max(deadline - self._clock.monotonic(), 0.001)
            answer = await member.invoke(method, request, left, metadata)
        except grpc.aio.AioRpcError as error:
            raise self._explained(member, error) from error
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise Unavailable(f"etcd at {member.endpoint}: {error}") from error
        except asyncio.CancelledError:
            # Closing a channel cancels its calls, which must not cancel their callers.
            if self.is_closed and not _is_being_cancelled():
                raise Unavailable(_CLOSED) from None
            raise
        self._answered(member)
        return answer

    async def watch(self, key: bytes, range_end: bytes, start_revision: int) -> AsyncGenerator[WatchMessage, None]:
        """Changes of a range from a revision on; raises `Unavailable` when the stream breaks, and can be resumed."""
        member = self._members[self._current]
        try:
            async with aclosing(self._stream(member, watch_request(key, range_end, start_revision))) as messages:
                async for message in messages:
                    self._answered(member)
                    yield message
        except Refused:
            raise
        except Unavailable as error:
            self._leave(member, str(error))
            raise

    async def _stream(self, member: _Member, request: bytes) -> AsyncGenerator[WatchMessage, None]:
        call: Any = None
        try:
            connecting = self._address.timeout_seconds / min(len(self._members), 3)
            await member.connect(connecting)
            call = member.stream(WATCH, await self._metadata(member, connecting))
            await call.write(request)
            while True:
                data = await self._read(member, call)
                if data is grpc.aio.EOF:
                    raise Unavailable(f"etcd at {member.endpoint}: the watch stream ended")
                yield understood(read_watch_response, data)
        except grpc.aio.AioRpcError as error:
            raise self._explained(member, error) from error
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
            raise Unavailable(f"etcd at {member.endpoint}: {error}") from error
        except asyncio.CancelledError:
            if self.is_closed and not _is_being_cancelled():
                raise Unavailable(_CLOSED) from None
            raise
        finally:
            if call is not None:
                call.cancel()

    async def _read(self, member: _Member, call: Any) -> Any:
        """The next message; after a long silence the stream is asked for a sign of life."""
        # Cancelling a read ends the whole stream, so the timeout must not apply to the read itself.
        reading = asyncio.ensure_future(call.read())
        try:
            done, _ = await asyncio.wait([reading], timeout=_SILENCE_SECONDS)
            if not done:
                await call.write(progress_request())
                done, _ = await asyncio.wait([reading], timeout=_ANSWER_SECONDS)
            if not done:
                raise Unavailable(f"etcd at {member.endpoint}: no answer on the watch stream")
            return reading.result()
        finally:
            if not reading.done():
                reading.cancel()

    def distrust_token(self) -> None:
        """Authenticate again before the next call: a watch was refused, perhaps because of its token."""
        self._token = None

    async def pause(self, seconds: float) -> None:
        """Wait, but stop when the client is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """End every call and watch."""
        self._closed.set()
        if self._authentication is not None:
            self._authentication.cancel()
        for member in self._members:
            await member.close()

    # --- who is asked

    def _leave(self, member: _Member, reason: str) -> None:
        """Switch to the next member, unless another call has already switched."""
        if self.is_closed or member is not self._members[self._current]:
            return
        self._current = (self._current + 1) % len(self._members)
        if not self._is_failing:
            self._is_failing = True
            following = self._members[self._current]
            further = "retrying" if following is member else f"trying {following.endpoint}"
            logger.warning("%s; %s", reason, further)

    def _answered(self, member: _Member) -> None:
        if self._is_failing:
            self._is_failing = False
            logger.info("etcd at %s is answering again", member.endpoint)

    # --- who we are

    async def _metadata(self, member: _Member, seconds: float) -> list[tuple[str, str]]:
        if not self._address.user:
            return [_HAS_LEADER]
        while self._token is None:
            if self._authentication is None:
                self._authentication = asyncio.ensure_future(self._authenticate(member, seconds))
                self._authentication.add_done_callback(self._authenticated)
            # All calls share one attempt, because checking passwords is expensive for etcd.
            await asyncio.shield(self._authentication)
        return [_HAS_LEADER, ("token", self._token)] if self._token else [_HAS_LEADER]

    async def _authenticate(self, member: _Member, seconds: float) -> str:
        request = authenticate_request(self._address.user, self._address.password)
        try:
            answer = await member.invoke(AUTHENTICATE, request, seconds, [_HAS_LEADER])
            return understood(read_authenticate_response, answer)
        except grpc.aio.AioRpcError as error:
            if error.details() == "etcdserver: authentication is not enabled":
                return ""
            explained = self._explained(member, error)
            if isinstance(explained, Refused):
                raise explained from error
            # No request was sent yet, so nothing was done.
            raise NothingDone(str(explained)) from error

    def _authenticated(self, task: asyncio.Task[str]) -> None:
        self._authentication = None
        if not task.cancelled() and task.exception() is None:
            self._token = task.result()

    # --- what an error means

    def _explained(self, member: _Member, error: grpc.aio.AioRpcError) -> TailraceError:
        code, details = error.code(), error.details() or ""
        text = f"etcd at {member.endpoint}: {_reason(error)}"
        user = self._address.user
        if details == "etcdserver: no leader":
            return NothingDone(text)
        if code is grpc.StatusCode.UNAUTHENTICATED or details in _STALE_TOKEN:
            self.distrust_token()
            return _StaleToken(text)
        if details == "etcdserver: user name is empty":
            return Refused(
                f"etcd at {member.endpoint} requires a user and a password: add them to the address, as in {_USER}"
            )
        if details.startswith("etcdserver: authentication failed"):
            return Refused(f"etcd at {member.endpoint} does not accept the password of user {user!r}")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return Refused(
                f"etcd at {member.endpoint} does not allow user {user!r} to read and write below "
                f"{self._address.prefix or '/'}: grant the user a role with these permissions"
            )
        if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
            return LeaseNotFound(text)
        if code is grpc.StatusCode.OUT_OF_RANGE:
            return Compacted(text)
        # The limit of etcd, or the slightly higher one of its gRPC server.
        if details == "etcdserver: request is too large" or details.startswith("grpc: received message larger"):
            return TooLarge(f"etcd at {member.endpoint}: request is too large: raise etcd's --max-request-bytes")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return Refused(text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "larger than max" in details:
                return AnswerTooLarge(text)
            if "space exceeded" in details:
                return Refused(f"{text}: compact and defragment it, or raise its --quota-backend-bytes")
            return NothingDone(text)
        return Unavailable(text)


_CLOSED = "the connection to etcd is closed"
_USER = "etcd://user:password@host:2379/prefix"
_STALE_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")


def _reason(error: grpc.aio.AioRpcError) -> str:
    details: str = error.details() or error.code().name
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    # gRPC wraps the system's error in a description of its own activity.
    return details.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _credentials(address: ServerAddress) -> Any:
    def content(path: str) -> bytes | None:
        if not path:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise TailraceError(f"cannot read {path}, which the etcd address names: {error.strerror}") from error

    return grpc.ssl_channel_credentials(content(address.ca), content(address.key), content(address.cert))
