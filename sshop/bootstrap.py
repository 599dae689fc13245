"""The composition root: the only place that names concrete classes."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sshop import config, errors
from sshop.core import identity
from sshop.core.operation import Account

# What only reads the ledger starts without asyncio, the policy and the transport.
if TYPE_CHECKING:
    from sshop.core.policy import Host, Policy
    from sshop.ports import Ledger, Limits, Process, Transport
    from sshop.transport.survey import Survey
    from sshop.world import World

DEFAULT_ROOT = "~/.sshop"


class SystemClock:
    def now(self) -> str:
        return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def milliseconds(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)


class SystemIds:
    """Random from the operating system. IDs of one process are minted in rising order of their time."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock

    def mint(self, prefix: str) -> str:
        return identity.mint(prefix, self._clock.milliseconds(), os.urandom(10))

    def nonce(self) -> str:
        return os.urandom(16).hex()

    def jitter(self) -> float:
        return int.from_bytes(os.urandom(6)) / 2**48


class SystemProcesses:
    def alive(self, pid: int, start: str, machine: str) -> bool | None:
        return config.process_alive(pid, start, machine)


class App:
    """What a command of the line needs, each made when it is first asked for."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        ledger: str | None = None,
        policies: str | None = None,
        creates: bool = True,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`creates` tells whether a ledger that was named and is not there is made; `notify` gets what people should
        know of how a ledger was found.
        """
        self._environ = environ
        self._creates, self._notify = creates, notify
        self._ledger_option, self._policies_option = ledger, policies
        self._ledger: Ledger | None = None
        self._policy: Policy | None = None
        self._transport: Transport | None = None

    @property
    def ledger_location(self) -> str:
        return config.ledger_location(self._environ, self._ledger_option)

    def ledger(self) -> Ledger:
        """Raises `LedgerError`."""
        if self._ledger is None:
            from sshop.ledger.sqlite import SqliteLedger

            location = self.ledger_location
            if "://" in location:
                raise errors.UsageError(f"{location.split('://')[0]} ledgers are not built yet", hint="--ledger FILE")
            named = self._ledger_option or self._environ.get("SSHOP_LEDGER")
            found = SqliteLedger.open(location, create=self._creates or not named)
            if found.notice is not None and self._notify is not None:
                self._notify(found.notice)
            self._ledger = found
        return self._ledger

    def policy(self) -> Policy:
        """Raises `UsageError`."""
        if self._policy is None:
            from sshop import catalogue

            folder = config.policies_folder(self._environ, self._policies_option)
            self._policy = catalogue.load(folder, config.cache_folder(self._environ))
        return self._policy

    def transport(self) -> Transport:
        if self._transport is None:
            from sshop.transport import SshTransport

            names = {host.name: host.address for host in self.policy().hosts.values() if host.address is not None}
            self._transport = SshTransport(environ=self._environ, names=names)
        return self._transport

    def account(self, word: str) -> tuple[Account, str]:
        """The account that a host argument names, and the folder of guard and store there. Raises `UsageError`."""
        host = self.policy().hosts.get(word)
        if host is None:
            return self.transport().resolve(word), DEFAULT_ROOT
        return self._named(host)

    def _named(self, host: Host) -> tuple[Account, str]:
        found = self.transport().resolve(host.name)
        account = Account(host.name, host.user or found.user, found.address, host.port or found.port)
        return account, host.root or DEFAULT_ROOT

    def me(self) -> Process:
        """Who we are. Raises `UsageError`."""
        return config.this_process(self._environ)

    def survey(self, host: str | None) -> Survey:
        """What of OpenSSH's files and agent is at hand. Raises `UsageError`, `HostKeyRefused`."""
        from sshop.transport.survey import survey

        named = None if host is None else self.policy().hosts.get(host)
        word = host if named is None else named.address or named.name
        return survey(word, ssh_config=self._environ.get("SSHOP_SSH_CONFIG") or None, environ=self._environ)

    def world(self, limits: Limits) -> World:
        from sshop.transport import guard
        from sshop.world import World

        clock = SystemClock()
        return World(
            ledger=self.ledger(),
            transport=self.transport(),
            clock=clock,
            ids=SystemIds(clock),
            processes=SystemProcesses(),
            me=self.me(),
            guard=guard.load(),
            limits=limits,
        )

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def fill_ledger(app: App, count: int, seed: int) -> int:
    """A synthetic history of `count` events in an empty ledger; how many events it has. Raises `UsageError`."""
    from sshop.ledger import fill

    return fill.fill(app.ledger(), count, seed=seed)
