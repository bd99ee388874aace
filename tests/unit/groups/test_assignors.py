"""The coordinator's assignors: every partition once, only to subscribers, evenly, and with few moves."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.groups.assignment import pairs_of
from tailrace.groups.assignors import ASSIGNORS, AssignedTopic, Candidate, assign_range, assign_uniform

TOPICS = [UUID(int=number) for number in range(1, 5)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Candidate], dict[UUID, AssignedTopic]]:
    topics = {
        lineage: AssignedTopic(lineage, draw(st.integers(1, 12)))
        for lineage in draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    }
    members = [
        Candidate(f"m{number:02d}", frozenset(draw(st.sets(st.sampled_from(TOPICS), min_size=1))))
        for number in range(draw(st.integers(1, 9)))
    ]
    return members, topics


def check(members: list[Candidate], topics: dict[UUID, AssignedTopic], found: dict) -> None:
    assert set(found) == {member.member_id for member in members}
    given_out = [pair for share in found.values() for pair in pairs_of(share)]
    wanted = {lineage for member in members for lineage in member.topics if lineage in topics}
    expected = [(lineage, number) for lineage in wanted for number in range(topics[lineage].partitions)]
    assert sorted(given_out) == sorted(expected)
    for member in members:
        assert set(found[member.member_id]) <= member.topics


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(problems())
@settings(max_examples=150)
def test_every_wanted_partition_has_one_owner_who_wants_it(name: str, problem: tuple) -> None:
    members, topics = problem
    check(members, topics, ASSIGNORS[name](members, topics))


@given(problems(), problems())
@settings(max_examples=150)
def test_uniform_is_even_and_keeps_what_it_can(first: tuple, second: tuple) -> None:
    members, topics = first
    found = assign_uniform(members, topics)
    again = assign_uniform([member._replace(before=found[member.member_id]) for member in members], topics)
    assert again == found
    changed_members, changed_topics = second
    moved = assign_uniform(
        [member._replace(before=found.get(member.member_id, {})) for member in changed_members], changed_topics
    )
    check(changed_members, changed_topics, moved)
    for one in changed_members:
        for other in changed_members:
            mine, theirs = list(pairs_of(moved[one.member_id])), list(pairs_of(moved[other.member_id]))
            if len(mine) > len(theirs) + 1:
                # Nothing that the richer has is wanted by the poorer.
                assert not any(lineage in other.topics for lineage, _ in mine)


@pytest.mark.parametrize("partitions", [9, 12, 30])
@pytest.mark.parametrize("newcomer", ["a", "c", "z"])
def test_a_newcomer_takes_no_more_than_its_share_and_nothing_else_moves(newcomer: str, partitions: int) -> None:
    topics = {TOPICS[0]: AssignedTopic(TOPICS[0], partitions)}
    wants = frozenset(TOPICS[:1])
    two = assign_uniform([Candidate("b", wants), Candidate("d", wants)], topics)
    three = assign_uniform(
        [Candidate("b", wants, two["b"]), Candidate("d", wants, two["d"]), Candidate(newcomer, wants)], topics
    )
    assert [len(list(pairs_of(three[name]))) for name in ("b", "d", newcomer)] == [partitions // 3] * 3
    for name in "bd":
        assert set(pairs_of(three[name])) <= set(pairs_of(two[name]))


def test_a_member_is_preferred_where_its_rack_has_a_replica() -> None:
    racks = (frozenset({"r1"}), frozenset({"r2"}), frozenset({"r1"}), frozenset({"r2"}))
    topics = {TOPICS[0]: AssignedTopic(TOPICS[0], 4, racks)}
    wants = frozenset(TOPICS[:1])
    found = assign_uniform([Candidate("a", wants, rack="r2"), Candidate("b", wants, rack="r1")], topics)
    assert found == {"a": {TOPICS[0]: frozenset({1, 3})}, "b": {TOPICS[0]: frozenset({0, 2})}}


def test_range_gives_the_same_numbers_of_every_topic() -> None:
    topics = {lineage: AssignedTopic(lineage, 5) for lineage in TOPICS[:2]}
    wants = frozenset(TOPICS[:2])
    found = assign_range([Candidate("b", wants), Candidate("a", wants)], topics)
    assert found["a"] == {lineage: frozenset({0, 1, 2}) for lineage in TOPICS[:2]}
    assert found["b"] == {lineage: frozenset({3, 4}) for lineage in TOPICS[:2]}
