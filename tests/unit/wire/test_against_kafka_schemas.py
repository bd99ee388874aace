"""Our descriptions say what the schemas inside Kafka's own client library say, field by field."""

from __future__ import annotations

import pytest

from tailrace.wire.apis import FIRST_OWN_KEY, ApiKey
from tailrace.wire.codec import Message
from tests.support.messages import REQUESTS, RESPONSES
from tests.unit.wire.kafka_schemas import CLIENTS, compare_message, needs, schemas, snake_case

pytestmark = needs(CLIENTS)
MESSAGES = [message for message in (*REQUESTS.values(), *RESPONSES.values()) if message.API_KEY < FIRST_OWN_KEY]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_is_described_as_kafka_describes_it(message: type[Message]) -> None:
    theirs = schemas(CLIENTS)[message.__name__]
    assert theirs["apiKey"] == message.API_KEY
    compare_message(message, theirs)


def test_every_api_has_kafkas_number_and_name() -> None:
    numbers = {
        snake_case(name.removesuffix("Request")).upper(): theirs["apiKey"]
        for name, theirs in schemas(CLIENTS).items()
        if name.endswith("Request") and "apiKey" in theirs
    }
    assert numbers == {key.name: int(key) for key in ApiKey if key < FIRST_OWN_KEY}
