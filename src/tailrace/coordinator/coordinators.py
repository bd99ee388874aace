"""Every kind of coordinator on one broker; passes on events that concern all of them."""

from __future__ import annotations

from typing import Any

from tailrace.cluster.image import ClusterImage
from tailrace.coordinator.coordinator import Coordinator
from tailrace.replication.partition import Partition


class Coordinators:
    """The coordinators, in the order they were added."""

    def __init__(self) -> None:
        self._all: list[Coordinator[Any]] = []
        self._by_key_type: dict[int, Coordinator[Any]] = {}

    def add(self, coordinator: Coordinator[Any], key_type: int | None = None) -> None:
        """Add a coordinator; clients find it by its key type in FindCoordinator, if it has one."""
        self._all.append(coordinator)
        if key_type is not None:
            self._by_key_type[key_type] = coordinator

    def of_key_type(self, key_type: int) -> Coordinator[Any] | None:
        """The coordinator with a given key type in FindCoordinator."""
        return self._by_key_type.get(key_type)

    def replication_factors(self) -> dict[str, int]:
        """The target number of replicas of each internal topic."""
        return {each.topic: each.replication_factor for each in self._all}

    def apply(self, before: ClusterImage, after: ClusterImage) -> None:
        """Follow the image."""
        for each in self._all:
            each.apply(before, after)

    def reopened(self, partition: Partition) -> None:
        """A partition that this broker could not open at first is open now."""
        for each in self._all:
            each.reopened(partition)

    def close(self) -> None:
        """The broker is stopping."""
        for each in self._all:
            each.close()
