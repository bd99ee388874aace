"""What only etcd has in addition to the contract of all stores: its own tools, compaction, TLS, users and roles."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tailrace.cluster.store import Changes, Check, Entry, TooLarge, Unavailable, Write
from tailrace.errors import TailraceError
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.etcd import EtcdStore, open_etcd_store
from tests.contract.cable import Cable
from tests.support.certificates import make_authority, make_certificate
from tests.support.stores.etcd_process import EtcdCluster

PATIENCE_SECONDS = 180
#: Long enough for a live session to be renewed even on a very busy machine.
TTL_MS = 9_000
#: For calls that end only when their time is over: enough for a busy machine to find out why they must fail.
SHORT_MS = "4000"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member, for tests that do not change its configuration."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def etcdctl(cluster: EtcdCluster, *arguments: str) -> str:
    """Run etcd's own command; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
    command = ["etcdctl", "--endpoints", ",".join(cluster.endpoints), *arguments]
    environment["ETCDCTL_API"] = "3"
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EtcdStore]:
    store = open_etcd_store(url, SystemClock())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield store
    finally:
        await store.close()


def url_of(cluster: EtcdCluster, prefix: str, user: str = "", **parameters: str | Path) -> str:
    query = "?" + urlencode({name.replace("_", "-"): str(value) for name, value in parameters.items()})
    return f"etcd://{user}{','.join(cluster.endpoints)}{prefix}{query if parameters else ''}"


async def uses_all_of(store: EtcdStore) -> None:
    """Write, read, watch and hold a session."""
    watch = store.watch("/d")
    assert (await anext(watch)).is_complete
    session = await store.open_session(TTL_MS)
    versions = await store.txn([Check("/d/a", 0)], [Write("/d/a", b"1"), Write("/d/mine", b"2", session)])
    assert versions is not None
    changes = await anext(watch)
    assert changes == ([Entry("/d/a", b"1", versions[0]), Entry("/d/mine", b"2", versions[1])], [], False)
    assert list(await store.list("/d")) == list(changes.entries)
    # Renewed at least once.
    granted = session.deadline
    while session.deadline == granted:  # noqa: ASYNC110  nothing tells of a renewal
        await asyncio.sleep(0.05)
    await session.close()
    assert await anext(watch) == ([], ["/d/mine"], False)
    assert await store.txn([], [Write("/d/a", None)]) == [0]


# --- keys


def test_etcdctl_sees_what_was_written_and_writes_what_is_seen(etcd: EtcdCluster) -> None:
    async def test() -> None:
        async with opened(url_of(etcd, "/outside/deep")) as store:
            await store.txn([], [Write("/a", b"one"), Write("/b/c", b"two")])
            found = await asyncio.to_thread(etcdctl, etcd, "get", "--prefix", "/outside")
            assert found.splitlines() == ["/outside/deep/a", "one", "/outside/deep/b/c", "two"]
            watch = store.watch("/b")
            await anext(watch)
            await asyncio.to_thread(etcdctl, etcd, "put", "/outside/deep/b/d", "three")
            (entry,) = (await anext(watch)).entries
            assert (entry.key, entry.value) == ("/b/d", b"three")
            assert await store.get("/b/d") == entry

    asyncio.run(test())


def test_a_key_is_read_alone_whatever_else_begins_like_it(etcd: EtcdCluster) -> None:
    async def test() -> None:
        async with opened(url_of(etcd, "/alone")) as store:
            await store.txn([], [Write("/a0", b"x"), Write("/a/b", b"x"), Write("/b", b"x")])
            assert await store.get("/a") is None

    asyncio.run(test())


def test_without_a_prefix_keys_are_as_they_are(etcd: EtcdCluster) -> None:
    async def test() -> None:
        async with opened(url_of(etcd, "/")) as store:
            await store.txn([], [Write("/bare/a", b"1")])
            assert [entry.key for entry in await store.list("/bare")] == ["/bare/a"]
        assert await asyncio.to_thread(etcdctl, etcd, "get", "--print-value-only", "/bare/a") == "1\n"

    asyncio.run(test())


