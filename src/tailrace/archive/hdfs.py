"""A location in an HDFS directory, through WebHDFS and fsspec.

A file is written under a temporary name and renamed when it is complete. fsspec waits for ever and takes an error of a
data node for data, so every response is checked on arrival and every request has a timeout.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tailrace.archive.errors import (
    ArchiveCorruptError,
    ArchiveDeniedError,
    ArchiveDependencyError,
    ArchiveFullError,
    ArchiveUnreachableError,
    ArchiveUriError,
    FileExistsInArchiveError,
    FileMissingError,
    LocationMissingError,
)
from tailrace.archive.layout import UNFINISHED_PREFIX, unique
from tailrace.archive.location import ArchiveUri, Entry, check_name, check_options
from tailrace.runtime.disk import Buffer

_OPTIONS = frozenset(("user", "token", "kerberos", "use_https", "http_port", "timeout_seconds"))
_DEFAULT_HTTP_PORT = 9870
_DEFAULT_HTTPS_PORT = 9871
_CONNECT_TIMEOUT_SECONDS = 3.0
#: Consumers wait for reads, but nobody waits for writes.
_READ_TIMEOUT_SECONDS = 15.0
_WRITE_TIMEOUT_SECONDS = 60.0
#: The size of one upload request of a file.
_UPLOAD_BYTES = 16 << 20
_DENIED = frozenset(
    ("AccessControlException", "SecurityException", "AuthorizationException", "AuthenticationException")
)
_FULL = frozenset(("DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"))


class _RefusedError(Exception):
    """An error response: the name node's name for the error, and its explanation."""

    def __init__(self, status: int, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}" if name else f"HTTP status {status}")
        self.status = status
        self.name = name


