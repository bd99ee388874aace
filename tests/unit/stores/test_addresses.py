"""Addresses of stores on servers: how they are parsed, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.stores.addresses import ServerAddress, parse_server_address


def parse(url: str) -> ServerAddress:
    return parse_server_address(url, "zookeeper", 2181)


def test_an_address_without_anything_else_has_defaults() -> None:
    address = parse("zookeeper://host")
    assert address == ServerAddress(endpoints=("host:2181",), prefix="/tailrace")
    assert not address.is_secure
    assert address.timeout_seconds == 5


def test_everything_in_an_address_is_read() -> None:
    address = parse(
        "zookeeper://ann:s3cr%2Ft%40@h1:1,[::1],h2:3,h1:1/a/b/?ca=/x/ca.pem&cert=c.pem&key=k.pem&timeout-ms=250"
    )
    assert address == ServerAddress(
        endpoints=("h1:1", "[::1]:2181", "h2:3"),
        prefix="/a/b",
        user="ann",
        password="s3cr/t@",
        is_secure=True,
        ca="/x/ca.pem",
        cert="c.pem",
        key="k.pem",
        timeout_seconds=0.25,
    )
    assert "s3cr" not in repr(address)


@pytest.mark.parametrize(("path", "prefix"), [("", "/tailrace"), ("/", ""), ("/a", "/a"), ("/a%20b/", "/a b")])
def test_the_prefix_is_what_the_path_says(path: str, prefix: str) -> None:
    assert parse(f"zookeeper://host{path}").prefix == prefix


def test_a_password_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one line\nanother\n")
    assert parse(f"zookeeper://ann@host?password-file={file}").password == "one line"
    file.write_text("\nsecond\n")
    with pytest.raises(ValueError, match="must have the password in its first line"):
        parse(f"zookeeper://ann@host?password-file={file}")
    with pytest.raises(ValueError, match=r"cannot read the password-file .*absent.*: No such file"):
        parse(f"zookeeper://ann@host?password-file={tmp_path / 'absent'}")
    with pytest.raises(ValueError, match="must not have both"):
        parse(f"zookeeper://ann:x@host?password-file={file}")


def test_tls_is_asked_for_by_itself_or_by_certificates() -> None:
    assert parse("zookeeper://host?tls=true").is_secure
    assert parse("zookeeper://host?ca=ca.pem").is_secure
    assert not parse("zookeeper://host?tls=false").is_secure


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (
            "etcd://host",
            "a zookeeper address must start with zookeeper://, for example zookeeper://host1:2181,host2:2181/prefix",
        ),
        ("zookeeper:host", "must start with zookeeper://"),
        ("zookeeper://", "'' in a zookeeper address is not host:port"),
        ("zookeeper://h1,,h2", "'' in a zookeeper address is not host:port"),
        ("zookeeper://host:0", "'host:0' in a zookeeper address is not host:port"),
        ("zookeeper://host:65536", "is not host:port"),
        ("zookeeper://host:port", "is not host:port"),
        ("zookeeper://::1", "is not host:port"),
        ("zookeeper://host/a//b", "is not a path"),
        ("zookeeper://ann@host", "both a user and a password"),
        ("zookeeper://:secret@host", "both a user and a password"),
        ("zookeeper://host?cert=c.pem", "both cert and key"),
        ("zookeeper://host?tls=false&ca=ca.pem", "and true if there is a ca or cert"),
        ("zookeeper://host?tls=maybe", "must be true or false"),
        ("zookeeper://host?timeout-ms=99", "at least 100"),
        ("zookeeper://host?timeout-ms=soon", "at least 100"),
        ("zookeeper://host?ca=", "ca in a zookeeper address must have exactly one value"),
        ("zookeeper://host?ca=a&ca=b", "ca in a zookeeper address must have exactly one value"),
        ("zookeeper://host?colour=red", "'colour' is not a parameter of a zookeeper address; use one of: ca, cert"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(url)
    assert reason in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_scheme_is_named_as_one_says_it() -> None:
    with pytest.raises(
        ValueError, match=r"^an etcd address must start with etcd://, for example etcd://host1:2379,host2:2379/"
    ):
        parse_server_address("zookeeper://host", "etcd", 2379)
