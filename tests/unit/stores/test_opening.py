from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.opening import open_store
from tailrace.stores.served import ServedStore
from tailrace.stores.sqlite import SqliteStore

CLOCK = SystemClock()


@pytest.mark.parametrize("form", ["sqlite:{}", "sqlite://{}", "SQLITE:{}"])
def test_a_file_is_opened(tmp_path: Path, form: str) -> None:
    async def test() -> None:
        store = open_store(form.format(tmp_path / "metadata.sqlite"), CLOCK)
        assert isinstance(store, SqliteStore)
        await store.close()

    asyncio.run(test())
    assert (tmp_path / "metadata.sqlite").exists()


def test_a_socket_is_not_asked_yet(tmp_path: Path) -> None:
    store = open_store(f"unix://{tmp_path}/store.sock", CLOCK)
    assert isinstance(store, ServedStore)
    assert store.path == f"{tmp_path}/store.sock"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not the address of a coordination store: use one of sqlite:FILE"),
        ("localhost:2379", "localhost:2379 is not the address of a coordination store"),
        ("consul://localhost", "is not the address of a coordination store"),
        ("sqlite:", "has no file name"),
        ("unix://relative.sock", "is not the absolute path of a socket"),
        ("unix:///directory/", "is not the absolute path of a socket"),
        ("consul://user:secret@localhost", "consul://user:…@localhost is not the address"),
    ],
)
def test_an_address_that_is_no_good_is_refused_with_what_would_be(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, CLOCK)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "library"), [("etcd", "grpc"), ("zookeeper", "kazoo")])
def test_a_library_that_is_missing_is_named_with_how_to_install_it(
    scheme: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(f"tailrace.stores.{scheme}")]:
        monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError) as caught:
        open_store(f"{scheme}://localhost/queue", CLOCK)
    assert f"needs the package {library}" in str(caught.value)
    assert f"pip install 'tailrace[{scheme}]'" in str(caught.value)


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_what_is_wrong_with_the_address_of_a_server_is_said(scheme: str) -> None:
    with pytest.raises(ConfigError, match=rf"cannot use {scheme}://user:…@host:99999/x: 'host:99999'"):
        open_store(f"{scheme}://user:secret@host:99999/x", CLOCK)
