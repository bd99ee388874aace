"""How connections are protected and how they prove who they are; so far all of them are in plaintext.

Owns which security settings exist. `handshake` is where they take effect.
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
    """Whether a setting is about security."""
    return name.startswith(_FAMILIES)


def security_settings(settings: Mapping[str, str]) -> SecuritySettings:
    """The security among a client's settings; UnsupportedSettingError names one that asks for more than plaintext."""
    for name in settings:
        if is_security_setting(name) and name != _PROTOCOL:
            raise UnsupportedSettingError(name)
    return SecuritySettings(settings.get(_PROTOCOL, PLAINTEXT).upper())
