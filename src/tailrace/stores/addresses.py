"""Addresses of coordination stores on servers: `scheme://[user:password@]host[:port],…[/prefix][?name=value&…]`.

| parameter        | meaning                                                                          |
|------------------|----------------------------------------------------------------------------------|
| `ca`             | file with trusted certificates; enables encryption                               |
| `cert`, `key`    | files with our own certificate and key, if the servers require them              |
| `tls=true`       | encryption without `ca`, with this machine's trusted certificates                |
| `password-file`  | file with the password in its first line, to keep it out of the address          |
| `timeout-ms`     | time limit for a call, 5000 by default                                           |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

#: The default prefix of all keys, so that several applications can share one store.
DEFAULT_PREFIX = "/tailrace"
_PARAMETERS = ("ca", "cert", "key", "tls", "password-file", "timeout-ms")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The servers, the prefix of keys, and the credentials."""

    #: Each one as host:port.
    endpoints: tuple[str, ...]
    #: Prepended to every key; '' for none.
    prefix: str = DEFAULT_PREFIX
    user: str = ""
    password: str = field(default="", repr=False)
    is_secure: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout_seconds: float = 5.0


def parse_server_address(url: str, scheme: str, default_port: int) -> ServerAddress:
    """Parse an address of a scheme; the ValueError explains the problem and never contains a password."""
    what = f"an {scheme} address" if scheme[0] in "aeiou" else f"a {scheme} address"
    found, separator, rest = url.partition("://")
    if found != scheme or not separator:
        example = f"{scheme}://host1:{default_port},host2:{default_port}/prefix"
        raise ValueError(f"{what} must start with {scheme}://, for example {example}")
    rest, _, query = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    credentials, _, hosts = hosts.rpartition("@")
    user, _, password = credentials.partition(":")
    parameters = _parameters(query, what)
    if "password-file" in parameters:
        if password:
            raise ValueError(f"{what} must not have both a password and a password-file")
        password = _first_line(parameters["password-file"], what)
    elif password:
        password = unquote(password)
    if (user == "") != (password == ""):
        raise ValueError(f"{what} must have both a user and a password, or neither")
    if ("cert" in parameters) != ("key" in parameters):
        raise ValueError(f"{what} must have both cert and key, or neither")
    tls = parameters.get("tls", "true" if "ca" in parameters or "cert" in parameters else "false")
    if tls not in ("true", "false") or (tls == "false" and ("ca" in parameters or "cert" in parameters)):
        raise ValueError(f"tls in {what} must be true or false, and true if there is a ca or cert")
    return ServerAddress(
        endpoints=tuple(dict.fromkeys(_endpoint(host, default_port, what) for host in hosts.split(","))),
        prefix=_prefix(unquote(path), what) if slash else DEFAULT_PREFIX,
        user=unquote(user),
        password=password,
        is_secure=tls == "true",
        ca=parameters.get("ca", ""),
        cert=parameters.get("cert", ""),
        key=parameters.get("key", ""),
        timeout_seconds=_timeout_seconds(parameters.get("timeout-ms", "5000"), what),
    )


def _parameters(query: str, what: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise ValueError(f"{name!r} is not a parameter of {what}; use one of: {', '.join(_PARAMETERS)}")
        if not value or name in parameters:
            raise ValueError(f"{name} in {what} must have exactly one value")
        parameters[name] = value
    return parameters


def _endpoint(host: str, default_port: int, what: str) -> str:
    match = _HOST.fullmatch(host)
    if match is None or not 0 < int(match["port"] or default_port) < 65_536:
        raise ValueError(f"{host!r} in {what} is not host:port")
    return f"{match['host']}:{match['port'] or default_port}"


def _prefix(path: str, what: str) -> str:
    prefix = "/" + path.strip("/")
    if "//" in prefix:
        raise ValueError(f"{prefix!r} in {what} is not a path")
    return "" if prefix == "/" else prefix


def _timeout_seconds(value: str, what: str) -> float:
    if not value.isdecimal() or int(value) < 100:
        raise ValueError(f"timeout-ms in {what} must be a number of milliseconds, at least 100")
    return int(value) / 1000


def _first_line(path: str, what: str) -> str:
    try:
        password = Path(path).read_text().partition("\n")[0].strip()
    except OSError as error:
        raise ValueError(f"cannot read the password-file {path} of {what}: {error.strerror}") from error
    if not password:
        raise ValueError(f"the password-file {path} of {what} must have the password in its first line, which is empty")
    return password
