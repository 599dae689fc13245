"""One talk with a guard over a channel: the order of the lines, and nothing of what they mean.

`Line` is a connection to one account, made when it is first needed and made anew after it was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sshop import errors
from sshop.core import protocol
from sshop.core.operation import Account
from sshop.core.protocol import Frame, Hello, Request
from sshop.ports import Channel, Connection, Limits, Transport

CHUNK = 65_536


class Line:
    """A connection to one host account, and the guard that is spoken to over it."""

    def __init__(self, transport: Transport, account: Account, limits: Limits, guard: bytes, root: str) -> None:
        self.account = account
        self.limits = limits
        self._transport = transport
        self._guard = guard
        self._root = root
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> Connection:
        """Raises a `NotSent`."""
        async with self._connecting:
            if self._connection is None:
                self._connection = await self._transport.connect(self.account, self.limits)
            return self._connection

    async def channel(self, *, install: bool) -> Channel:
        """A channel with the guard started. Raises a `NotSent`; a connection that is gone is dropped."""
        connection = await self.connect()
        try:
            return await connection.open_guard(self._guard, self._root, install=install)
        except errors.ConnectTimeout:
            self.drop()  # a connection that opens no channel in time is dead, or as good as that
            raise
        except errors.LinkLost as lost:
            self.drop()
            raise errors.HostUnreachable(
                f"the connection to {self.account.key} ended before anything was sent: {lost}"
            ) from lost

    @property
    def host_key(self) -> str | None:
        return self._connection.host_key if self._connection else None

    @property
    def authority_ref(self) -> str | None:
        return self._connection.authority_ref if self._connection else None

    def drop(self) -> None:
        """Forget the connection without a word: it is dead, or not to be trusted any more."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class Conversation:
    """A request and its answer. `begin`, then `spool`, then `go`, then `frames`, in this order."""

    def __init__(self, line: Line, request: Request) -> None:
        self._line = line
        self._request = request
        self._channel: Channel | None = None
        self._reader = protocol.Reader(request.nonce)
        self._ready: list[Frame] = []
        self._sent = [protocol.head(request)]
        self._early = b""

    @property
    def noise(self) -> str:
        parts = [self._reader.noise]
        if self._channel is not None:
            parts.append(self._channel.noise().decode("utf-8", "backslashreplace").strip())
        return "\n".join(part for part in parts if part)

    async def begin(self, *, install: bool | None = None) -> Hello | Frame:
        """The guard's first line, or the `no` with which it refused before it. A guard that is missing is installed
        once; `install` says that it is, or is not, to be installed this time.

        Raises a `NotSent`: nothing that could act was sent.
        """
        for put in (False, True) if install is None else (install,):
            try:
                self._channel = await self._line.channel(install=put)
                frame = await asyncio.wait_for(self._first_frame(), self._line.limits.login)
                if frame is not None:
                    return frame if frame.word == "no" else protocol.hello(frame)
            except TimeoutError:
                await self.close()
                raise errors.ConnectTimeout(
                    f"the guard on {self._line.account.key} said nothing within {self._line.limits.login:g} s"
                    + self._quoted_noise()
                ) from None
            except errors.LinkLost as lost:
                text = self._quoted_noise()
                self._line.drop()
                raise errors.HostUnreachable(
                    f"the connection to {self._line.account.key} ended before anything was dispatched: {lost}{text}"
                ) from lost
            except errors.ProtocolError:
                if put or install is not None:
                    raise  # a guard that speaks otherwise is no guard of ours; where it may, it is put there anew
            if put or install is not None:
                break
            await self.close()
            self._reader = protocol.Reader(self._request.nonce)
        text = self._quoted_noise()
        await self.close()
        raise errors.GuardUnreachable(
            f"the guard on {self._line.account.key} was not reached; nothing ran{text}",
            hint="the account needs a POSIX shell, a home folder that can be written, and no forced command",
        )

    def _quoted_noise(self) -> str:
        noise = self.noise
        return f"; the host printed: {noise[:2000]}" if noise else ""

    async def _first_frame(self) -> Frame | None:
        assert self._channel is not None
        with contextlib.suppress(errors.LinkLost):
            # A far side that is no guard may end before it reads; what it printed is still to be read.
            await self._channel.send(self._sent[0])
        return await self._next()

    async def _next(self) -> Frame | None:
        """The next frame, None at the end of the stream. Raises `LinkLost`, `ProtocolError`."""
        assert self._channel is not None
        while not self._ready:
            data = await self._channel.receive()
            if not data:
                return None
            self._ready = self._reader.feed(data)
        return self._ready.pop(0)

    async def spool(self) -> Frame | None:
        """Send the secrets and standard input, and wait until it is spooled whole; a `no` is handed back.

        Raises `LinkLost`, `InputUnavailable` (standard input is not at hand).
        """
        assert self._channel is not None
        stdin = self._request.command.stdin if self._request.command and self._request.verb == "run" else None
        self._early = protocol.rest(self._request)
        self._sent.append(self._early)
        if stdin is None:
            return None
        if stdin.data is None:
            raise errors.InputUnavailable(
                "the standard input of the operation is not at hand", hint="give it again with --stdin FILE"
            )
        header = protocol.stdin_header(stdin.length)
        self._sent.append(header)
        await self._channel.send(self._early + header)
        self._early = b""
        data = memoryview(stdin.data.value)
        for start in range(0, len(data), CHUNK):
            await self._channel.send(bytes(data[start : start + CHUNK]))
        frame = await self._next()
        if frame is None:
            raise errors.LinkLost("the guard ended while it spooled standard input")
        return frame if frame.word == "no" else None

    async def go(self) -> None:
        """Hand over the line that makes the guard act. From here on only a framed answer is evidence."""
        assert self._channel is not None
        await self._channel.send(self._early + protocol.go(*self._sent))

    async def frames(self) -> AsyncIterator[list[Frame]]:
        """The answer's frames, those that came together as one list, up to and with `end`.

        Raises `LinkLost` where the answer was cut, and `ProtocolError`.
        """
        assert self._channel is not None
        while True:
            batch, self._ready = self._ready, []
            if batch:
                yield batch
                if batch[-1].word == "end":
                    return
            data = await self._channel.receive()
            if not data:
                raise errors.LinkLost("the answer ended before its end")
            self._ready = self._reader.feed(data)

    async def acknowledge(self) -> bool:
        """Tell the guard, which still listens, that its result is safe. Never raises."""
        assert self._channel is not None
        try:
            await self._channel.send(b"ack\n")
            frame = await asyncio.wait_for(self._next(), 2)
        except (errors.LinkLost, errors.ProtocolError, TimeoutError):
            return False
        return frame is not None and frame.word == "acked"

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    def leave(self) -> None:
        """Go away without waiting for anything; the host goes on."""
        self._channel = None
