"""New topics before their creation: checks their names and places their replicas. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.cluster.placement import Load, place_replicas, require_few, use_assignment
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicId, topic_name_problem


class TopicPlans:
    """Plans new topics one after another, each as if the earlier ones existed."""

    def __init__(self, image: ClusterImage, new_id: Callable[[], UUID]) -> None:
        self._image = image
        self._new_id = new_id
        self._planned: dict[str, TopicImage] = {}
        #: Names that differ only in '.' and '_' are one name in metrics.
        self._collisions = {_for_metrics(name): name for name in image.topics}
        self._partitions = 0
        #: Placing replicas adds to it.
        self._load = Load.of(image.topics.values())

    def plan(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]],
        configs: Mapping[str, str],
    ) -> TopicImage:
        """The topic as it would be created; raises if it cannot be."""
        problem = topic_name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name in self._image.topics or name in self._planned:
            raise exists_already(name)
        other = self._collisions.get(_for_metrics(name))
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")
        # Before any placement, and for all topics of a request: a small request may ask for billions of partitions.
        require_few(self._partitions + (len(assignment) or partitions))
        if assignment:
            states = use_assignment(list(self._image.brokers), assignment)
            for state in states:
                self._load.add(state.replicas)
        else:
            states = place_replicas(self._image.brokers, partitions, replication_factor, self._load)
        topic = self._planned[name] = TopicImage(name, TopicId(self._new_id()), states, MappingProxyType(dict(configs)))
        self._collisions[_for_metrics(name)] = name
        self._partitions += len(states)
        return topic


def _for_metrics(name: str) -> str:
    return name.replace(".", "_")


def exists_already(name: str) -> KafkaError:
    """The error for a topic whose name is taken."""
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
