"""A location in a bucket of S3 or of any compatible store, or under a prefix in it; through pyarrow.

An upload appears when it is complete, so a file exists as a whole or not at all. In such stores a later upload replaces
an earlier one of the same name. Names in an archive are unique, so that never happens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tailrace.archive.errors import (
    ArchiveCorruptError,
    ArchiveDeniedError,
    ArchiveDependencyError,
    ArchiveError,
    ArchiveFullError,
    ArchiveUnreachableError,
    ArchiveUriError,
    FileMissingError,
    LocationMissingError,
)
from tailrace.archive.location import ArchiveUri, Entry, check_name, check_options
from tailrace.runtime.disk import Buffer

_OPTIONS = frozenset(
    (
        *("access_key", "secret_key", "session_token", "endpoint_override", "region", "scheme", "tls_ca_file_path"),
        "max_attempts",
    )
)
#: Default number of attempts for a request that fails with a transient error; `max_attempts` overrides it.
_ATTEMPTS = "3"
_CONNECT_TIMEOUT_SECONDS = 3.0
_REQUEST_TIMEOUT_SECONDS = 10.0
#: How many files with known size are kept open, so that reading a range takes one request; a handle is small.
_MAX_OPEN_FILES = 1024

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
#: The client library's names for errors of authentication and authorization.
_DENIED = re.compile(
    r"ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY_ID|INVALID_SIGNATURE|INVALID_CLIENT_TOKEN_ID"
    r"|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT|EXPIRED_?TOKEN|ExpiredToken|InvalidToken|AccountProblem"
    r"|HTTP status 40[13]|access key",
    re.IGNORECASE,
)
_FULL = re.compile(r"InsufficientStorage|StorageFull|QuotaExceeded|HTTP status 507", re.IGNORECASE)


def open_bucket(uri: str, parsed: ArchiveUri, options: Mapping[str, str]) -> Bucket:
    """The location of `s3://bucket/prefix`; `endpoint_override` and `region` are for stores other than Amazon's."""
    check_options(uri, options, _OPTIONS)
    if not _BUCKET_NAME.fullmatch(parsed.host):
        raise ArchiveUriError(f"'{uri}' has no bucket: write s3://bucket or s3://bucket/prefix")
    if parsed.port is not None or parsed.user is not None:
        raise ArchiveUriError(
            f"'{uri}' has more than a bucket before its path: set the server with ?endpoint_override="
        )
    if ("access_key" in options) != ("secret_key" in options):
        raise ArchiveUriError("access_key and secret_key must be given together: one of them is missing")
    try:
        from pyarrow import fs
    except ImportError:
        raise ArchiveDependencyError(
            "archives in object storage need pyarrow: pip install 'tailrace[archive]'"
        ) from None
    settings: dict[str, Any] = dict(options)
    attempts = settings.pop("max_attempts", _ATTEMPTS)
    if not (attempts.isdecimal() and 1 <= int(attempts) <= 100):
        raise ArchiveUriError(f"'{uri}' has max_attempts '{attempts}', which must be a number from 1 to 100")
    endpoint = settings.pop("endpoint_override", None) or _endpoint_of_environment()
    if endpoint:
        scheme, separator, address = endpoint.rpartition("://")
        if separator:
            settings["scheme"] = scheme
        settings["endpoint_override"] = address.rstrip("/")
        settings.setdefault("region", os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION", "us-east-1")))
    if settings.get("scheme", "https") not in ("http", "https"):
        raise ArchiveUriError(f"'{uri}' has the scheme '{settings['scheme']}', which must be http or https")
    system = fs.S3FileSystem(
        **settings,
        background_writes=False,
        # A small file then takes one request instead of three.
        allow_delayed_open=True,
        connect_timeout=_CONNECT_TIMEOUT_SECONDS,
        request_timeout=_REQUEST_TIMEOUT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=int(attempts)),
    )
    return Bucket(uri, system, parsed.host, parsed.path.strip("/"))


def _endpoint_of_environment() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


