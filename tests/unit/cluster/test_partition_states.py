"""Who makes and changes the state of a partition, looked up in the source of the whole package."""

from __future__ import annotations

import ast
from pathlib import Path

import tailrace

SOURCES = Path(tailrace.__file__).parent


def calls() -> list[tuple[str, str, frozenset[str | None]]]:
    """Every call: the module, the name of what is called and the names of its keyword arguments."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                keywords = frozenset(keyword.arg for keyword in node.keywords)
                found.append((path.relative_to(SOURCES).as_posix(), name, keywords))
    return found


def test_the_state_of_a_partition_is_made_when_it_is_created_or_read_and_replaced_otherwise() -> None:
    """Whatever builds a state from the fields that it knows loses those that are added later."""
    makers = {module for module, name, _ in calls() if name == "PartitionState"}
    # The client's class of that name describes a partition to people.
    assert makers == {"cluster/image.py", "cluster/placement.py", "client/admin.py"}


def test_leaders_are_written_by_decisions_and_their_parts_only() -> None:
    writers = {
        module
        for module, name, keywords in calls()
        if name == "replace" and not keywords.isdisjoint({"leader", "leader_epoch"})
    }
    # Brokers that are broken on purpose break this rule, too.
    assert writers == {"cluster/decisions.py", "cluster/leaders.py", "testing/cluster/mutations.py"}
