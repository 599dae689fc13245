"""What of OpenSSH's own files and agent is at hand here, for a person who wonders why a host does not answer."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from sshop.core.value import Value
from sshop.transport import client_config
from sshop.transport.credentials import agent_path
from sshop.transport.known_hosts import read_trust
from sshop.transport.words import parse_host


class Survey(Value):
    """Paths as they are used. `known` is the number of host keys and authorities known for the host that was named,
    None where none was; `agent` the agent's socket, and `agent_fault` what is wrong with it.
    """

    config_files: tuple[str, ...]
    known_hosts: tuple[str, ...]
    known: int | None
    identities: tuple[str, ...]
    agent: str | None
    agent_fault: str | None


def survey(host: str | None, *, ssh_config: str | None, environ: Mapping[str, str]) -> Survey:
    """Look, without network and without asking the agent.

    Raises `UsageError` for a configuration that cannot be read, and `HostKeyRefused` for such a known_hosts.
    """
    found = client_config.look_up(parse_host(host or "localhost"), file=ssh_config, environ=environ)
    known = read_trust(found)
    socket = agent_path(found, environ)
    files = (*found.user_known_hosts, *found.global_known_hosts)
    return Survey(
        config_files=found.files,
        known_hosts=tuple(path for path in files if os.path.isfile(path)),  # noqa: PTH113 - as given
        known=None if host is None else len(known.entries) + len(known.portless),
        identities=tuple(path for path in found.identities if os.path.isfile(path)),  # noqa: PTH113
        agent=socket,
        agent_fault=None if socket is None else _fault(socket),
    )


def _fault(socket: str) -> str | None:
    try:
        mode = os.stat(socket).st_mode  # noqa: PTH116
    except OSError as error:
        return error.strerror
    return None if stat.S_ISSOCK(mode) else "it is no socket"