def open_hdfs(uri: str, parsed: ArchiveUri, options: Mapping[str, str]) -> HdfsDirectory:
    """The location of `webhdfs://host:port/path`, or of `hdfs://host/path` with the web interface at `http_port`."""
    check_options(uri, options, _OPTIONS)
    if not parsed.host:
        raise ArchiveUriError(f"'{uri}' has no name node: write webhdfs://host:{_DEFAULT_HTTP_PORT}/path")
    use_https = _flag(uri, options, "use_https")
    default = _DEFAULT_HTTPS_PORT if use_https else _DEFAULT_HTTP_PORT
    # The port in an hdfs: URI belongs to another protocol.
    port = parsed.port if parsed.scheme == "webhdfs" and parsed.port is not None else default
    if "http_port" in options:
        if not options["http_port"].isdecimal() or not 0 < int(options["http_port"]) < 65536:
            raise ArchiveUriError(f"the http_port '{options['http_port']}' of '{uri}' is not a port")
        port = int(options["http_port"])
    try:
        from fsspec.implementations.webhdfs import WebHDFS
    except ImportError:
        raise ArchiveDependencyError("archives in HDFS need fsspec: pip install 'tailrace[archive]'") from None
    kerberos, token = _flag(uri, options, "kerberos"), options.get("token")
    user = options.get("user") or parsed.user or os.environ.get("HADOOP_USER_NAME")
    system = WebHDFS(
        parsed.host,
        port,
        kerberos=kerberos,
        token=token,
        user=None if kerberos or token else user,
        use_https=use_https,
        session_verify=True,
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    _watch_over(system.session, _seconds(uri, options))
    return HdfsDirectory(uri, system, "/" + parsed.path.strip("/"))


def _seconds(uri: str, options: Mapping[str, str]) -> float | None:
    """The timeout for any response, if the URI or its options set one."""
    if "timeout_seconds" not in options:
        return None
    try:
        seconds = float(options["timeout_seconds"])
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ArchiveUriError(f"timeout_seconds of '{uri}' must be a number of seconds greater than 0")
    return seconds


def _flag(uri: str, options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ArchiveUriError(f"{name} of '{uri}' is '{value}', but must be true or false")
    return value == "true"


def _watch_over(session: Any, timeout_seconds: float | None) -> None:
    """Add a timeout to every request of a session, and turn every error response into an exception."""
    send = session.request

    def request(method: str, url: str, **settings: Any) -> Any:
        usual = _READ_TIMEOUT_SECONDS if method.upper() == "GET" else _WRITE_TIMEOUT_SECONDS
        patience = usual if timeout_seconds is None else timeout_seconds
        return send(method, url, **settings, timeout=(min(_CONNECT_TIMEOUT_SECONDS, patience), patience))

    session.request = request
    session.hooks["response"].append(_refuse)


def _refuse(response: Any, **_: Any) -> None:
    if response.status_code >= 400:
        try:
            remote = response.json()["RemoteException"]
            name, text = str(remote["exception"]), str(remote["message"]).partition("\n")[0]
        except (ValueError, KeyError, TypeError):
            name, text = "", ""
        raise _RefusedError(response.status_code, name, text)
    if response.request.method == "PUT" and "op=RENAME" in response.url and not response.json()["boolean"]:
        raise _RefusedError(response.status_code, "FileAlreadyExistsException", "the file was not renamed")


class HdfsDirectory:
    """Files below one directory of HDFS."""

    def __init__(self, uri: str, system: Any, root: str) -> None:
        self.uri = uri
        self._system = system
        self._root = root

    def check(self) -> None:
        self._check_root()
        with self._errors("", is_file=False):
            self._system.ls(self._root)  # also checks our permissions

    def _check_root(self) -> None:
        with self._errors("", is_file=False):
            if self._system.info(self._root)["type"] != "directory":
                raise self._missing()

    def create(self) -> None:
        with self._errors("", is_file=False):
            self._system.makedirs(self._root, exist_ok=True)

    def read_all(self, name: str) -> bytes:
        with self._errors(name):
            size = int(self._system.info(self._path(name))["size"])
        return self.read_range(name, 0, size)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with self._errors(name):
            # Blocks of one byte prevent read-ahead: the caller asks for exactly what it needs.
            data: bytes = self._system.cat_file(self._path(name), start, start + length, block_size=1)
        if len(data) != length:
            raise ArchiveCorruptError(f"{self.uri}: {name} ends after {start + len(data)} of {start + length} bytes")
        return data

    def size(self, name: str) -> int:
        with self._errors(name):
            return int(self._system.info(self._path(name))["size"])

    def write_new(self, name: str, data: Buffer) -> None:
        path = self._path(name)
        directory, _, file = path.rpartition("/")
        unfinished = f"{directory}/{UNFINISHED_PREFIX}{unique()}-{file}"
        self._check_root()
        with self._errors(name):
            self._system.makedirs(directory, exist_ok=True)
            try:
                with self._system.open(unfinished, "wb", block_size=_UPLOAD_BYTES) as stream:
                    for at in range(0, len(data), _UPLOAD_BYTES):
                        stream.write(memoryview(data)[at : at + _UPLOAD_BYTES])
                self._system.mv(unfinished, path)
            except BaseException:
                self._discard(unfinished)
                raise

    def _discard(self, path: str) -> None:
        try:
            self._system.rm_file(path)
        except (OSError, _RefusedError):
            pass  # report the original error instead; a leftover file is never read

    def list(self, directory: str) -> Iterator[Entry]:
        check_name(directory)
        found: list[Entry] = []
        pending = [f"{self._root.rstrip('/')}/{directory}"]
        start = len(self._root.rstrip("/")) + 1
        while pending:
            path = pending.pop()
            try:
                with self._errors(path[start:]):
                    infos = self._system.ls(path, detail=True)
            except FileMissingError:
                continue  # never created, or deleted in between
            pending += [info["name"] for info in infos if info["type"] == "directory"]
            found += [
                Entry(info["name"][start:], int(info["size"]), int(info["modificationTime"]))
                for info in infos
                if info["type"] == "file"
            ]
        return iter(sorted(found))

    def delete(self, name: str) -> None:
        with self._errors(name):
            # The name node only says whether it removed something, so check separately that the location exists.
            self._system.rm_file(self._path(name))
            self._check_root()

    def close(self) -> None:
        self._system.session.close()

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self._root.rstrip('/')}/{name}"

    def _missing(self) -> LocationMissingError:
        return LocationMissingError(f"the directory {self._root} of {self.uri} does not exist in HDFS")

    @contextmanager
    def _errors(self, name: str, is_file: bool = True) -> Iterator[None]:
        where = f"{self.uri}: {name}" if name else self.uri
        try:
            yield
        except _RefusedError as error:
            if error.name == "FileNotFoundException" or (error.status == 404 and not error.name):
                if not is_file:
                    raise self._missing() from error
                self._check_root()
                raise FileMissingError(f"{where} is missing") from error
            if error.status == 401 or error.name in _DENIED:
                raise ArchiveDeniedError(f"access to {where} is denied for this user: {error}") from error
            if error.name in _FULL:
                raise ArchiveFullError(f"cannot write {where}: {error}") from error
            if error.name in ("FileAlreadyExistsException", "ParentNotDirectoryException"):
                if not is_file:
                    raise self._missing() from error
                raise FileExistsInArchiveError(f"{where} already exists") from error
            raise ArchiveUnreachableError(f"cannot access {where} now: {error}") from error
        except OSError as error:  # all connection errors are OSErrors
            raise ArchiveUnreachableError(f"cannot access {where} now: {error}") from error
