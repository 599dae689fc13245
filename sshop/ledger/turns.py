"""A fair queue before the database's write lock.

SQLite's busy handler sleeps longer the longer it has waited, so that a latecomer overtakes whoever waits: with eight
writers one waited for seconds. flock(2) wakes those who wait in their order, but one who has just released a lock
takes it again before anyone has woken. So there are two locks: who wants a turn holds the door until the turn is his,
and whoever comes back queues before the door.

The queue is a courtesy. What keeps two writers apart is BEGIN IMMEDIATE; where flock does not work, or a file for it
cannot be had, there is no queue, and nothing else changes.
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType
from typing import TYPE_CHECKING

from sshop import errors
from sshop.ledger.driver_errors import shown

if TYPE_CHECKING:
    import threading


class Turns:
    """`with turns:` is one turn. Raises `LedgerLocked` when it has not come after `wait` seconds."""

    def __init__(self, ledger: str, wait: float) -> None:
        self._ledger = ledger
        self._wait = wait
        self._door: int | None = None
        self._turn: int | None = None
        self._opened = False

    def __enter__(self) -> None:
        if not self._opened:
            self._open()
        if self._door is None or self._turn is None:
            return
        try:
            fcntl.flock(self._door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._door, fcntl.LOCK_UN)
        except BlockingIOError:
            self._queue(self._door, self._turn)
        except OSError:
            self._drop()

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        self._drop()
        self._opened = False

    def _open(self) -> None:
        self._opened = True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._door = os.open(f"{self._ledger}-door", flags, 0o600)
            self._turn = os.open(f"{self._ledger}-turn", flags, 0o600)
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Closing a file gives its lock back."""
        for descriptor in (self._door, self._turn):
            if descriptor is not None:
                os.close(descriptor)
        self._door = self._turn = None

    def _queue(self, door: int, turn: int) -> None:
        import threading

        # A thread waits, for flock has no time limit, and a process that was stopped during its turn would hold all
        # others for ever. Who gives up leaves the files to the thread, which gives back what it gets too late.
        waiting = _Waiting(threading.Lock(), threading.Lock())

        def take() -> None:
            try:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(turn, fcntl.LOCK_EX)
                fcntl.flock(door, fcntl.LOCK_UN)
            except OSError:
                waiting.failed = True
            if not waiting.finish():
                os.close(door)
                os.close(turn)

        threading.Thread(target=take, name="sshop-ledger-turn", daemon=True).start()
        try:
            waiting.done.acquire(timeout=self._wait)
        finally:
            if not waiting.settle():
                self._door = self._turn = None
                self._opened = False
        if not waiting.finished:
            raise errors.LedgerLocked(
                f"ledger {shown(self._ledger)} stayed locked by another process for {self._wait:g} s",
                hint="see which process holds it open, then try again",
            )
        if waiting.failed:
            self._drop()


class _Waiting:
    """What the thread that waits and the one that waits for it agree on: exactly one of them comes first."""

    __slots__ = ("_agree", "_left", "done", "failed", "finished")

    def __init__(self, agree: threading.Lock, done: threading.Lock) -> None:
        self._agree = agree
        self._left = False
        self.finished = False
        self.failed = False
        self.done = done
        self.done.acquire()

    def finish(self) -> bool:
        """The lock is there; False where nobody waits for it any more."""
        with self._agree:
            self.finished = not self._left
        self.done.release()
        return self.finished

    def settle(self) -> bool:
        """Stop waiting; False where the lock is not there, and is now the thread's to give back."""
        with self._agree:
            self._left = not self.finished
        return self.finished
