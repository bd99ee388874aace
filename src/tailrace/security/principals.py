"""Principals: whom a connection speaks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody to whom an authorizer can allow something, written `kind:name`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


#: The principal of clients that have not authenticated.
ANONYMOUS = Principal("User", "ANONYMOUS")
