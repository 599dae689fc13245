"""A guard's channel: bytes out, bytes in, and whether the line still stands. Knows no SSH library.

The far side's exit status is not even kept: it is evidence of nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sshop.errors import LinkIdle, LinkLost

NOISE_LIMIT = 65536
_HIGH, _LOW = 1 << 20, 1 << 18
_PIECE = 1 << 18
_ENDING = 1.0


class Raw(Protocol):
    """The SSH library's channel, as far as it is used here."""

    def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


class GuardChannel:
    """The port's `Channel`. The methods whose names end in `_received`, `_lost` and `_writing` are called by the SSH
    library.
    """

    def __init__(self, *, idle: float, is_down: Callable[[], str | None]) -> None:
        self._idle = idle
        self._is_down = is_down
        self._raw: Raw | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._noise = bytearray()
        self._reading_paused = self._ended = self._closed = self._discards = False
        self._lost: LinkLost | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # What the port promises.

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            self._raise_if_lost()
            if self._closed or self._raw is None:
                return
            try:
                self._raw.write(data[start : start + _PIECE])
            except OSError:
                # the far side closed it meanwhile, or the line is down: `receive` tells which
                break
            await self._writable.wait()
        self._raise_if_lost()

    async def receive(self) -> bytes:
        if not self._pieces and not self._ended and self._lost is None:
            self._readable.clear()
            try:
                async with asyncio.timeout(self._idle or None):
                    await self._readable.wait()
            except TimeoutError:
                raise LinkIdle(f"nothing came from the host for {self._idle:g} s") from None
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            if self._reading_paused and self._raw is not None:
                self._reading_paused = False
                self._raw.resume_reading()
            return data
        if not self._ended:
            self._raise_if_lost()
        return b""

    def finish(self) -> None:
        """Send end of file; reading goes on."""
        if self._raw is not None:
            self._raw.write_eof()

    def noise(self) -> bytes:
        return bytes(self._noise)

    async def close(self) -> None:
        raw, self._discards = self._raw, True
        if raw is None:
            return
        try:
            raw.write_eof()
            raw.resume_reading()
            if not self._closed:
                async with asyncio.timeout(_ENDING):
                    await raw.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            # nothing is awaited here: a cancelled clean-up ends at once
            self.drop()

    def drop(self) -> None:
        """Close without waiting for anything."""
        raw, self._raw, self._closed = self._raw, None, True
        if raw is not None:
            raw.close()
        self._lost = self._lost or LinkLost("the channel was closed here")
        self._wake()

    # What the SSH library calls.

    def connection_made(self, raw: Raw) -> None:
        self._raw = raw

    def data_received(self, data: bytes, *, is_noise: bool) -> None:
        if self._discards:
            return
        if is_noise:
            self._noise += data[: NOISE_LIMIT - len(self._noise)]
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _HIGH and not self._reading_paused and self._raw is not None:
            self._reading_paused = True
            self._raw.pause_reading()
        self._readable.set()

    def eof_received(self) -> None:
        self._ended = True
        self._readable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if error is not None:
            self._lose(str(error) or type(error).__name__)
        else:
            # the library says "closed" of a channel and of a whole connection alike, and knows which a moment later
            asyncio.get_running_loop().call_soon(self._settle)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _settle(self) -> None:
        why = self._is_down()
        if why is not None:
            self._lose(why)
        else:
            self._ended = True
            self._wake()

    def _lose(self, why: str) -> None:
        self._lost = self._lost or LinkLost(f"the connection ended: {why}")
        self._wake()

    def _wake(self) -> None:
        self._readable.set()
        self._writable.set()

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise LinkLost(self._lost.message) from self._lost
