"""How the etcd store handles members that fail, hang and refuse: scripted, since real ones rarely do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from tailrace.cluster.store import Check, Entry, TooLarge, Unavailable, Unreadable, Write
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores import etcd_client
from tailrace.stores.etcd import EtcdStore, open_etcd_store
from tests.unit.stores.scripted_etcd import (
    AUTHENTICATE,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    WATCH,
    Answer,
    ScriptedEtcd,
    header,
    key_value,
    message,
    number,
    put_event,
    scripted_etcd,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
NO_LEADER = (UNAVAILABLE, "etcdserver: no leader")
LEADER_CHANGED = (UNAVAILABLE, "etcdserver: leader changed")
INVALID_TOKEN = (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
SUCCEEDED = header(7) + number(2, 1)
ONE_KEY = header(7) + message(2, key_value(b"/p/k", b"v", 7))
PATIENCE_SECONDS = 30


@asynccontextmanager
async def a_store(
    members: int = 1, parameters: str = "timeout-ms=2000", user: str = ""
) -> AsyncIterator[tuple[EtcdStore, list[ScriptedEtcd]]]:
    async with scripted_etcd(members) as servers:
        endpoints = ",".join(server.endpoint for server in servers)
        store = open_etcd_store(f"etcd://{user}{endpoints}/p?{parameters}", SystemClock())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                yield store, servers
        finally:
            await store.abandon()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  what is waited for happens in another library's server
        await asyncio.sleep(0.005)


def always(answer: Answer | None) -> Callable[[bytes], Answer | None]:
    return lambda request: answer


# --- who is asked


def test_a_transaction_of_unknown_outcome_is_never_sent_again() -> None:
    async def test() -> None:
        for failure in (LEADER_CHANGED, (UNAVAILABLE, "etcdserver: request timed out"), (UNAVAILABLE, "Socket closed")):
            async with a_store(members=2) as (store, (first, second)):
                first.scripts[TXN] = always(failure)
                second.scripts[TXN] = always(SUCCEEDED)
                with pytest.raises(Unavailable, match=failure[1]):
                    await store.txn([], [Write("/a", b"1")])
                assert (first.count(TXN), second.count(TXN)) == (1, 0)
                assert await store.txn([], [Write("/a", b"1")]) == [7]
                assert (first.count(TXN), second.count(TXN)) == (1, 1)

    asyncio.run(test())


def test_a_transaction_that_a_member_without_leader_put_back_is_sent_to_the_next() -> None:
    async def test() -> None:
        async with a_store(members=2) as (store, (first, second)):
            first.scripts[TXN] = always(NO_LEADER)
            second.scripts[TXN] = always(SUCCEEDED)
            assert await store.txn([Check("/a", 0)], [Write("/a", b"1"), Write("/b", None)]) == [7, 0]
            assert first.metadata[0]["hasleader"] == "true"
            assert await store.txn([], [Write("/a", b"2")]) == [7]
            assert (first.count(TXN), second.count(TXN)) == (1, 2)

    asyncio.run(test())


def test_a_transaction_is_sent_to_the_next_member_where_one_is_not_there() -> None:
    async def test() -> None:
        async with a_store(members=2) as (store, (first, second)):
            second.scripts[TXN] = always(SUCCEEDED)
            await first.stop()
            assert await store.txn([], [Write("/a", b"1")]) == [7]

    asyncio.run(test())


def test_a_transaction_without_an_answer_is_unavailable_in_time() -> None:
    async def test() -> None:
        async with a_store(parameters="timeout-ms=300") as (store, (member,)):
            started = time.monotonic()
            with pytest.raises(Unavailable, match="no answer in time"):
                await store.txn([], [Write("/a", b"1")])
            assert 0.25 < time.monotonic() - started < 5
            assert member.count(TXN) == 1

    asyncio.run(test())


def test_a_read_goes_on_at_the_next_member_where_one_hangs_or_fails() -> None:
    async def test() -> None:
        async with a_store(members=3, parameters="timeout-ms=3000") as (store, (first, second, third)):
            first.scripts[RANGE] = always(None)
            second.scripts[RANGE] = always(LEADER_CHANGED)
            third.scripts[RANGE] = always(ONE_KEY)
            assert await store.get("/k") == Entry("/k", b"v", 7)
            assert await store.get("/k") == Entry("/k", b"v", 7)
            assert [server.count(RANGE) for server in (first, second, third)] == [1, 1, 2]

    asyncio.run(test())


def test_a_read_that_nobody_answers_says_why() -> None:
    async def test() -> None:
        async with a_store(members=2, parameters="timeout-ms=500") as (store, (first, second)):
            await first.stop()
            await second.stop()
            with pytest.raises(Unavailable, match="Connection refused") as raised:
                await store.get("/k")
            assert str(raised.value).count("Connection refused") == 2, "every member has its own reason"

    asyncio.run(test())


def test_failing_and_coming_back_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with a_store(members=2, parameters="timeout-ms=500") as (store, servers):
            for server in servers:
                server.scripts[RANGE] = always(LEADER_CHANGED)
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await store.get("/k")
            for server in servers:
                server.scripts[RANGE] = always(ONE_KEY)
            await store.get("/k")
            await store.get("/k")
            assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
            assert "leader changed" in caplog.messages[0]
            assert "is answering again" in caplog.messages[1]

    with caplog.at_level(logging.INFO, "tailrace.stores"):
        asyncio.run(test())


# --- reading


def test_pages_become_smaller_where_answers_are_too_large() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            limits: list[int] = []

            def answer(request: bytes) -> Answer:
                limit = request[request.index(b"\x18") + 1]
                limits.append(limit)
                if len(limits) <= 2:
                    return grpc.StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 5)"
                if len(limits) == 3:
                    return header(9) + message(2, key_value(b"/p/d/a", b"1", 3)) + number(3, 1)
                assert b"/p/d/a\0" in request
                assert b"\x20\x09" in request, "the next page is as of the same revision"
                return header(12) + message(2, key_value(b"/p/d/b", b"2", 4))

            member.scripts[RANGE] = answer
            assert await store.list("/d") == [Entry("/d/a", b"1", 3), Entry("/d/b", b"2", 4)]
            assert limits[2] == limits[3] == 10  # 1,000, then 100, then this

    asyncio.run(test())


def test_a_list_begins_again_where_its_revision_was_compacted_meanwhile() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            answers: list[Answer] = [
                header(9) + message(2, key_value(b"/p/d/a", b"old", 3)) + number(3, 1),
                (grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"),
                header(20) + message(2, key_value(b"/p/d/a", b"new", 15)),
            ]
            member.scripts[RANGE] = lambda request: answers.pop(0)
            assert await store.list("/d") == [Entry("/d/a", b"new", 15)]

    asyncio.run(test())


def test_what_etcd_cannot_take_is_refused_without_asking_another_member() -> None:
    async def test() -> None:
        async with a_store(members=2) as (store, (first, second)):
            first.scripts[TXN] = always((grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large"))
            with pytest.raises(TooLarge, match="too large"):
                await store.txn([], [Write("/a", b"1")])
            assert second.count(TXN) == 0

    asyncio.run(test())


def test_a_malformed_answer_raises_unreadable() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            for method in (RANGE, TXN, GRANT):
                member.scripts[method] = always(b"\xff\xff\xff")
            for call in (
                store.get("/a"),
                store.list("/d"),
                store.txn([], [Write("/a", b"1")]),
                store.open_session(5_000),
            ):
                with pytest.raises(Unreadable, match="gave a malformed answer"):
                    await call

    asyncio.run(test())


def test_a_full_etcd_says_what_to_do() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
            member.scripts[TXN] = always(full)
            with pytest.raises(Unavailable, match="quota-backend-bytes"):
                await store.txn([], [Write("/a", b"1")])
            assert member.count(TXN) == 1

    asyncio.run(test())


# --- watching


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent watch is noticed soon."""
    monkeypatch.setattr(etcd_client, "_SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(etcd_client, "_ANSWER_SECONDS", 0.4)


@pytest.mark.usefixtures("short_silence")
def test_a_watch_goes_on_elsewhere_from_the_revision_after_the_last_when_a_member_falls_silent() -> None:
    async def test() -> None:
        async with a_store(members=2) as (store, (first, second)):
            for server in (first, second):
                server.scripts[RANGE] = always(header(5))
            first.answers_progress = False
            first.streams[WATCH] = lambda request: [header(5) + number(3, 1), header(8) + put_event(b"/p/d/a", b"1", 8)]
            second.streams[WATCH] = lambda request: [header(9) + put_event(b"/p/d/b", b"2", 9)]
            watch = store.watch("/d")
            assert await anext(watch) == ([], [], True)
            assert await anext(watch) == ([Entry("/d/a", b"1", 8)], [], False)
            assert await anext(watch) == ([Entry("/d/b", b"2", 9)], [], False)
            requests = [request for server in (first, second) for method, request in server.requests if method == WATCH]
            assert [request[request.index(b"\x18") + 1] for request in requests] == [6, 9]
            assert all(b"/p/d/" in request and b"/p/d0" in request for request in requests)
            assert first.metadata[-1]["hasleader"] == "true"

    asyncio.run(test())


def test_a_revision_in_fragments_is_told_as_one() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            member.scripts[RANGE] = always(header(5))
            fragment = number(7, 1)
            member.streams[WATCH] = lambda request: [
                header(8) + put_event(b"/p/d/a", b"1", 8) + fragment,
                header(8) + put_event(b"/p/d/b", b"2", 8) + fragment,
                header(8) + put_event(b"/p/d/c", b"3", 8),
            ]
            watch = store.watch("/d")
            await anext(watch)
            changes = await anext(watch)
            assert [entry.key for entry in changes.entries] == ["/d/a", "/d/b", "/d/c"]

    asyncio.run(test())


@pytest.mark.usefixtures("short_silence")
def test_a_stream_that_breaks_between_fragments_is_resumed_before_them() -> None:
    async def test() -> None:
        async with a_store(members=2) as (store, (first, second)):
            for server in (first, second):
                server.scripts[RANGE] = always(header(5))
            first.answers_progress = False
            first.streams[WATCH] = lambda request: [header(8) + put_event(b"/p/d/a", b"1", 8) + number(7, 1)]
            whole = header(8) + put_event(b"/p/d/a", b"1", 8) + put_event(b"/p/d/b", b"2", 8)
            second.streams[WATCH] = lambda request: [whole]
            watch = store.watch("/d")
            await anext(watch)
            changes = await anext(watch)
            assert [entry.key for entry in changes.entries] == ["/d/a", "/d/b"]
            (request,) = [request for method, request in second.requests if method == WATCH]
            assert request[request.index(b"\x18") + 1] == 6

    asyncio.run(test())


@pytest.mark.usefixtures("short_silence")
def test_a_watch_that_nobody_holds_any_more_is_ended() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            member.scripts[RANGE] = always(header(5))
            member.streams[WATCH] = lambda request: []
            watch = store.watch("/d")
            await anext(watch)
            await until(lambda: member.count(WATCH) == 1)
            del watch
            await until(lambda: not store._feeds)

    asyncio.run(test())


# --- sessions


def test_the_deadline_counts_from_when_the_renewal_was_sent() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            member.scripts[GRANT] = always(header(1) + number(2, 77) + number(3, 3))
            member.streams[KEEP_ALIVE] = lambda request: [header(1) + number(2, 77) + number(3, 3)]
            before = time.monotonic()
            session = await store.open_session(1)
            assert before + 3 <= session.deadline <= time.monotonic() + 3
            assert member.requests[0] == (GRANT, b"\x08\x02"), "etcd grants no less than two seconds"
            first = session.deadline
            await until(lambda: session.deadline > first)
            assert (KEEP_ALIVE, b"\x08\x4d") in member.requests
            # Sent a third of its life after it was granted, not when the answer came.
            assert first + 0.9 < session.deadline <= time.monotonic() + 3
            assert not session.is_lost

    asyncio.run(test())


def test_a_session_that_etcd_has_ended_is_lost_at_once_and_stays_lost() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            member.scripts[GRANT] = always(number(2, 77) + number(3, 2))
            member.scripts[REVOKE] = always((grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found"))
            member.streams[KEEP_ALIVE] = lambda request: [number(2, 77)]
            session = await store.open_session(2000)
            granted = session.deadline
            await session.wait_until_lost()
            assert time.monotonic() < granted
            assert session.is_lost
            with pytest.raises(Unavailable, match="session"):
                await store.txn([], [Write("/a", b"1", session)])
            assert member.count(TXN) == 0

    asyncio.run(test())


def test_a_session_is_lost_at_its_deadline_where_nobody_renews_it() -> None:
    async def test() -> None:
        async with a_store(members=2) as (store, (first, second)):
            first.scripts[GRANT] = always(number(2, 77) + number(3, 2))
            for server in (first, second):
                server.streams[KEEP_ALIVE] = lambda request: []
            session = await store.open_session(2000)
            deadline = session.deadline
            await session.wait_until_lost()
            assert deadline <= time.monotonic() < deadline + 1
            assert session.is_lost
            assert first.count(KEEP_ALIVE)
            assert second.count(KEEP_ALIVE)

    asyncio.run(test())


def test_a_write_of_a_session_that_etcd_has_ended_is_unavailable() -> None:
    async def test() -> None:
        async with a_store() as (store, (member,)):
            member.scripts[GRANT] = always(number(2, 77) + number(3, 60))
            member.scripts[TXN] = always((grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found"))
            member.scripts[REVOKE] = always(b"")
            session = await store.open_session(60_000)
            with pytest.raises(Unavailable, match="lease not found"):
                await store.txn([], [Write("/a", b"1", session)])
            await session.close()
            assert member.count(REVOKE) == 1
            assert session.is_lost

    asyncio.run(test())


# --- who we are


def test_an_expired_token_is_renewed_and_the_call_made_again() -> None:
    async def test() -> None:
        async with a_store(user="ann:secret@") as (store, (member,)):
            tokens = iter(["one", "two"])
            member.scripts[AUTHENTICATE] = lambda request: message(2, next(tokens).encode())

            def answer(request: bytes) -> Answer:
                return SUCCEEDED if member.metadata[-1]["token"] == "two" else INVALID_TOKEN

            member.scripts[TXN] = answer
            assert await store.txn([], [Write("/a", b"1")]) == [7]
            assert await store.txn([], [Write("/a", b"1")]) == [7]
            assert (member.count(AUTHENTICATE), member.count(TXN)) == (2, 3)
            assert member.requests[0] == (AUTHENTICATE, b"\x0a\x03ann\x12\x06secret")

    asyncio.run(test())


def test_many_calls_wait_for_one_authentication() -> None:
    async def test() -> None:
        async with a_store(user="ann:secret@") as (store, (member,)):
            member.scripts[AUTHENTICATE] = always(message(2, b"token"))
            member.scripts[RANGE] = always(ONE_KEY)
            await asyncio.gather(*(store.get("/k") for _ in range(20)))
            assert member.count(AUTHENTICATE) == 1

    asyncio.run(test())


def test_a_wrong_password_is_said_plainly_and_not_shown() -> None:
    async def test() -> None:
        async with a_store(members=2, user="ann:secret@") as (store, (first, second)):
            details = "etcdserver: authentication failed, invalid user ID or password"
            first.scripts[AUTHENTICATE] = always((grpc.StatusCode.INVALID_ARGUMENT, details))
            with pytest.raises(Unavailable, match="password of user 'ann'") as raised:
                await store.get("/k")
            assert "secret" not in str(raised.value)
            assert second.count(AUTHENTICATE) == 0

    asyncio.run(test())


def test_a_watch_whose_token_expired_is_made_again_with_a_new_one() -> None:
    async def test() -> None:
        async with a_store(user="ann:secret@") as (store, (member,)):
            member.scripts[AUTHENTICATE] = lambda request: message(2, b"token-%d" % member.count(AUTHENTICATE))
            member.scripts[RANGE] = always(header(5))
            denied = header(5) + number(3, 1) + number(4, 1) + message(6, b"etcdserver: permission denied")

            def stream(request: bytes) -> list[bytes]:
                if member.metadata[-1]["token"] == "token-1":
                    return [denied]
                return [header(8) + put_event(b"/p/d/a", b"1", 8)]

            member.streams[WATCH] = stream
            watch = store.watch("/d")
            await anext(watch)
            assert await anext(watch) == ([Entry("/d/a", b"1", 8)], [], False)

    asyncio.run(test())


# --- the end


def test_closing_ends_calls_and_watches_but_not_those_who_wait_for_them() -> None:
    async def test() -> None:
        async with a_store(parameters="timeout-ms=60000") as (store, (member,)):
            member.scripts[RANGE] = lambda request: None if b"/p/k" in request else header(5)
            member.streams[WATCH] = lambda request: []

            async def read() -> str:
                try:
                    await store.get("/k")
                except Unavailable as error:
                    return str(error)
                return "answered"

            async def follow() -> int:
                return len([changes async for changes in store.watch("/d")])

            tasks = [asyncio.ensure_future(read()), asyncio.ensure_future(follow())]
            await until(lambda: member.count(RANGE) == 2 and member.count(WATCH) == 1)
            await store.close()
            assert "closed" in await tasks[0]
            assert await tasks[1] == 1
            with pytest.raises(Unavailable):
                await store.get("/k")
            assert [changes async for changes in store.watch("/d")] == []

    asyncio.run(test())
