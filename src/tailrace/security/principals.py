"""Principals: the identities of clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity to which an authorizer can grant rights, written `kind:name`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


#: The principal of clients that have not authenticated.
ANONYMOUS = Principal("User", "ANONYMOUS")
