"""Operations, resources and principals have Kafka's numbers, names and refusals."""

from __future__ import annotations

import pytest

from tailrace.errors import ErrorCode
from tailrace.security.needs import each, whole
from tailrace.security.operations import SUPPORTED, Operation, ResourceType, bits, refusal
from tailrace.security.principals import ANONYMOUS, Principal


def test_the_bits_of_all_operations_are_those_that_kafka_shows() -> None:
    assert bits(SUPPORTED[ResourceType.TOPIC]) == 0xDF8
    assert bits(SUPPORTED[ResourceType.CLUSTER]) == 0x1FA0
    assert bits(SUPPORTED[ResourceType.GROUP]) == 0b110101001000
    assert bits(SUPPORTED[ResourceType.TRANSACTIONAL_ID]) == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    assert bits([]) == 0


@pytest.mark.parametrize(
    ("resource_type", "number", "code"),
    [
        (ResourceType.TOPIC, 2, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ResourceType.GROUP, 3, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (ResourceType.CLUSTER, 4, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ResourceType.TRANSACTIONAL_ID, 5, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_each_type_of_resource_has_a_number_and_a_refusal(
    resource_type: ResourceType, number: int, code: ErrorCode
) -> None:
    assert resource_type == number
    assert refusal(resource_type).code is code


def test_principals_are_values() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert Principal("User", "a") == Principal("User", "a")
    assert len({Principal("User", "a"): 1, Principal("User", "b"): 2, Principal("Group", "a"): 3}) == 3


def test_a_need_reads_as_what_it_takes() -> None:
    assert str(whole(Operation.READ, ResourceType.GROUP)) == "READ on GROUP"
    either = each(Operation.CREATE, ResourceType.TOPIC).unless(each(Operation.CREATE, ResourceType.CLUSTER))
    assert str(either) == "CREATE on TOPIC or CREATE on CLUSTER"
