"""What only ZooKeeper has in addition to the contract of all stores: its own clients, sessions, TLS and owners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tailrace.cluster.store import ABSENT, Check, Entry, TooLarge, Unavailable, Write
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.zookeeper import ZooKeeperStore, open_zookeeper_store
from tailrace.stores.zookeeper_session import ZooKeeperSession
from tests.support.brokers.broker_process import free_port
from tests.support.certificates import make_authority, make_certificate
from tests.support.stores.zookeeper_process import TICK_MS, ZooKeeperEnsemble

PATIENCE_SECONDS = 180
#: Long enough for a live session to be renewed even on a very busy machine.
TTL_MS = 12 * TICK_MS
MAX_TTL_MS = 60_000
#: For calls that end only when their time is over: enough for a busy machine to find out why they must fail.
SHORT_MS = "4000"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One server, for tests that do not change its configuration."""
    settings = {"maxSessionTimeout": str(MAX_TTL_MS)}
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), settings=settings) as ensemble:
        yield ensemble


@contextmanager
def plain_client(ensemble: ZooKeeperEnsemble, **options: Any) -> Iterator[Any]:
    """ZooKeeper as another client sees it."""
    client = KazooClient(",".join(ensemble.endpoints), **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ZooKeeperStore]:
    store = open_zookeeper_store(url, SystemClock())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield store
    finally:
        await store.close()


def url_of(ensemble: ZooKeeperEnsemble, prefix: str, user: str = "", **parameters: str | Path) -> str:
    return url_at(ensemble.endpoints[0], prefix, user, **parameters)


def url_at(endpoint: str, prefix: str, user: str = "", **parameters: str | Path) -> str:
    query = "?" + urlencode({name.replace("_", "-"): str(value) for name, value in parameters.items()})
    return f"zookeeper://{user}{endpoint}{prefix}{query if parameters else ''}"


async def session_of(store: ZooKeeperStore, ttl_ms: int = TTL_MS) -> ZooKeeperSession:
    session = await store.open_session(ttl_ms)
    assert isinstance(session, ZooKeeperSession)
    return session


async def uses_all_of(store: ZooKeeperStore) -> None:
    """Write, read, watch and hold a session."""
    watch = store.watch("/d")
    assert (await anext(watch)).is_complete
    session = await session_of(store)
    versions = await store.txn([Check("/d/a", 0)], [Write("/d/a", b"1"), Write("/d/mine", b"2", session)])
    assert versions is not None
    seen: list[Entry] = []
    while len(seen) < 2:
        seen += (await anext(watch)).entries
    assert sorted(seen) == [Entry("/d/a", b"1", versions[0]), Entry("/d/mine", b"2", versions[1])]
    assert list(await store.list("/d")) == sorted(seen)
    # Renewed at least once.
    granted = session.deadline
    while session.deadline == granted:  # noqa: ASYNC110  nothing tells of a renewal
        await asyncio.sleep(0.05)
    await session.close()
    assert await anext(watch) == ([], ["/d/mine"], False)
    # Many at once, whose answers arrive in few pieces.
    keys = [f"/many/{number:03}" for number in range(400)]
    for start in range(0, len(keys), 50):
        assert await store.txn([], [Write(key, key.encode() * 50) for key in keys[start : start + 50]])
    assert [entry.key for entry in await store.list("/many")] == keys
    assert await store.txn([], [Write("/d/a", None)]) == [ABSENT]


# --- keys and nodes


