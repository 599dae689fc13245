"""Fixtures that more than one room of tests uses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.counter import Counter
from tests.support.relay import Relay
from tests.support.sample import settle_seed
from tests.support.sshd import Sshd


def pytest_configure(config: pytest.Config) -> None:
    settle_seed()


def pytest_report_header(config: pytest.Config) -> str:
    return f"sample seed: SSHOP_SEED={settle_seed()}"


@pytest.fixture(scope="session")
def sshd_of_session() -> Iterator[Sshd]:
    """One server for all tests of a worker process; ask for `sshd` instead."""
    with Sshd() as server:
        yield server


@pytest.fixture
def sshd(sshd_of_session: Sshd) -> Iterator[Sshd]:
    """A real sshd with an account for each login shell; homes empty, nothing running."""
    sshd_of_session.reset()
    yield sshd_of_session
    sshd_of_session.end_sessions()


@pytest.fixture
def relay(sshd: Sshd) -> Iterator[Relay]:
    """A faulty line to that sshd; `sshd.write_ssh_config(relay.port)` makes a configuration that goes through it."""
    with Relay(sshd.port) as line:
        yield line


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    """A counter for commands that run as whoever runs the tests."""
    return Counter(tmp_path / "count")