def test_a_value_that_etcd_cannot_take_is_refused_by_its_size(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for an etcd with a lower limit than usual.
    monkeypatch.setattr("tailrace.stores.transactions.MAX_TRANSACTION_BYTES", 4 << 20)

    async def test() -> None:
        async with opened(url_of(etcd, "/large")) as store:
            for size in (1_600_000, 2 << 20):  # above the limit of etcd, and above that of its gRPC server
                with pytest.raises(TooLarge, match=r"too large.*--max-request-bytes"):
                    await store.txn([], [Write("/a", bytes(size))])
            assert await store.get("/a") is None

    asyncio.run(test())


# --- compaction


def test_a_watch_whose_history_was_compacted_away_begins_with_everything_again(etcd: EtcdCluster) -> None:
    async def test() -> None:
        cable = Cable(("127.0.0.1", etcd.members[0].client_port))
        _, port = await cable.listen()
        async with opened(f"etcd://127.0.0.1:{port}/compacted") as store, opened(url_of(etcd, "/compacted")) as other:
            await other.txn([], [Write("/d/stays", b"1"), Write("/d/goes", b"1"), Write("/d/changes", b"1")])
            watch = store.watch("/d")
            assert len((await anext(watch)).entries) == 3
            cable.cut()
            await cable.reset()
            await other.txn([], [Write("/d/goes", None), Write("/d/changes", b"2")])
            versions = await other.txn([], [Write("/d/comes", b"1")])
            assert versions is not None
            await asyncio.to_thread(etcdctl, etcd, "compact", str(versions[0]))
            cable.mend()
            changes: Changes = await anext(watch)
            assert changes.is_complete
            found = {entry.key: entry.value for entry in changes.entries}
            assert found == {"/d/stays": b"1", "/d/changes": b"2", "/d/comes": b"1"}
            await other.txn([], [Write("/d/comes", b"2")])
            following = await anext(watch)
            assert [(entry.key, entry.value) for entry in following.entries] == [("/d/comes", b"2")]
            assert not following.is_complete
        await cable.close()

    asyncio.run(test())


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_authority(directory, "authority")
    make_authority(directory, "stranger")
    make_certificate(directory, "authority", "server")
    make_certificate(directory, "authority", "client")
    return directory


@pytest.fixture(scope="module")
def secure_etcd(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[EtcdCluster]:
    """One member that requires clients to have a certificate of its authority."""
    options = [
        *("--cert-file", str(certificates / "server.pem")),
        *("--key-file", str(certificates / "server.key")),
        *("--trusted-ca-file", str(certificates / "authority.pem"), "--client-cert-auth"),
    ]
    with EtcdCluster(tmp_path_factory.mktemp("secure-etcd"), options=options, scheme="https") as cluster:
        yield cluster


def test_everything_works_over_tls_with_certificates_on_both_sides(
    secure_etcd: EtcdCluster, certificates: Path
) -> None:
    async def test() -> None:
        ca, cert, key = (certificates / name for name in ("authority.pem", "client.pem", "client.key"))
        async with opened(url_of(secure_etcd, "/tls", ca=ca, cert=cert, key=key)) as store:
            await uses_all_of(store)

    asyncio.run(test())


def test_a_server_of_another_authority_is_not_trusted(secure_etcd: EtcdCluster, certificates: Path) -> None:
    async def test() -> None:
        ca, cert, key = (certificates / name for name in ("stranger.pem", "client.pem", "client.key"))
        async with opened(url_of(secure_etcd, "/tls", ca=ca, cert=cert, key=key, timeout_ms=SHORT_MS)) as store:
            with pytest.raises(Unavailable, match=r"(?i)certificate"):
                await store.get("/a")

    asyncio.run(test())


def test_a_client_without_a_certificate_or_without_tls_is_refused(secure_etcd: EtcdCluster, certificates: Path) -> None:
    async def test() -> None:
        ca = certificates / "authority.pem"
        for url in (
            url_of(secure_etcd, "/tls", ca=ca, timeout_ms=SHORT_MS),
            url_of(secure_etcd, "/tls", timeout_ms=SHORT_MS),
        ):
            async with opened(url) as store:
                with pytest.raises(Unavailable, match=secure_etcd.endpoints[0]):
                    await store.txn([], [Write("/a", b"1")])

    asyncio.run(test())


def test_a_certificate_file_that_is_not_there_is_named(secure_etcd: EtcdCluster, tmp_path: Path) -> None:
    with pytest.raises(TailraceError, match="absent"):
        open_etcd_store(url_of(secure_etcd, "/tls", ca=tmp_path / "absent.pem"), SystemClock())


# --- users and roles


@pytest.fixture(scope="module")
def guarded_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member where only the user ann may read and write, and only below /hers."""
    with EtcdCluster(tmp_path_factory.mktemp("guarded-etcd"), options=["--bcrypt-cost", "4"]) as cluster:
        for command in (
            "user add root:toor",
            "user grant-role root root",
            "role add keeper",
            "role grant-permission keeper --prefix=true readwrite /hers/",
            "user add ann:s3cr/t",
            "user grant-role ann keeper",
            "auth enable",
        ):
            etcdctl(cluster, *command.split())
        yield cluster


def test_a_user_works_below_what_its_role_allows(guarded_etcd: EtcdCluster, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("s3cr/t\n")

    async def test() -> None:
        async with opened(url_of(guarded_etcd, "/hers/one", "ann:s3cr%2Ft@")) as store:
            await uses_all_of(store)
        async with opened(url_of(guarded_etcd, "/hers/two", "ann@", password_file=password)) as store:
            await uses_all_of(store)

    asyncio.run(test())


def test_a_refusal_says_what_is_missing(guarded_etcd: EtcdCluster) -> None:
    async def test() -> None:
        for user, prefix, reason in (
            ("ann:wrong@", "/hers", "does not accept the password of user 'ann'"),
            ("bob:s3cr%2Ft@", "/hers", "does not accept the password of user 'bob'"),
            ("", "/hers", "requires a user and a password"),
            ("ann:s3cr%2Ft@", "/his", "does not allow user 'ann' to read and write below /his: grant the user a role"),
        ):
            async with opened(url_of(guarded_etcd, prefix, user)) as store:
                with pytest.raises(Unavailable, match=reason):
                    await store.get("/a")
                with pytest.raises(Unavailable, match=reason):
                    await store.txn([], [Write("/a", b"1")])

    asyncio.run(test())


def test_a_member_that_has_forgotten_our_token_is_told_again_who_we_are(guarded_etcd: EtcdCluster) -> None:
    async def test() -> None:
        async with opened(url_of(guarded_etcd, "/hers/three", "ann:s3cr%2Ft@")) as store:
            versions = await store.txn([], [Write("/d/a", b"1")])
            assert versions is not None
            watch = store.watch("/d")
            await anext(watch)
            (member,) = guarded_etcd.members
            await asyncio.to_thread(member.kill)
            await asyncio.to_thread(guarded_etcd.start)
            versions = await store.txn([Check("/d/a", versions[0])], [Write("/d/a", b"2")])
            assert versions is not None
            assert await anext(watch) == ([Entry("/d/a", b"2", versions[0])], [], False)

    asyncio.run(test())
