"""How sshop reaches a host: over SSH, with OpenSSH's own files.

`SshTransport` is the port's implementation. Naming a host needs no SSH library, which takes a sixth of a second to
import: it comes in with the first connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sshop.core.operation import Account
from sshop.ports import Limits
from sshop.transport import client_config, known_hosts
from sshop.transport.words import HostWord, parse_host

if TYPE_CHECKING:
    import asyncio
    import socket

    from sshop.transport.ssh import SshConnection


class SshTransport:
    """Connections over SSH.

    `ssh_config` is read in place of the user's and the system's OpenSSH configuration, as by `ssh -F`; without it the
    variable SSHOP_SSH_CONFIG is asked. `names` are host words of our own, each with the word that the OpenSSH
    configuration knows it by. `pinned` gives the only host keys (`ssh-ed25519 AAAA…` or `SHA256:…`) that are good for a
    host word, whatever known_hosts says.
    """

    def __init__(
        self,
        *,
        ssh_config: Path | str | None = None,
        environ: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        pinned: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._ssh_config = ssh_config or self._environ.get("SSHOP_SSH_CONFIG") or None
        self._names = names or {}
        self._pinned = pinned or {}

    def resolve(self, host: str) -> Account:
        """The account that `alias` or `[user@]host[:port]` names in the OpenSSH configuration.

        Raises `UsageError`.
        """
        found = self._look_up(self._parse(host))
        return Account(host, found.user, found.address, found.port)

    async def connect(self, account: Account, limits: Limits) -> SshConnection:
        """A logged-in connection. The account's user, address and port win over what the configuration says now.

        Raises a `NotSent`, or `UsageError` for a configuration that cannot be read.
        """
        word = self._parse(account.host)
        found = self._look_up(HostWord(word.name, account.user, account.port), account.address)
        pinned = self._pinned.get(account.host)
        trust = known_hosts.read_trust(found, None if pinned is None else tuple(pinned))
        opening: asyncio.Future[socket.socket] | None = None
        if not found.proxy_jump and not found.proxy_command:
            opening = await _set_out(found)
        from sshop.transport import ssh

        return await ssh.connect(found, limits, self._look_up, self._environ, trust=trust, opening=opening)

    def _parse(self, host: str) -> HostWord:
        return parse_host(self._names.get(host, host))

    def _look_up(self, word: HostWord, address: str | None = None) -> client_config.HostConfig:
        return client_config.look_up(word, address=address, file=self._ssh_config, environ=self._environ)


async def _set_out(found: client_config.HostConfig) -> asyncio.Future[socket.socket]:
    """A TCP connection on its way: sshd forks and greets while the SSH library is imported."""
    import asyncio

    from sshop.transport import line

    opening = asyncio.ensure_future(line.open_tcp(found))
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        opening.cancel()
        raise
    return opening
