"""The program against an sshd, and the program against nothing at all."""

import socket
from pathlib import Path

import pytest

from tests.support.program import Program
from tests.support.sshd import Sshd


@pytest.fixture
def program(tmp_path: Path, sshd: Sshd) -> Program:
    """The program with everything of its own, and the accounts of the test's sshd as its hosts."""
    return Program(tmp_path, sshd.ssh_config_path)


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    """The program with one host, `nowhere`, at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "ssh_config"
    config.write_text(f"Host nowhere\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile /dev/null\n")
    return Program(tmp_path, config)
