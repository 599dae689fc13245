"""Fixtures for driving the guard as sshd does: a process of a given shell, and a store of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guard.rooms import Room
from tests.guard.wire import SHELLS, Store
from tests.support.tools import require_root, require_tool


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    require_tool(request.param)
    return request.param


@pytest.fixture
def store(tmp_path: Path, shell: str) -> Store:
    """A store for each shell; a test that asks for it runs under all of them."""
    return Store(tmp_path / ".sshop", shell)


@pytest.fixture
def dash(tmp_path: Path) -> Store:
    """A store for dash alone, where the shell does not matter."""
    return Store(tmp_path / ".sshop", "dash")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other accounts can reach and write; pytest closes its own to them."""
    path = Path(tempfile.mkdtemp(prefix="sshop-guard-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def room() -> Iterator[Callable[..., Room]]:
    """Makes private mount namespaces, and ends them."""
    require_root()
    rooms: list[Room] = []

    def make(script: str = "") -> Room:
        rooms.append(Room(script))
        return rooms[-1]

    yield make
    for made in rooms:
        made.close()
