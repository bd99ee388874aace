"""Handlers find what clients name through `broker/access` alone; their source shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tailrace.broker import handlers
from tailrace.broker.handlers import APIS
from tailrace.security.operations import ResourceType

FOLDER = Path(handlers.__path__[0])
#: What has a field `topics` of its own, and is no image.
MESSAGES = {"call", "group", "member", "request", "response", "result", "wanted"}
#: All topics, in which UpdateFeatures looks for what a downgrade would lose: no client names them.
ALL_TOPICS = "services.metadata"
#: Looks for what a client named among all that there is, and asks nobody whether it may.
FINDERS = {"find", "find_by_id"}


def offences(source: str, *, group_is_checked: bool) -> list[str]:
    """Where a handler looks up topics, partitions, groups or transactional ids by itself."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if (
            node.attr == "topics_by_id"
            or (node.attr == "topics" and owner not in MESSAGES | {ALL_TOPICS})
            or (node.attr in FINDERS and owner.endswith("partitions"))
            or (node.attr == "shard" and owner.endswith(("groups", "transactions")))
        ):
            found.append(f"{owner}.{node.attr}")
    if group_is_checked:
        # The router has checked the group of the request, and no other.
        calls = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        if "services.groups.shard(request.group_id)" in calls:
            found.remove("services.groups.shard")
    return found


def checks_group(module: str) -> bool:
    """Whether the API of a module needs something on the group of its request."""
    apis = {api.handle.__module__.rpartition(".")[2]: api for api in APIS.values()}
    api = apis.get(module)
    return api is not None and any(need.is_whole and need.resource_type is ResourceType.GROUP for need in api.needs)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_no_handler_looks_up_what_a_client_named_by_itself(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), group_is_checked=checks_group(path.stem)) == []


@pytest.mark.parametrize(
    "source",
    [
        "topic = services.metadata.image.topics.get(name)",
        "topics = view.image.topics",
        "for topic in before.topics.values(): pass",
        "topic = image.topics_by_id[topic_id]",
        "find = services.partitions.find_by_id",
        "partition = services.partitions.find(topic, 0)",
        "shard = services.groups.shard(group_id)",
        "shard = services.transactions.shard(transactional_id)",
    ],
)
def test_a_look_up_is_noticed(source: str) -> None:
    assert offences(source, group_is_checked=False)


def test_only_the_group_that_the_router_checked_may_be_looked_up() -> None:
    assert not offences("shard = services.groups.shard(request.group_id)", group_is_checked=True)
    assert offences("shard = services.groups.shard(request.group_id)", group_is_checked=False)
    assert offences("shard = services.groups.shard(other)", group_is_checked=True)
    twice = "services.groups.shard(request.group_id)\nservices.groups.shard(other)"
    assert offences(twice, group_is_checked=True)
