"""The program against an sshd, and the program against nothing at all."""

import socket
from pathlib import Path

import pytest

from tests.support.program import Program
from tests.support.sshd import Sshd


@pytest.fixture
def program(tmp_path: Path, sshd: Sshd) -> Program:
    """The program with everything of its own, and the accounts of the test's sshd as its hosts."""
    return at_home(Program(tmp_path, sshd.ssh_config_path))


def at_home(program: Program) -> Program:
    """With the ledger where it stands when nothing is said: there it is made by whoever comes first."""
    del program.environ["SSHOP_LEDGER"]
    program.ledger = Path(program.environ["HOME"]) / ".local" / "state" / "sshop" / "ledger.sqlite"
    program.ledger.parent.mkdir(parents=True, exist_ok=True)
    return program


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    """The program with one host, `nowhere`, at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "ssh_config"
    config.write_text(f"Host nowhere\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile /dev/null\n")
    return at_home(Program(tmp_path, config))
