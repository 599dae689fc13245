"""RELAY: a TCP proxy that cuts, stalls, delays or half-closes at a byte of one's choice.

Directions are seen from the client: `up` is client to server, `down` is server to client. A position counts the bytes
that were let through in that direction, over all connections of the relay, or since `arm`. Everything up to the
position is delivered before the fault happens, nothing behind it.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Direction = Literal["up", "down"]
Action = Literal["rst", "fin", "stall", "half_close", "delay"]

CHUNK = 65536


@dataclass(slots=True)
class Fault:
    """What happens at a position: `rst` and `fin` end every connection, `stall` keeps them open and lets nothing more
    pass in either direction, `half_close` ends one direction only, `delay` holds that direction up once for `delay_s`.
    """

    action: Action
    direction: Direction
    at: int
    delay_s: float = 0.0
    done: bool = False


@dataclass(eq=False, slots=True)
class _Link:
    """One client connection and the server connection behind it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    severed: bool = False
    gate: asyncio.Event | None = None
    kept: dict[Direction, bytearray] = field(default_factory=lambda: {"up": bytearray(), "down": bytearray()})

    def keep(self, direction: Direction, data: bytes) -> bool:
        """Whether what was read is held back; the end of a direction is too."""
        if self.gate is None or self.gate.is_set():
            return False
        self.kept[direction] += data
        return True

    def deliver(self) -> None:
        """Let go what was held, to whoever is still there."""
        assert self.gate is not None
        for direction, writer in (("up", self.server), ("down", self.client)):
            with contextlib.suppress(ConnectionError, OSError):
                writer.write(bytes(self.kept[direction]))
            self.kept[direction].clear()
        self.gate.set()

    def end(self, *, reset: bool) -> None:
        for writer in (self.client, self.server):
            if reset:
                _reset(writer)
            else:
                with contextlib.suppress(OSError):
                    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _delivered(writer: asyncio.StreamWriter) -> None:
    """Wait until the other side's kernel has what was written (at most a second): a reset would throw it away."""
    fd = writer.get_extra_info("socket").fileno()
    for _ in range(1000):
        unsent = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0" * 4))[0]
        if unsent == 0 and writer.transport.get_write_buffer_size() == 0:
            return
        await asyncio.sleep(0.001)


