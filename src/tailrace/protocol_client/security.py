"""Encryption and authentication of connections; so far all of them are plaintext.

Owns which security settings exist. `handshake` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.protocol_client.errors import UnsupportedSettingError

PLAINTEXT = "PLAINTEXT"
_PROTOCOL = "security.protocol"
_FAMILIES = ("sasl.", "ssl.", "security.")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """The security of every connection of a client, under Kafka's names."""

    protocol: str = PLAINTEXT

    def __post_init__(self) -> None:
        if self.protocol != PLAINTEXT:
            raise UnsupportedSettingError(_PROTOCOL)


def is_security_setting(name: str) -> bool:
    """True if a setting is about security."""
    return name.startswith(_FAMILIES)


def security_settings(settings: Mapping[str, str]) -> SecuritySettings:
    """Return the security among a client's settings; UnsupportedSettingError if it is more than plaintext."""
    for name in settings:
        if is_security_setting(name) and name != _PROTOCOL:
            raise UnsupportedSettingError(name)
    return SecuritySettings(settings.get(_PROTOCOL, PLAINTEXT).upper())
