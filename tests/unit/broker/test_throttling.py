"""Every response with a throttle field has its client's throttle time, which quotas give once per request."""

from __future__ import annotations

from pathlib import Path

from tailrace.broker.handlers import APIS
from tailrace.errors import ErrorCode
from tailrace.security.principals import ANONYMOUS, Principal
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.heartbeat import HeartbeatResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tailrace.wire.messages.offset_commit import OffsetCommitResponse
from tailrace.wire.messages.produce import ProduceResponse
from tests.support.messages import RESPONSES
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker
from tests.unit.broker.requests import TOPIC
from tests.unit.broker.test_authorization import FEW, cases_of, with_content
from tests.unit.broker.test_repeated_requests import Member, frame_of, is_known


class Fixed:
    """Throttles everybody for the same time, and notes for whom it was asked."""

    def __init__(self, throttle_ms: int = 17) -> None:
        self._throttle_ms = throttle_ms
        self.asked: list[tuple[Principal, str | None, int]] = []

    def throttle_time_ms(self, principal: Principal, client_id: str | None, api_key: int) -> int:
        self.asked.append((principal, client_id, api_key))
        return self._throttle_ms


def throttle_time_of(response: Message, version: int) -> int | None:
    """What a response says, or None if its version has no field for it."""
    field = response.FIELDS.get("throttle_time_ms")
    return getattr(response, "throttle_time_ms") if field is not None and field.in_version(version) else None  # noqa: B009


def test_every_response_that_can_says_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        told = set()
        all_cases = cases_of(broker)
        for request, version, _ in all_cases:
            quotas = Fixed()
            broker.use(quotas=quotas)
            response = await broker.ask(request, version, RESPONSES[request.API_KEY])
            said = throttle_time_of(response, version)
            assert said in (17, None), f"{type(request).__name__} v{version}"
            assert quotas.asked == [(ANONYMOUS, "a test", request.API_KEY)]
            if said is not None:
                told.add(request.API_KEY)
        can = {key for key in APIS if "throttle_time_ms" in RESPONSES[key].FIELDS}
        assert told == can

    with_content(tmp_path, test)


def test_produce_says_it_in_every_version_and_without_an_answer_quotas_are_asked_too(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        quotas = Fixed()
        broker.use(quotas=quotas)
        for version in range(3, 13):
            response = await broker.ask(produce_request(TOPIC), version, ProduceResponse)
            assert response.throttle_time_ms == 17
            (topic,) = response.responses
            assert topic.partition_responses[0].error_code == ErrorCode.NONE
        quotas.asked.clear()
        assert broker.answer(produce_request(TOPIC, acks=0), 9) is None
        assert [api_key for _, _, api_key in quotas.asked] == [ApiKey.PRODUCE]

    with_content(tmp_path, test)


def test_a_cached_metadata_answer_says_it_and_is_as_before_without_quotas(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        for version in range(14):
            answers = []
            for quotas in (None, Fixed(), Fixed(18), None):
                broker.use(quotas=quotas)
                request = MetadataRequest(topics=None if version else [])
                answers.append(await broker.ask(request, version, MetadataResponse))
            assert [answer.throttle_time_ms for answer in answers] == ([0, 17, 18, 0] if version >= 3 else [0] * 4)
            for answer in answers:
                answer.throttle_time_ms = 0
                assert answer == answers[0]

    with_content(tmp_path, test)


def test_requests_known_by_their_bytes_say_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create(TOPIC, partitions=2)
        member = Member(broker)
        await member.join()
        for quotas in (None, Fixed(), None):
            broker.use(quotas=quotas)
            expected = 0 if quotas is None else 17
            for _ in range(3):
                beat = await broker.ask(member.heartbeat(), 4, HeartbeatResponse)
                assert (beat.error_code, beat.throttle_time_ms) == (ErrorCode.NONE, expected)
                commit = await broker.ask(member.commit(1), 8, OffsetCommitResponse)
                assert commit.throttle_time_ms == expected
            if quotas is None:
                assert is_known(broker, frame_of(member.heartbeat(), 4))
            else:
                assert len(quotas.asked) == 6

    with_broker(tmp_path, test, **FEW)


def test_an_answer_to_an_unknown_version_has_no_room_for_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        broker.use(quotas=Fixed())
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        assert (await broker.ask(request, 0, ApiVersionsResponse)).error_code == ErrorCode.NONE

    with_content(tmp_path, test)
