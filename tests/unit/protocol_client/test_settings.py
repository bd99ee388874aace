"""Addresses, security and versions: what is accepted, and refusals that help."""

from __future__ import annotations

import pytest

from tailrace.protocol_client.errors import UnsupportedSettingError, UnsupportedVersionError
from tailrace.protocol_client.security import SecuritySettings, security_settings
from tailrace.protocol_client.settings import join_address, split_address, split_addresses
from tailrace.protocol_client.versions import Versions, choose_version
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest
from tailrace.wire.messages.metadata import MetadataRequest


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:9092", ("localhost", 9092)),
        (" 127.0.0.1:1 ", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["localhost", ":9092", "::1:9092", "host:0", "host:65536", "host:x", "host:", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        split_address(address)


@pytest.mark.parametrize("text", ["localhost:9092", "[::1]:9092"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert join_address(split_address(text)) == text


def test_one_wrong_address_of_several_is_named() -> None:
    assert split_addresses("a:1, b:2") == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="'b' is not HOST:PORT"):
        split_addresses("a:1,b")


def test_settings_without_security_are_in_plaintext() -> None:
    assert security_settings({"client.id": "x"}) == SecuritySettings("PLAINTEXT")
    assert security_settings({"security.protocol": "plaintext"}) == SecuritySettings("PLAINTEXT")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "SASL_SSL"),
        ("security.providers", "x"),
        ("sasl.mechanism", "PLAIN"),
        ("ssl.truststore.location", "x"),
    ],
)
def test_more_security_than_there_is_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UnsupportedSettingError, match=f"setting '{name}' is not supported yet") as caught:
        security_settings({name: value})
    assert caught.value.setting == name


@pytest.mark.parametrize(
    ("usable", "served", "expected"),
    [
        (Versions(4, 10), Versions(0, 13), 10),
        (Versions(4, 10), Versions(0, 7), 7),
        (Versions(4, 10), Versions(10, 13), 10),
        (Versions(4, 4), Versions(4, 4), 4),
    ],
)
def test_the_newest_version_that_both_know_is_chosen(usable: Versions, served: Versions, expected: int) -> None:
    assert choose_version(MetadataRequest, usable, {MetadataRequest.API_KEY: served}, "a:1") == expected


@pytest.mark.parametrize(
    ("usable", "served", "message"),
    [
        (
            Versions(4, 10),
            Versions(0, 3),
            "a:1 serves Metadata in versions 0 to 3 only; this client needs versions 4 to 10",
        ),
        (Versions(4, 4), Versions(5, 5), "a:1 serves Metadata in version 5 only; this client needs version 4"),
        (Versions(4, 4), None, "a:1 serves no Metadata at all; this client needs version 4"),
    ],
)
def test_where_no_version_is_known_to_both_that_is_said(
    usable: Versions, served: Versions | None, message: str
) -> None:
    table = {} if served is None else {int(MetadataRequest.API_KEY): served}
    with pytest.raises(UnsupportedVersionError, match=message):
        choose_version(MetadataRequest, usable, table, "a:1")


def test_apis_of_our_own_are_not_advertised_and_asked_all_the_same() -> None:
    assert choose_version(ArchiveCommitRequest, Versions(0, 0), {}, "a:1") == 0
