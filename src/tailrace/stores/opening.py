"""Opens a store by its address, for `tailrace.coordination` and for commands that read or copy metadata.

| address                                    | store                                                            |
|--------------------------------------------|------------------------------------------------------------------|
| `sqlite:metadata.sqlite`                   | a file owned by one process                                      |
| `unix:///run/tailrace/store.sock`          | the file of a local cluster's supervisor, served to its brokers  |
| `etcd://h1:2379,h2:2379/prefix`            | an etcd cluster                                                  |
| `zookeeper://h1:2181,h2:2181/chroot`       | a ZooKeeper ensemble                                             |

The client libraries of etcd and ZooKeeper are optional; they are imported only when such a store is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias, cast

from tailrace.cluster.store import Store
from tailrace.errors import ConfigError
from tailrace.runtime.clock import Clock
from tailrace.stores.served import ServedStore
from tailrace.stores.sqlite import SqliteStore

_Open: TypeAlias = Callable[[str, Clock], Store]

_KNOWN = "sqlite:FILE, unix:///SOCKET, etcd://HOST:PORT,…/PREFIX, zookeeper://HOST:PORT,…/CHROOT"


def open_store(url: str, clock: Clock) -> Store:
    """Open the store at an address, without contacting a server yet; ConfigError if the address is invalid."""
    scheme, colon, rest = url.partition(":")
    opener = _OPENERS.get(scheme.lower())
    if not colon or opener is None:
        raise ConfigError(f"{without_password(url)} is not the address of a coordination store: use one of {_KNOWN}")
    return opener(f"{scheme.lower()}:{rest}", clock)


def _open_sqlite(url: str, clock: Clock) -> Store:
    path = url.removeprefix("sqlite:").removeprefix("//")
    if not path:
        raise ConfigError(f"{url} has no file name, as in sqlite:/var/lib/tailrace/metadata.sqlite")
    return SqliteStore(path)


def _open_served(url: str, clock: Clock) -> Store:
    path = url.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigError(f"{url} is not the absolute path of a socket, as in unix:///run/tailrace/store.sock")
    return ServedStore(path, clock)


def _optional(module: str, function: str, extra: str) -> _Open:
    """An opener from a module whose library may not be installed."""

    def open_optional(url: str, clock: Clock) -> Store:
        try:
            opener = cast(_Open, getattr(import_module(module), function))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("tailrace"):
                raise
            raise ConfigError(
                f"a store in {extra} needs the package {error.name}, which is not installed: "
                f"pip install 'tailrace[{extra}]'"
            ) from error
        try:
            return opener(url, clock)
        except ValueError as error:
            raise ConfigError(f"cannot use {without_password(url)}: {error}") from None

    return open_optional


def without_password(url: str) -> str:
    """Return the address without its password, so that it can be shown."""
    start, at, end = url.rpartition("@")
    scheme, separator, credentials = start.partition("://")
    if not at or not separator:
        return url
    return f"{scheme}://{credentials.partition(':')[0]}:…@{end}"


_OPENERS: dict[str, _Open] = {
    "sqlite": _open_sqlite,
    "unix": _open_served,
    "etcd": _optional("tailrace.stores.etcd", "open_etcd_store", "etcd"),
    "zookeeper": _optional("tailrace.stores.zookeeper", "open_zookeeper_store", "zookeeper"),
}
