"""Addresses of coordination stores that are servers: `scheme://[user:password@]host[:port],…[/prefix][?name=value&…]`.

| parameter        | meaning                                                                          |
|------------------|----------------------------------------------------------------------------------|
| `ca`             | file with the certificates to trust; the connection is encrypted then            |
| `cert`, `key`    | files of our own certificate and key, where the servers ask for them             |
| `tls=true`       | encrypted without `ca`: the certificates that are trusted on this machine        |
| `password-file`  | file whose first line is the password, so that it need not stand in the address  |
| `timeout-ms`     | how long a call may take, 5000 unless given                                      |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

#: Where keys are put unless the address says where, so that several things can live in one store.
DEFAULT_PREFIX = "/tailrace"
_PARAMETERS = ("ca", "cert", "key", "tls", "password-file", "timeout-ms")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Which servers, below which prefix, as whom."""

    #: Each as host:port.
    endpoints: tuple[str, ...]
    #: Put before every key; '' for none.
    prefix: str = DEFAULT_PREFIX
    user: str = ""
    password: str = field(default="", repr=False)
    is_secure: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout_seconds: float = 5.0


def parse_server_address(url: str, scheme: str, default_port: int) -> ServerAddress:
    """Read an address of a scheme; ValueError says what is wrong with it, and never shows a password."""
    what = f"an {scheme} address" if scheme[0] in "aeiou" else f"a {scheme} address"
    found, separator, rest = url.partition("://")
    if found != scheme or not separator:
        example = f"{scheme}://host1:{default_port},host2:{default_port}/prefix"
        raise ValueError(f"{what} begins with {scheme}://, as in {example}")
    rest, _, query = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    credentials, _, hosts = hosts.rpartition("@")
    user, _, password = credentials.partition(":")
    parameters = _parameters(query, what)
    if "password-file" in parameters:
        if password:
            raise ValueError(f"{what} has a password or a password-file, not both")
        password = _first_line(parameters["password-file"], what)
    elif password:
        password = unquote(password)
    if (user == "") != (password == ""):
        raise ValueError(f"{what} has both a user and a password, or none of them")
    if ("cert" in parameters) != ("key" in parameters):
        raise ValueError(f"{what} has both cert and key, or none of them")
    tls = parameters.get("tls", "true" if "ca" in parameters or "cert" in parameters else "false")
    if tls not in ("true", "false") or (tls == "false" and ("ca" in parameters or "cert" in parameters)):
        raise ValueError(f"tls in {what} is true or false; with ca or cert it is true")
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
            raise ValueError(f"{name!r} is no parameter of {what}; there are: {', '.join(_PARAMETERS)}")
        if not value or name in parameters:
            raise ValueError(f"{name} in {what} needs one value")
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
        raise ValueError(f"timeout-ms in {what} is a number of milliseconds, at least 100")
    return int(value) / 1000


def _first_line(path: str, what: str) -> str:
    try:
        password = Path(path).read_text().partition("\n")[0].strip()
    except OSError as error:
        raise ValueError(f"cannot read the password-file {path} of {what}: {error.strerror}") from error
    if not password:
        raise ValueError(f"the password-file {path} of {what} begins with an empty line")
    return password
