"""Authorizers for tests: one that allows only what it lists, and records its calls."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from tailrace.security.operations import Operation, ResourceType
from tailrace.security.principals import Principal


class Asked(NamedTuple):
    """One question."""

    operation: Operation
    resource_type: ResourceType
    name: str


class Listed:
    """Allows each principal what is listed for it, whatever its host."""

    def __init__(self, allowed: dict[str, Iterable[tuple[Operation, ResourceType, str]]] | None = None) -> None:
        self.allowed = {name: set(rights) for name, rights in (allowed or {}).items()}
        self.asked: list[Asked] = []
        self.hosts: dict[str, None] = {}

    @property
    def allows_something(self) -> bool:
        return any(self.allowed.values())

    def _of(self, principal: Principal) -> set[tuple[Operation, ResourceType, str]]:
        return self.allowed.get(str(principal), set())

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        self.asked.append(Asked(operation, resource_type, name))
        self.hosts[host] = None
        return (operation, resource_type, name) in self._of(principal)

    def allows_on_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        self.asked.append(Asked(operation, resource_type, "*"))
        return any(right[:2] == (operation, resource_type) for right in self._of(principal))

    def rights(self, principal: Principal, host: str) -> Hashable:
        return frozenset(self._of(principal))


class Everything(Listed):
    """Allows everything, or everything but what is done to a type of resource."""

    allows_something = True

    def __init__(self, but: ResourceType | None = None) -> None:
        super().__init__()
        self._but = but

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        super().allows(principal, host, operation, resource_type, name)
        return resource_type is not self._but

    def allows_on_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        super().allows_on_any(principal, host, operation, resource_type)
        return resource_type is not self._but
