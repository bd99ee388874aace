from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.stores import KINDS, RunningKinds, Stores, kinds_that
from tests.contract.world import WORLDS, World, make_world


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from make_world(request.param, tmp_path)


@pytest.fixture(scope="session")
def running_kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKinds]:
    """The stores that run for all tests."""
    kinds = RunningKinds(lambda name: tmp_path_factory.mktemp(f"store-{name}"))
    yield kinds
    kinds.shutdown()


@pytest.fixture(params=list(KINDS))
def stores(request: pytest.FixtureRequest, running_kinds: RunningKinds, tmp_path: Path) -> Stores:
    """A new store of each kind."""
    return running_kinds.get(request.param).new(tmp_path)


@pytest.fixture(params=kinds_that(lambda kind: kind.is_shared))
def shared_stores(request: pytest.FixtureRequest, running_kinds: RunningKinds, tmp_path: Path) -> Stores:
    """A new store of each kind that several processes can share."""
    return running_kinds.get(request.param).new(tmp_path)


@pytest.fixture(params=kinds_that(lambda kind: kind.can_be_cut))
def breakable_stores(request: pytest.FixtureRequest, running_kinds: RunningKinds, tmp_path: Path) -> Stores:
    """A new store of each kind whose clients can be cut off; the first one is."""
    made = running_kinds.get(request.param).new(tmp_path)
    made.is_cut_off = True
    return made


@pytest.fixture(params=kinds_that(lambda kind: kind.can_restart))
def restarting_stores(request: pytest.FixtureRequest, running_kinds: RunningKinds, tmp_path: Path) -> Stores:
    """A new store of each kind whose servers can be killed and started again."""
    return running_kinds.get(request.param).new(tmp_path)
