"""What an API needs: operations on resources, declared with the API, checked for the request or for what it names."""

from __future__ import annotations

from typing import NamedTuple, Self

from tailrace.security.operations import Operation, ResourceType


class Need(NamedTuple):
    """An operation on a type of resource, and what is checked for it."""

    operation: Operation
    resource_type: ResourceType
    #: Whether the request as a whole needs it; else only what it names, or what the answer tells, does.
    is_whole: bool
    #: What else is enough.
    alternative: Need | None = None

    def unless(self, other: Self) -> Need:
        """The same need, met by another one too."""
        return self._replace(alternative=other)

    def __str__(self) -> str:
        text = f"{self.operation.name} on {self.resource_type.name}"
        return text if self.alternative is None else f"{text} or {self.alternative}"


def whole(operation: Operation, resource_type: ResourceType) -> Need:
    """What a request needs as a whole, on the cluster or on its group; the router checks it."""
    return Need(operation, resource_type, is_whole=True)


def each(operation: Operation, resource_type: ResourceType) -> Need:
    """What is needed for each thing that a request names, or that its answer tells; the handler checks it."""
    return Need(operation, resource_type, is_whole=False)


#: For an API that everybody may use.
NOTHING: tuple[Need, ...] = ()
