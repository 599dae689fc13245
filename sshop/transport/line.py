"""The line on which SSH speaks: a TCP connection, or the two ends of a ProxyCommand. No SSH in here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO, Generic, Protocol, TypeVar

from sshop.errors import HostUnreachable
from sshop.transport.client_config import HostConfig
from sshop.transport.guard import show_noise

_ENDING = 0.5


async def open_tcp(config: HostConfig) -> socket.socket:
    """A connected socket to the host, the addresses tried one after another.

    Raises `HostUnreachable`.
    """
    loop = asyncio.get_running_loop()
    place = f"{config.address} port {config.port}"
    try:
        addresses = _numeric(config) or await loop.getaddrinfo(
            config.address, config.port, family=config.family, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        hint = "a host is a name of hosts.yaml, an alias of the OpenSSH configuration, or a name that resolves here"
        raise HostUnreachable(f"{place}: the name cannot be resolved: {why}", hint=hint) from error
    failures: list[str] = []
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            if config.bind_address:
                sock.bind((config.bind_address, 0))
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            why = os.strerror(error.errno) if error.errno else error
            failures.append(f"{address[0]}: {why}")
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    hint = "is the host up, does its sshd listen there, is the way open? HostName and Port name address and port"
    raise HostUnreachable(f"{place}: cannot connect: {', '.join(dict.fromkeys(failures))}", hint=hint)


def _numeric(config: HostConfig) -> list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    """An address that needs no resolver, and so no thread for it."""
    for family in (socket.AF_INET, socket.AF_INET6):
        if config.family in (family, socket.AF_UNSPEC):
            with contextlib.suppress(OSError):
                socket.inet_pton(family, config.address)
                end = (config.address, config.port)
                six = (*end, 0, 0)
                # named as TCP: only then does asyncio switch off Nagle's algorithm, which costs 40 ms a time
                return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", end if family == socket.AF_INET else six)]
    return []


class ProxyCommand:
    """A running ProxyCommand. Our end of it is `sock`; its standard error is kept for messages."""

    def __init__(self, command: str, environ: Mapping[str, str]) -> None:
        self.sock, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        shell = environ.get("SHELL") or "/bin/sh"
        try:
            # the user's own configuration asks for it, in these words; ssh gives it to the same shell
            self._process = subprocess.Popen(  # noqa: S603
                [shell, "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                env=dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            self.sock.close()
            self._errors.close()
            raise HostUnreachable(f"the ProxyCommand cannot be started: {error.strerror}: {shell}") from error
        finally:
            theirs.close()
        self.sock.setblocking(False)

    def said(self) -> str:
        """What it printed on standard error so far."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        return show_noise(self._errors.read(65536))

    def end(self) -> None:
        """Tell it to leave."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGHUP)

    def kill(self) -> None:
        """Make it go, at once."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.sock.close()
        self._errors.close()

    async def reap(self) -> None:
        """Tell it to leave, and make it go where it does not."""
        try:
            self.end()
            for _ in range(int(_ENDING / 0.01)):
                if self._process.poll() is not None:
                    return
                await asyncio.sleep(0.01)
        finally:
            self.kill()


class Jump(Protocol):
    """A jump host's connection."""

    async def close(self) -> None: ...


J = TypeVar("J", bound=Jump)


class Way(Generic[J]):
    """How the bytes get there: through a jump host, by a ProxyCommand, or over TCP."""

    def __init__(self, *, opening: asyncio.Future[socket.socket] | None = None) -> None:
        self.opening = opening
        self.jump: J | None = None
        self.proxy: ProxyCommand | None = None

    async def dial(self, config: HostConfig, environ: Mapping[str, str]) -> socket.socket | None:
        """A fresh socket, to be closed by whoever takes it; None where a jump host carries the bytes."""
        if self.jump is not None:
            return None
        if config.proxy_command:
            self.proxy = ProxyCommand(config.proxy_command, environ)
            return self.proxy.sock
        opening, self.opening = self.opening, None
        return await (opening or open_tcp(config))

    async def end_proxy(self) -> str:
        """End the ProxyCommand; what it said."""
        proxy, self.proxy = self.proxy, None
        if proxy is None:
            return ""
        said = proxy.said()
        await proxy.reap()
        return said

    async def close(self) -> None:
        if self.opening is not None:
            self.opening.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else done.result().close()
            )
            self.opening.cancel()
        if self.proxy is not None:
            self.proxy.kill()
        if self.jump is not None:
            await self.jump.close()
