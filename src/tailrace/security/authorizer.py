"""The port for an authorizer. Without one everybody may do everything."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from tailrace.security.operations import Operation, ResourceType
from tailrace.security.principals import Principal


class Authorizer(Protocol):
    """Decides who may do what; asked for every request, so it answers from memory."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a principal may do an operation to a resource, from a host."""
        ...

    def allows_on_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of a type that a principal may do an operation to."""
        ...

    def rights(self, principal: Principal, host: str) -> Hashable:
        """Equal for those who may do the same; another value once they may do something else."""
        ...
