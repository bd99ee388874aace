"""The kinds of archive locations, each on a real server, and the faults that tests inject."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Protocol

import requests

from tailrace.archive.location import Location, open_location
from tests.support.archives.hdfs_process import HdfsServer
from tests.support.archives.s3_process import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.brokers.broker_process import free_port

KINDS = ("directory", "s3", "hdfs")
_number = count(1)


class Place(Protocol):
    """One new location, and the faults that a test may inject."""

    def open(self) -> Location: ...

    def open_missing(self) -> Location:
        """A bucket or directory that does not exist, on the same server."""
        ...

    def open_refused(self) -> list[Location]:
        """The same location with wrong credentials."""
        ...

    def open_unreachable(self) -> Location | None:
        """A location where nobody listens; None if the kind has no server."""
        ...

    def remove(self) -> None:
        """Let the location disappear."""
        ...

    def overwrite(self, name: str, content: bytes) -> None:
        """Change a file in place, which no location itself does."""
        ...


class DirectoryPlace:
    def __init__(self, directory: Path) -> None:
        self._root = directory / f"archive {next(_number)}"
        self._root.mkdir()

    def open(self) -> Location:
        return open_location(str(self._root))

    def open_missing(self) -> Location:
        return open_location(f"{self._root}-missing")

    def open_refused(self) -> list[Location]:
        return []  # the tests may run as root, whom no directory refuses

    def open_unreachable(self) -> Location | None:
        return None

    def remove(self) -> None:
        shutil.rmtree(self._root)

    def overwrite(self, name: str, content: bytes) -> None:
        (self._root / name).write_bytes(content)


class S3Place:
    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._bucket = f"bucket-{next(_number)}"
        server.create_bucket(self._bucket)

    def open(self) -> Location:
        return self._open(self._bucket)

    def open_missing(self) -> Location:
        return self._open("missing-bucket")

    def open_refused(self) -> list[Location]:
        return [self._open(self._bucket, secret_key="wrong"), self._open(self._bucket, access_key="nobody")]

    def open_unreachable(self) -> Location | None:
        # One attempt: further ones would only wait.
        return self._open(self._bucket, endpoint_override=f"http://127.0.0.1:{free_port()}", max_attempts="1")

    def _open(self, bucket: str, **changes: str) -> Location:
        options = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "endpoint_override": self._server.endpoint}
        return open_location(f"s3://{bucket}/some/prefix?region=us-east-1", {**options, **changes})

    def remove(self) -> None:
        self._server.remove_bucket(self._bucket)

    def overwrite(self, name: str, content: bytes) -> None:
        self.open().write_new(name, content)  # in an object store a later upload replaces an earlier one

    def decay(self, name: str) -> None:
        """Change a byte in the server's own file, so that the server does not know it."""
        path = self._server.path(self._bucket, f"some/prefix/{name}")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


class HdfsPlace:
    def __init__(self, server: HdfsServer) -> None:
        self._server = server
        self._path = f"/open/archive {next(_number)}"
        self.open().create()

    def open(self) -> Location:
        return self._open(self._path)

    def open_missing(self) -> Location:
        return self._open("/open/missing")

    def open_refused(self) -> list[Location]:
        self._call("PUT", "", "SETPERMISSION", permission="700")
        return [self._open(self._path, user="somebody")]

    def open_unreachable(self) -> Location | None:
        return open_location(f"webhdfs://127.0.0.1:{free_port()}/archive", {"user": "archivist"})

    def _open(self, path: str, user: str = "archivist") -> Location:
        # Its first answers take long, and the machine may be busy.
        return open_location(f"webhdfs://{user}@{self._server.address}{path}?timeout_seconds=300")

    def _call(self, method: str, name: str, operation: str, data: bytes | None = None, **parameters: str) -> None:
        """HDFS's own interface, used directly."""
        path = f"{self._path}/{name}" if name else self._path
        url = f"http://{self._server.address}/webhdfs/v1{path}"
        with requests.Session() as session:
            session.trust_env = False
            answer = session.request(
                method,
                url,
                params={"op": operation, "user.name": "archivist", **parameters},
                data=data,
                headers={"content-type": "application/octet-stream"},
                timeout=60,
            )
            answer.raise_for_status()

    def remove(self) -> None:
        self._call("DELETE", "", "DELETE", recursive="true")

    def overwrite(self, name: str, content: bytes) -> None:
        self._call("PUT", name, "CREATE", content, overwrite="true")


class RunningLocations:
    """Servers that are started when a test first needs them, and then run for all."""

    def __init__(self, new_directory: Callable[[str], Path]) -> None:
        self._new_directory = new_directory
        self._servers: dict[str, S3Server | HdfsServer] = {}

    def new(self, kind: str) -> Place:
        if kind == "directory":
            return DirectoryPlace(self._new_directory(kind))
        if kind not in self._servers:
            starters: Mapping[str, type[S3Server] | type[HdfsServer]] = {"s3": S3Server, "hdfs": HdfsServer}
            server = starters[kind](self._new_directory(kind))
            server.start()
            self._servers[kind] = server
        found = self._servers[kind]
        return S3Place(found) if isinstance(found, S3Server) else HdfsPlace(found)

    def shutdown(self) -> None:
        for server in self._servers.values():
            server.stop()