def test_others_see_values_as_they_are_and_are_seen(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/outside/deep")) as store:
            await store.txn([], [Write("/a", b'{"version":1}'), Write("/b/c", b"two")])
            with plain_client(zookeeper) as client:
                assert client.get("/outside/deep/a")[0] == b'{"version":1}'
                assert client.get("/outside/deep/b/c")[0] == b"two"
                watch = store.watch("/b")
                await anext(watch)
                await asyncio.to_thread(client.create, "/outside/deep/b/d", b"three")
                (entry,) = (await anext(watch)).entries
                assert (entry.key, entry.value) == ("/b/d", b"three")
                assert await store.get("/b/d") == entry
                await asyncio.to_thread(client.set, "/outside/deep/b/d", b"four")
                (changed,) = (await anext(watch)).entries
                assert changed.value == b"four"
                assert changed.version > entry.version
                assert await store.txn([Check("/b/d", entry.version)], [Write("/b/d", b"five")]) is None
                await asyncio.to_thread(client.delete, "/outside/deep/b/d")
                assert await anext(watch) == ([], ["/b/d"], False)

    asyncio.run(test())


def test_without_a_prefix_keys_are_at_the_root(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/")) as store:
            watch = store.watch("/")
            first = await anext(watch)
            assert first.is_complete
            assert list(first.entries) == list(await store.list("/"))
            await store.txn([], [Write("/bare", b"1")])
            assert [entry.key for entry in (await anext(watch)).entries] == ["/bare"]
            assert "/bare" in [entry.key for entry in await store.list("/")]
            with plain_client(zookeeper) as client:
                assert client.get("/bare")[0] == b"1"

    asyncio.run(test())


def test_a_key_and_the_directory_of_its_name_do_not_disturb_each_other(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/both")) as store:
            watch = store.watch("/d")
            await anext(watch)
            await store.txn([], [Write("/d/a/inner", b"1")])
            assert await store.get("/d/a") is None
            versions = await store.txn([Check("/d/a", ABSENT)], [Write("/d/a", b"2")])
            assert versions is not None
            assert await anext(watch) == ([Entry("/d/a", b"2", versions[0])], [], False)
            assert await store.txn([Check("/d/a", versions[0])], [Write("/d/a", None)]) == [ABSENT]
            assert await anext(watch) == ([], ["/d/a"], False)
            assert [entry.value for entry in await store.list("/d/a")] == [b"1"]
            assert await store.txn([], [Write("/d/a/inner", None), Write("/d/a", None)]) == [ABSENT, ABSENT]
            assert list(await store.list("/d")) == []
            # Both in one transaction, in a directory that does not exist yet.
            assert await store.txn([Check("/e", ABSENT)], [Write("/e", b"3"), Write("/e/f/g", b"4")]) is not None
            assert [entry.value for entry in await store.list("/e/f")] == [b"4"]
            assert await store.get("/e") is not None

    asyncio.run(test())


def test_a_key_of_a_session_has_no_keys_below_it(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/below")) as store:
            session = await session_of(store)
            await store.txn([], [Write("/d/mine", b"1", session), Write("/e/theirs/inner", b"1")])
            with pytest.raises(ValueError, match="does not allow keys below a key of a session"):
                await store.txn([], [Write("/d/mine/inner", b"2")])
            with pytest.raises(ValueError, match="cannot belong to a session"):
                await store.txn([], [Write("/e/theirs", b"2", session)])
            assert not session.is_lost

    asyncio.run(test())


def test_what_zookeeper_cannot_take_is_refused_by_its_size_and_named(
    zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a prefix long enough to matter.
    monkeypatch.setattr("tailrace.stores.transactions.MAX_TRANSACTION_BYTES", 2 << 20)

    async def test() -> None:
        async with opened(url_of(zookeeper, "/large")) as store:
            with pytest.raises(TooLarge, match=r"exceed the limit of a ZooKeeper transaction.*: /a$"):
                await store.txn([], [Write("/a", bytes(1 << 20))])
            with pytest.raises(TooLarge, match="/a, /b"):
                await store.txn([], [Write("/a", bytes(600_000)), Write("/b", bytes(600_000))])
            assert list(await store.list("/")) == []
            # Just below the limit, it is accepted.
            assert await store.txn([], [Write("/a", bytes(990_000))]) is not None

    asyncio.run(test())


def test_a_directory_that_somebody_took_away_is_made_again(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/taken")) as store:
            await store.txn([], [Write("/d/a", b"1")])
            with plain_client(zookeeper) as client:
                await asyncio.to_thread(client.delete, "/taken", recursive=True)
            assert await store.txn([Check("/d/a", ABSENT)], [Write("/d/a", b"2")]) is not None
            assert [entry.value for entry in await store.list("/d")] == [b"2"]

    asyncio.run(test())


# --- sessions


def test_a_deadline_follows_what_the_server_grants_not_what_was_asked_for(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        clock = SystemClock()
        async with opened(url_of(zookeeper, "/granted")) as store:
            for asked_ms, granted_ms in ((2 * MAX_TTL_MS, MAX_TTL_MS), (100, 2 * TICK_MS), (TTL_MS, TTL_MS)):
                before = clock.monotonic()
                session = await session_of(store, asked_ms)
                assert session.deadline < clock.monotonic() + granted_ms / 1000
                assert session.deadline > before + granted_ms / 2000
                await session.close()

    asyncio.run(test())


def test_a_session_that_zookeeper_has_ended_is_lost_at_once_and_its_writes_are_refused(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    async def test() -> None:
        clock = SystemClock()
        async with opened(url_of(zookeeper, "/ended")) as store:
            session = await session_of(store, MAX_TTL_MS)
            await store.txn([], [Write("/mine", b"1", session)])
            # A client with the session's number and password can end the session.
            identity = session.connection._client.client_id
            before = session.deadline

            def end() -> None:
                with plain_client(zookeeper, client_id=identity):
                    pass

            await asyncio.to_thread(end)
            assert await store.get("/mine") is None
            # kazoo goes on with a new session by itself; nothing must be written in that.
            with pytest.raises(Unavailable, match="session"):
                await store.txn([], [Write("/mine", b"2", session), Write("/other", b"2")])
            assert list(await store.list("/")) == []
            await session.wait_until_lost()
            assert clock.monotonic() < before, "told before its time was over"

    asyncio.run(test())


def test_nothing_is_written_in_the_session_that_follows_one_that_has_expired(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/following")) as store:
            session = await session_of(store, MAX_TTL_MS)
            connection, number = session.connection, session.session_id
            connection.on_change = lambda _: None  # its loss is not reported
            identity = connection._client.client_id

            def end() -> None:
                with plain_client(zookeeper, client_id=identity):
                    pass

            await asyncio.to_thread(end)
            while await connection.begin_session(PATIENCE_SECONDS) == number:  # noqa: ASYNC110  kazoo tells nobody
                await asyncio.sleep(0.01)
            assert not session.is_lost
            with pytest.raises(Unavailable, match="session of this write has ended"):
                await store.txn([], [Write("/mine", b"2", session)])
            assert session.is_lost
            assert await store.get("/mine") is None

    asyncio.run(test())


def test_a_key_that_another_session_has_made_anew_is_not_taken_for_the_old_one(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(url_of(zookeeper, "/anew")) as store, opened(url_of(zookeeper, "/anew")) as other:
            old, mine = await session_of(other), await session_of(store)
            versions = await other.txn([], [Write("/key", b"old", old)])
            assert versions is not None
            (version,) = versions
            commit = store._commit

            async def commit_late(*arguments: Any) -> int | None:
                # After everything was read: the node was recreated with the same version.
                nonlocal version
                if version:
                    version = 0
                    await old.close()
                    new = await session_of(other)
                    assert await other.txn([Check("/key", ABSENT)], [Write("/key", b"new", new)]) is not None
                return await commit(*arguments)

            store._commit = commit_late  # type: ignore[method-assign]
            assert await store.txn([Check("/key", version)], [Write("/key", b"taken", mine)]) is None
            entry = await store.get("/key")
            assert entry is not None
            assert entry.value == b"new"

    asyncio.run(test())


# --- servers that are not there


def test_a_server_that_is_not_there_is_named_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        endpoint = f"127.0.0.1:{free_port()}"
        async with opened(url_at(endpoint, "/x", timeout_ms="2000")) as store:
            for call in (store.get("/a"), store.txn([], [Write("/a", b"1")]), store.open_session(TTL_MS)):
                with pytest.raises(Unavailable, match=rf"ZooKeeper at {endpoint} was not reachable.*refused"):
                    await call

    with caplog.at_level(logging.DEBUG):
        asyncio.run(test())
    assert not [record for record in caplog.records if "kazoo" in record.name]


def test_the_server_that_is_there_is_found_among_others_that_are_not(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        endpoints = [f"127.0.0.1:{free_port()}", *zookeeper.endpoints, f"127.0.0.1:{free_port()}"]
        async with opened(url_at(",".join(endpoints), "/found")) as store:
            await uses_all_of(store)

    asyncio.run(test())


# --- owners of nodes


def test_nodes_of_a_user_are_for_that_user_alone(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "password"
    password.write_text("s3cr/t\n")

    async def test() -> None:
        async with opened(url_of(zookeeper, "/hers", "ann:s3cr%2Ft@")) as store:
            await uses_all_of(store)
            assert await store.txn([], [Write("/d/a", b"1")]) is not None
        async with opened(url_of(zookeeper, "/hers", "ann@", password_file=password)) as store:
            assert await store.get("/d/a") is not None
        for user, name in (("", "a client without user and password"), ("ann:wrong@", "ann"), ("bob:s3cr%2Ft@", "bob")):
            async with opened(url_of(zookeeper, "/hers", user)) as store:
                reason = f"does not allow .*{name} to use /hers: use the user"
                with pytest.raises(Unavailable, match=reason):
                    await store.get("/d/a")
                with pytest.raises(Unavailable, match=reason):
                    await store.txn([], [Write("/d/a", b"2")])
                with pytest.raises(Unavailable, match=reason):
                    await store.txn([], [Write("/d/b", b"2")])
                watch = store.watch("/d")
                said = f"Cannot watch /d in ZooKeeper, retrying: ZooKeeper at {zookeeper.endpoints[0]}"
                while said not in caplog.text:  # noqa: ASYNC110  a log tells nobody
                    await asyncio.sleep(0.01)
                caplog.clear()
                del watch
        async with opened(url_of(zookeeper, "/hers", "ann:s3cr%2Ft@")) as store:
            assert [entry.value for entry in await store.list("/d")] == [b"1"]

    asyncio.run(test())


def test_a_prefix_below_nodes_of_somebody_else_is_used_as_it_was_prepared(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        with plain_client(zookeeper) as client:
            # An administrator created it for ann, who has no rights above it.
            client.add_auth("digest", "root:toor")
            client.create("/closed", acl=[make_digest_acl("root", "toor", all=True)])
            client.create("/closed/ann", acl=[make_digest_acl("ann", "hers", all=True)])
        async with opened(url_of(zookeeper, "/closed/ann", "ann:hers@")) as store:
            await uses_all_of(store)
        async with opened(url_of(zookeeper, "/closed/bob", "bob:his@")) as store:
            with pytest.raises(Unavailable, match="does not allow user bob to use /closed/bob"):
                await store.txn([], [Write("/a", b"1")])

    asyncio.run(test())


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_authority(directory, "authority")
    make_authority(directory, "stranger")
    make_certificate(directory, "authority", "server")
    make_certificate(directory, "authority", "client")
    # ZooKeeper wants both in one file.
    both = (directory / "server.key").read_text() + (directory / "server.pem").read_text()
    (directory / "both.pem").write_text(both)
    return directory


@pytest.fixture(scope="module")
def secure_endpoint(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[str]:
    """A server whose port requires clients to have a certificate of its authority."""
    port = free_port()
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(certificates / "both.pem"),
        "ssl.trustStore.location": str(certificates / "authority.pem"),
        "ssl.clientAuth": "need",
    }
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("secure-zookeeper"), settings=settings):
        yield f"127.0.0.1:{port}"


def test_everything_works_over_tls_with_certificates_on_both_sides(secure_endpoint: str, certificates: Path) -> None:
    async def test() -> None:
        ca, cert, key = (certificates / name for name in ("authority.pem", "client.pem", "client.key"))
        async with opened(url_at(secure_endpoint, "/tls", ca=ca, cert=cert, key=key)) as store:
            await uses_all_of(store)

    asyncio.run(test())


def test_a_server_of_another_authority_is_not_trusted(secure_endpoint: str, certificates: Path) -> None:
    async def test() -> None:
        ca, cert, key = (certificates / name for name in ("stranger.pem", "client.pem", "client.key"))
        async with opened(url_at(secure_endpoint, "/tls", ca=ca, cert=cert, key=key, timeout_ms=SHORT_MS)) as store:
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await store.get("/a")

    asyncio.run(test())


def test_a_client_without_a_certificate_or_without_tls_is_refused(secure_endpoint: str, certificates: Path) -> None:
    async def test() -> None:
        ca = certificates / "authority.pem"
        for url in (
            url_at(secure_endpoint, "/tls", ca=ca, timeout_ms=SHORT_MS),
            url_at(secure_endpoint, "/tls", timeout_ms=SHORT_MS),
        ):
            async with opened(url) as store:
                with pytest.raises(Unavailable, match=f"ZooKeeper at {secure_endpoint} was not reachable within .*: "):
                    await store.txn([], [Write("/a", b"1")])

    asyncio.run(test())


def test_a_certificate_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot use the ca .*absent\.pem: .*No such file"):
        open_zookeeper_store(url_at("127.0.0.1", "/tls", ca=tmp_path / "absent.pem"), SystemClock())
    with pytest.raises(ValueError, match=r"cannot use the cert .*mine\.pem with the key .*mine\.key: "):
        open_zookeeper_store(url_at("host", "/", cert=tmp_path / "mine.pem", key=tmp_path / "mine.key"), SystemClock())
