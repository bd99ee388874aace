"""The port for an authorizer. Without one, every client may do everything."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from tailrace.security.operations import Operation, ResourceType
from tailrace.security.principals import Principal


class Authorizer(Protocol):
    """Decides what principals may do; called for every request, so it answers from memory."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """True if a principal may perform an operation on a resource, from a host."""
        ...

    def allows_on_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """True if there can be a resource of a type on which a principal may perform an operation."""
        ...

    def rights(self, principal: Principal, host: str) -> Hashable:
        """Return a value that is equal for principals with the same rights, and changes when the rights do."""
        ...