class Relay:
    """A relay to `target` on a loopback port, in a thread of its own; to be used as a context manager.

    With `keep_server=True` a cut is made towards the client only: the server's side stays open and silent, as it does
    when a cable is pulled.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1", *, keep_server: bool = False) -> None:
        self.target = (target_host, target_port)
        self.keep_server = keep_server
        self.port = 0
        self.connections = 0
        self.bytes_up = 0
        self.bytes_down = 0
        self.fired = threading.Event()
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._links: set[_Link] = set()
        self._stalled = False
        self._loop = asyncio.new_event_loop()
        self._flow: asyncio.Event | None = None
        self._watchers: list[Future[None]] = []
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    # What a test asks for, from any thread.

    def arm(
        self,
        *,
        at: int,
        direction: Direction,
        action: Action = "rst",
        delay_s: float = 0.0,
    ) -> None:
        """Let `at` more bytes pass in `direction`, counted from now, and then act once; `at=0` acts before the next."""
        with self._lock:
            base = self.bytes_up if direction == "up" else self.bytes_down
            self._faults.append(Fault(action, direction, base + at, delay_s))

    def cut_now(self, *, reset: bool = True) -> None:
        """End every connection now, by RST (or FIN); new ones are served as before."""
        self._call(self._cut(reset=reset))

    def stall(self) -> None:
        """Keep connections open, take new ones, and let nothing pass until `resume`."""
        self._call(self._set_stalled(stalled=True))

    def resume(self) -> None:
        """End a stall: what was held goes on."""
        self._call(self._set_stalled(stalled=False))

    def hold(self) -> None:
        """Hold back what comes on the connections that stand now, until `release`; new ones are served as before."""
        self._call(self._hold())

    def release(self) -> None:
        """Deliver what was held, also where its sender has left meanwhile: a request that was long on its way."""
        self._call(self._release())

    def act_when(self, seen: Callable[[], bool] | Path, action: Literal["rst", "fin", "stall"] = "rst") -> None:
        """Cut or stall as soon as `seen` answers true, or as soon as that path exists; looked at every millisecond."""
        exists = seen.exists if isinstance(seen, Path) else seen
        self._watchers.append(asyncio.run_coroutine_threadsafe(self._watch(exists, action), self._loop))

    def reset_counters(self) -> None:
        """Count from zero again, with no fault armed."""
        with self._lock:
            self._faults.clear()
            self.connections = self.bytes_up = self.bytes_down = 0
            self.fired.clear()

    # The relay's own thread.

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._flow = asyncio.Event()
        self._flow.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for link in list(self._links):
            link.end(reset=True)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._lock:
            self.connections += 1
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(writer)
            return
        for end in (writer, server_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(writer, server_writer)
        self._links.add(link)
        link.tasks = [
            asyncio.ensure_future(self._pump(link, "up", reader, server_writer)),
            asyncio.ensure_future(self._pump(link, "down", server_reader, writer)),
        ]
        await asyncio.gather(*link.tasks, return_exceptions=True)
        if link.severed:
            assert self._stop is not None
            await self._stop.wait()
        self._links.discard(link)
        link.end(reset=False)

    async def _pump(
        self, link: _Link, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert self._flow is not None
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                try:
                    data = await reader.read(CHUNK)
                except ConnectionError:
                    if not link.keep(direction, b""):
                        raise
                    data = b""
                if link.keep(direction, data):
                    if data:
                        continue
                    assert link.gate is not None
                    await link.gate.wait()
                while data:
                    await self._flow.wait()
                    piece, data = self._admit(direction, data)
                    if piece:
                        writer.write(piece)
                        await writer.drain()
                    if not await self._apply_due(direction, writer):
                        return
                if reader.at_eof():
                    break
            if not link.severed and writer.can_write_eof():
                writer.write_eof()

    def _admit(self, direction: Direction, data: bytes) -> tuple[bytes, bytes]:
        """Split data at the next position where something happens, and count the first part."""
        with self._lock:
            passed = self.bytes_up if direction == "up" else self.bytes_down
            ahead = [f.at - passed for f in self._faults if f.direction == direction and not f.done]
            size = max(0, min([len(data), *ahead]))
            if direction == "up":
                self.bytes_up += size
            else:
                self.bytes_down += size
        return data[:size], data[size:]

    async def _apply_due(self, direction: Direction, writer: asyncio.StreamWriter) -> bool:
        """Do what is due at this position; false when this direction is over."""
        assert self._flow is not None
        with self._lock:
            passed = self.bytes_up if direction == "up" else self.bytes_down
            due = [f for f in self._faults if f.direction == direction and not f.done and f.at <= passed]
            for fault in due:
                fault.done = True
        for fault in due:
            self.fired.set()
            match fault.action:
                case "rst" | "fin":
                    await _delivered(writer)
                    await self._cut(reset=fault.action == "rst")
                    return False
                case "stall":
                    await self._set_stalled(stalled=True)
                    await self._flow.wait()
                case "half_close":
                    writer.write_eof()
                    return False
                case "delay":
                    await asyncio.sleep(fault.delay_s)
        return True

    async def _cut(self, *, reset: bool) -> None:
        self.fired.set()
        for link in list(self._links):
            if self.keep_server:
                link.severed = True
                _reset(link.client)
            else:
                link.end(reset=reset)

    async def _set_stalled(self, *, stalled: bool) -> None:
        assert self._flow is not None
        if stalled:
            self._flow.clear()
        else:
            self._flow.set()

    async def _hold(self) -> None:
        for link in self._links:
            link.gate = asyncio.Event()

    async def _release(self) -> None:
        for link in self._links:
            if link.gate is not None:
                link.deliver()

    async def _watch(self, seen: Callable[[], bool], action: Literal["rst", "fin", "stall"]) -> None:
        while not seen():
            await asyncio.sleep(0.001)
        if action == "stall":
            self.fired.set()
            await self._set_stalled(stalled=True)
        else:
            await self._cut(reset=action == "rst")