class Bucket:
    """Files below a prefix of one bucket."""

    def __init__(self, uri: str, system: Any, bucket: str, prefix: str) -> None:
        self.uri = uri
        self._system = system
        self._bucket = bucket
        self._root = f"{bucket}/{prefix}" if prefix else bucket
        self._files: dict[str, Any] = {}
        self._files_lock = Lock()

    def check(self) -> None:
        from pyarrow import fs

        with self._errors(""):
            if self._system.get_file_info(self._bucket).type != fs.FileType.Directory:
                # This response had no body; the response to a listing explains the error.
                self._system.get_file_info(fs.FileSelector(self._bucket))
                raise self._missing()

    def create(self) -> None:
        self.check()

    def read_all(self, name: str) -> bytes:
        with self._errors(name):
            with self._system.open_input_file(self._path(name)) as file:
                data: bytes = file.read()
            return data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        path = self._path(name)
        with self._errors(name):
            file = self._files.get(path)
            data: bytes | None = None
            if file is not None and start + length <= file.size():
                try:
                    data = file.read_at(length, start)
                except OSError:
                    # The file behind the handle may be gone: opening it again gives a better error.
                    self._forget(path)
            if data is None:
                file = self._system.open_input_file(path)
                if file.size() < start + length:
                    raise ArchiveCorruptError(f"{self.uri}: {name} ends after {file.size()} of {start + length} bytes")
                data = file.read_at(length, start)
                self._remember(path, file)
        if len(data) < length:
            raise ArchiveCorruptError(f"{self.uri}: {name} ends after {start + len(data)} of {start + length} bytes")
        return data

    def size(self, name: str) -> int:
        from pyarrow import fs

        with self._errors(name):
            info = self._system.get_file_info(self._path(name))
            if info.type != fs.FileType.File:
                raise FileNotFoundError(name)
            return int(info.size)

    def write_new(self, name: str, data: Buffer) -> None:
        with self._errors(name), self._system.open_output_stream(self._path(name)) as stream:
            stream.write(data)

    def list(self, directory: str) -> Iterator[Entry]:
        from pyarrow import fs

        check_name(directory)
        selector = fs.FileSelector(f"{self._root}/{directory}", recursive=True, allow_not_found=True)
        with self._errors(directory):
            infos = self._system.get_file_info(selector)
            if not infos:
                self.check()
        start = len(self._root) + 1
        return iter(
            sorted(
                Entry(info.path[start:], info.size, info.mtime_ns // 1_000_000)
                for info in infos
                if info.type == fs.FileType.File
            )
        )

    def delete(self, name: str) -> None:
        path = self._path(name)
        self._forget(path)
        with self._errors(name):
            try:
                self._system.delete_file(path)
            except FileNotFoundError:
                self.check()

    def close(self) -> None:
        with self._files_lock:
            self._files.clear()

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self._root}/{name}"

    def _remember(self, path: str, file: Any) -> None:
        with self._files_lock:
            while len(self._files) >= _MAX_OPEN_FILES:
                del self._files[next(iter(self._files))]
            self._files[path] = file

    def _forget(self, path: str) -> None:
        with self._files_lock:
            self._files.pop(path, None)

    def _missing(self) -> LocationMissingError:
        return LocationMissingError(
            f"bucket '{self._bucket}' of {self.uri} does not exist, or this account has no access to it"
        )

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            # Stores report this for a missing bucket too, and some for an unknown account.
            self.check()
            raise FileMissingError(f"{self.uri}: {name} is missing") from error
        except OSError as error:
            raise self._translated(name, str(error)) from error

    def _translated(self, name: str, text: str) -> ArchiveError:
        where = f"{self.uri}: {name}" if name else self.uri
        if "NO_SUCH_BUCKET" in text:
            return self._missing()
        if "NO_SUCH_KEY" in text:
            return FileMissingError(f"{where} is missing")
        if _DENIED.search(text):
            return ArchiveDeniedError(
                f"access to {where} is denied for these credentials: set valid ones in AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY, or grant them the permissions that an archive needs. {text}"
            )
        if "checksums mismatch" in text.lower():
            return ArchiveCorruptError(
                f"{where} was altered: the store sent different bytes from those written. {text}"
            )
        if _FULL.search(text):
            return ArchiveFullError(f"cannot write {where}: {text}")
        return ArchiveUnreachableError(f"cannot access {where} now: {text}")
