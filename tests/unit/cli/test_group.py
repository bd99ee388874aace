"""`tailrace group`: what command lines mean, and which are refused before any broker is asked."""

from __future__ import annotations

import pytest
from click import BadParameter
from click.testing import CliRunner

from tailrace.cli.group import TargetType, TopicScopeType
from tailrace.cli.main import cli
from tailrace.client import ClientError, UnknownTopicError
from tailrace.client.offset_resets import AllTopics, Given, OffsetChange, SomeTopics, from_csv, to_csv

RESET = ["group", "reset-offsets", "billing"]
PARTITIONS = {"orders": 3, "bills": 1}


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("orders", ("orders", None)),
        ("orders:2", ("orders", (2,))),
        ("orders:0,2, 1,0", ("orders", (0, 2, 1))),
    ],
)
def test_a_topic_may_name_its_partitions(text: str, meaning: object) -> None:
    assert TopicScopeType().convert(text, None, None) == meaning


@pytest.mark.parametrize("text", [":1", "orders:", "orders:a", "orders:-1", "orders:1,,2", "orders:99999999999"])
def test_what_is_no_list_of_partitions_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        TopicScopeType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "meaning"), [("earliest", "earliest"), ("LATEST", "latest"), ("current", "current"), ("42", 42), ("0", 0)]
)
def test_a_target_is_a_word_or_an_offset(text: str, meaning: object) -> None:
    assert TargetType().convert(text, None, None) == meaning


@pytest.mark.parametrize("text", ["soon", "-1", "4.2", "9223372036854775808"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="neither earliest"):
        TargetType().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Give exactly one of --to, --to-datetime, --by-duration, --shift, --from-file; none was given."),
        (["--to", "1", "--shift", "2"], "--to and --shift were given."),
        (["--to", "earliest"], "Choose the partitions"),
        (["--to", "earliest", "--all-topics", "--topic", "orders"], "Choose the partitions"),
        (["--to", "1", "--topic", "orders:1", "--topic", "orders:2"], "gives 'orders' twice"),
        (["--to", "1", "--all-topics", "--execute", "--dry-run"], "Give only one of --execute"),
        (["--to", "1", "--all-topics", "--execute", "--export"], "Give only one of --execute"),
        (["--to", "1", "--all-topics", "--export", "--json"], "prints CSV"),
        (["--by-duration", "soon", "--all-topics"], "not a duration"),
        (["--to-datetime", "yesterday", "--all-topics"], "neither milliseconds"),
        (["--from-file", "-", "--all-topics"], "The file names the partitions"),
        (["--from-file", "/nowhere/offsets.csv"], "No such file"),
    ],
)
def test_a_reset_that_says_too_little_or_too_much_is_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(cli, [*RESET, *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("arguments", [["--state", "asleep"], ["--type", "share"]])
def test_states_and_types_that_no_group_has_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["group", "list", *arguments]).exit_code == 2


def test_all_topics_are_those_of_the_group_with_all_their_partitions() -> None:
    committed = [("orders", 1), ("gone", 0), ("bills", 0)]
    assert AllTopics().places(committed, PARTITIONS) == [("bills", 0), ("orders", 0), ("orders", 1), ("orders", 2)]


def test_named_topics_and_partitions_have_to_exist() -> None:
    assert SomeTopics({"orders": (2, 0), "bills": None}).places([], PARTITIONS) == [
        ("orders", 2),
        ("orders", 0),
        ("bills", 0),
    ]
    with pytest.raises(UnknownTopicError, match="topic 'gone' does not exist"):
        SomeTopics({"gone": None}).places([], PARTITIONS)
    with pytest.raises(UnknownTopicError, match="has no partition 3; it has 3"):
        SomeTopics({"orders": (3,)}).places([], PARTITIONS)


def test_what_is_exported_is_what_a_file_gives_back() -> None:
    changes = [OffsetChange("orders", 2, None, 7), OffsetChange("bills", 0, 5, 0, asked=-3)]
    text = to_csv(changes)
    assert text == "orders,2,7\nbills,0,0\n"
    assert from_csv(text, "plan.csv") == Given({("orders", 2): 7, ("bills", 0): 0})


def test_a_file_may_have_quotes_comments_and_empty_lines() -> None:
    given = from_csv('# saved on Monday\n\n"orders",0,5\r\norders, 1, 6\n', "plan.csv")
    assert given == Given({("orders", 0): 5, ("orders", 1): 6})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("orders,0\n", "line 1: expected topic,partition,offset but found orders,0"),
        ("orders,0,1\norders,one,1\n", "line 2: partition and offset must be numbers, not one and 1"),
        ("orders,0,-1\n", "line 1: orders,0,-1 has no topic, or a number below 0"),
        (",0,1\n", "has no topic"),
        ("orders,0,1\norders,0,2\n", "line 2: orders-0 appears twice"),
        ("# nothing\n", "has no offsets"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_by_line(text: str, complaint: str) -> None:
    with pytest.raises(ClientError, match=complaint):
        from_csv(text, "plan.csv")
