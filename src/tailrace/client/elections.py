"""Elections of partition leaders on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.client.errors import ClientError
from tailrace.client.request import ask
from tailrace.errors import ErrorCode
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions

_VERSIONS = Versions(2, 2)
_PREFERRED, _UNCLEAN = 0, 1
_TIMEOUT_MS = 30_000


@dataclass(slots=True)
class Elections:
    """The results of elections, by `topic-partition`."""

    elected: list[str] = field(default_factory=list)
    #: Refused elections, and why; partitions that already have the right leader are in neither.
    failed: dict[str, str] = field(default_factory=dict)


def elect(bootstrap: str, wanted: Mapping[str, Sequence[int]], *, unclean: bool = False) -> Elections:
    """Elect the preferred replicas, or any live replica if no in-sync replica is alive."""
    request = ElectLeadersRequest(
        election_type=_UNCLEAN if unclean else _PREFERRED,
        topic_partitions=[TopicPartitions(topic=name, partitions=list(numbers)) for name, numbers in wanted.items()],
        timeout_ms=_TIMEOUT_MS,
    )
    response = ask(bootstrap, request, _VERSIONS, ElectLeadersResponse, doing="electing leaders")
    if response.error_code:
        raise ClientError(f"electing leaders failed: {ErrorCode(response.error_code).name}")
    outcome = Elections()
    for topic in response.replica_election_results:
        for result in topic.partition_result:
            name = f"{topic.topic}-{result.partition_id}"
            if result.error_code == ErrorCode.NONE:
                outcome.elected.append(name)
            elif result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                outcome.failed[name] = result.error_message or ErrorCode(result.error_code).name
    return outcome
