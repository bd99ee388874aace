"""What an API needs: operations on resources, declared with the API, checked for the whole request or for its items."""

from __future__ import annotations

from typing import NamedTuple, Self

from tailrace.security.operations import Operation, ResourceType


class Need(NamedTuple):
    """An operation on a type of resource, and what it is checked for."""

    operation: Operation
    resource_type: ResourceType
    #: Whether the whole request needs it; otherwise only the items in the request or in the response do.
    is_whole: bool
    #: Another need that is sufficient too.
    alternative: Need | None = None

    def unless(self, other: Self) -> Need:
        """Return the same need with an alternative."""
        return self._replace(alternative=other)

    def __str__(self) -> str:
        text = f"{self.operation.name} on {self.resource_type.name}"
        return text if self.alternative is None else f"{text} or {self.alternative}"


def whole(operation: Operation, resource_type: ResourceType) -> Need:
    """A need of the whole request, on the cluster or on its group; the router checks it."""
    return Need(operation, resource_type, is_whole=True)


def each(operation: Operation, resource_type: ResourceType) -> Need:
    """A need for each item in the request or in the response; the handler checks it."""
    return Need(operation, resource_type, is_whole=False)


#: For an API that every client may use.
NOTHING: tuple[Need, ...] = ()
