"""ElectLeaders 0 to 2: elects preferred leaders, or unclean leaders where no in-sync replica is alive.

Odd: only the current leader can hand over to the preferred one, as it waits until that replica has everything. So any
broker takes the request and forwards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tailrace.broker import access
from tailrace.broker.events import log_change
from tailrace.broker.handlers.api import Api
from tailrace.broker.leading.leadership import FORWARDING_BROKER
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.decisions import ElectionType, elect
from tailrace.cluster.image import ClusterImage, TopicImage
from tailrace.cluster.metadata import TopicChange
from tailrace.cluster.store import Unavailable
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage, TopicPartition
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(services: Services, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    try:
        election = ElectionType(request.election_type)
    except ValueError:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    image = services.metadata.image
    wanted = _wanted(access.visible_topics(services, context, image, None), request)
    known = {name: topic for name in wanted if (topic := access.find_topic(services, context, None, name)) is not None}
    if election is ElectionType.PREFERRED:
        outcomes = await _prefer(services, context, image, known, wanted)
    else:
        outcomes = await _elect(services, known, wanted, election)
    elected = 0
    results = []
    for name, numbers in wanted.items():
        outcome = outcomes.get(name, {})
        result = ReplicaElectionResult(topic=name)
        for number in numbers:
            refusal = outcome.get(number) if name in known else _no_such_topic(name)
            elected += refusal is None
            # A request for all partitions gets no results for those that need no election.
            is_idle = refusal is not None and refusal.code is ErrorCode.ELECTION_NOT_NEEDED
            if request.topic_partitions is not None or not is_idle:
                result.partition_result.append(_result(number, refusal))
        if result.partition_result:
            results.append(result)
    if elected:
        kind = election.name.lower()
        log_change(context, "%d partitions elected their %s leaders", elected, kind, partitions=elected, election=kind)
    return ElectLeadersResponse(replica_election_results=results)


def _wanted(known: Iterable[TopicImage], request: ElectLeadersRequest) -> dict[str, Sequence[int]]:
    if request.topic_partitions is None:
        return {topic.name: range(len(topic.partitions)) for topic in known}
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topic_partitions:
        wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return {name: list(numbers) for name, numbers in wanted.items()}


async def _prefer(
    services: Services,
    context: RequestContext,
    image: ClusterImage,
    known: Mapping[str, TopicImage],
    wanted: dict[str, Sequence[int]],
) -> dict[str, dict[int, KafkaError]]:
    """Elect preferred leaders; return the errors by topic and partition."""
    outcomes: dict[str, dict[int, KafkaError]] = {}
    due: list[TopicPartition] = []
    for name, numbers in wanted.items():
        if name in known:
            _, outcomes[name] = elect(known[name], numbers, ElectionType.PREFERRED, list(image.brokers))
            due += [TopicPartition(name, number) for number in numbers if number not in outcomes[name]]
    try:
        refusals = await services.leadership.prefer(due, may_forward=context.client_id != FORWARDING_BROKER)
    except Unavailable as error:
        refusals = dict.fromkeys(due, KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
    for (name, number), refusal in refusals.items():
        outcomes[name][number] = refusal
    return outcomes


async def _elect(
    services: Services,
    known: Mapping[str, TopicImage],
    wanted: dict[str, Sequence[int]],
    election: ElectionType,
) -> dict[str, dict[int, KafkaError]]:
    """Elect leaders; return the errors by topic and partition."""
    outcomes: dict[str, dict[int, KafkaError]] = {}
    changes: dict[Lineage, TopicChange] = {}

    def elected(name: str, live: Sequence[int]) -> TopicChange:
        def change(topic: TopicImage) -> TopicImage:
            # Called again if another broker changed the topic meanwhile: the last result counts.
            changed, outcomes[name] = elect(topic, wanted[name], election, live)
            return changed

        return change

    try:
        live = list(await services.metadata.registered_brokers())
        for name, topic in known.items():
            changes[topic.lineage] = elected(name, live)
        await services.metadata.alter_topics(changes)
    except Unavailable as error:
        refusal = KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
        return {name: dict.fromkeys(numbers, refusal) for name, numbers in wanted.items()}
    for name in known:
        if name not in outcomes:
            outcomes[name] = dict.fromkeys(wanted[name], _no_such_topic(name))  # deleted meanwhile
    return outcomes


def _result(number: int, refusal: KafkaError | None) -> PartitionResult:
    if refusal is None:
        return PartitionResult(partition_id=number, error_message=None)
    return PartitionResult(partition_id=number, error_code=refusal.code, error_message=refusal.message)


def _no_such_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")


def _refuse(version: int, request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    """Return the response to a client that may not elect leaders; version 0 only has error codes of partitions."""
    return ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic, partition_result=[_result(number, error) for number in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


API = Api(
    ElectLeadersRequest,
    0,
    2,
    handle,
    "Elect the preferred leaders, or any replica where none is in sync.",
    needs=(whole(Operation.ALTER, ResourceType.CLUSTER),),
    refuse=_refuse,
)
