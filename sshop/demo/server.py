"""A small SSH server on loopback that runs commands with the real `/bin/sh` and can be told to drop its clients.

Like sshd it starts each command in a session of its own and leaves it alone when the client goes away. Unlike sshd it
knows one key and needs no privilege.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncssh

HOST = "127.0.0.1"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Server:
    """One server in a thread of its own; to be used as a context manager. Keys are made for it and kept in memory, but
    for the client's, which `write_client_key` hands out.
    """

    def __init__(self, home: Path, user: str) -> None:
        self._home, self._user = home, user
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._client_key = asyncssh.generate_private_key("ssh-ed25519")
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def port(self) -> int:
        assert self._acceptor is not None
        return int(self._acceptor.get_port())

    @property
    def host_key(self) -> str:
        """The host key as `ssh-ed25519 AAAA…`."""
        return " ".join(self._host_key.export_public_key().decode().split()[:2])

    def write_client_key(self, path: Path) -> None:
        """The one private key that may log in, as a file for its owner only."""
        path.touch(mode=0o600)
        path.write_bytes(self._client_key.export_private_key())

    def __enter__(self) -> Self:
        self._thread.start()
        self._acceptor = self._wait(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(TimeoutError):
            self._wait(self._end(), 10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def cut(self) -> int:
        """Drop every connection without a word, as a dying line does; how many there were. Commands are not touched."""
        return int(self._wait(self._cut()))

    def _wait(self, work: Any, limit_s: float = 30) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    async def _listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            HOST,
            0,
            server_factory=lambda: _Guest(self._connections, self._command),
            server_host_keys=[self._host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(self._client_key.export_public_key().decode()),
            encoding=None,
            allow_pty=False,
            agent_forwarding=False,
        )

    def _command(self) -> _Command:
        environ = {
            "HOME": str(self._home),
            "USER": self._user,
            "LOGNAME": self._user,
            "SHELL": "/bin/sh",
            "PATH": _PATH,
        }
        return _Command(environ, self._tasks)

    async def _cut(self) -> int:
        found = list(self._connections)
        for connection in found:
            connection.abort()
        return len(found)

    async def _end(self) -> None:
        assert self._acceptor is not None
        self._acceptor.close()
        await self._cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


class _Guest(asyncssh.SSHServer):
    """One connection, held in the set while it lives."""

    def __init__(self, connections: set[asyncssh.SSHServerConnection], command: Callable[[], _Command]) -> None:
        self._connections, self._command = connections, command
        self._me: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._me = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the library's signature
        if self._me is not None:
            self._connections.discard(self._me)

    def session_requested(self) -> _Command:
        return self._command()


class _Command(asyncssh.SSHServerSession[bytes]):
    """One command, to its own end: a client that is gone ends its input, and that is all."""

    def __init__(self, environ: dict[str, str], tasks: set[asyncio.Task[None]]) -> None:
        self._environ, self._tasks = environ, tasks
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._line = ""
        self._early: list[bytes | None] = []  # what came before the child was there; None is the end

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        self._line = command
        return True

    def session_started(self) -> None:
        task = asyncio.get_running_loop().create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:  # noqa: ARG002 - the library's signature
        self._feed(data)

    def eof_received(self) -> bool:
        self._feed(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the library's signature
        self._feed(None)
        self._channel = None

    def _feed(self, data: bytes | None) -> None:
        if self._child is None:
            self._early.append(data)
            return
        assert self._child.stdin is not None
        if data is None:
            self._child.stdin.close()
        elif not self._child.stdin.is_closing():
            self._child.stdin.write(data)

    async def _run(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._child = child = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", self._line, stdin=pipe, stdout=pipe, stderr=pipe,
            cwd=self._environ["HOME"], env=self._environ, start_new_session=True,
        )  # fmt: skip
        early, self._early = self._early, []
        for data in early:
            self._feed(data)
        assert child.stdout is not None
        assert child.stderr is not None
        loop = asyncio.get_running_loop()
        pumps = [
            loop.create_task(self._pump(child.stdout, None)),
            loop.create_task(self._pump(child.stderr, asyncssh.EXTENDED_DATA_STDERR)),
        ]
        status = await child.wait()
        await asyncio.wait(pumps, timeout=0.2)
        for pump in pumps:
            pump.cancel()
        if self._channel is not None:
            self._channel.exit(status if status >= 0 else 128 - status)

    async def _pump(self, source: asyncio.StreamReader, datatype: int | None) -> None:
        while data := await source.read(65_536):
            if self._channel is not None:  # else read on: a command must not hang for want of a reader
                with contextlib.suppress(OSError, asyncssh.Error):
                    self._channel.write(data, datatype)
