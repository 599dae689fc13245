"""What the runner needs of the world: ledger, transport, clock and IDs, and what each promises.

Every implementation passes the contract suite of its port (`tests/contract/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from sshop.core.events import Draft, Event
from sshop.core.operation import Account, Operation
from sshop.core.value import Value, fields_of


class StoreSeen(Value):
    """What this ledger knows of the marker store of one host account.

    `witness_minted` is the newest minted operation whose claim was seen there, `witness_brought` the last brought one.
    """

    account: str
    store_id: str
    machine: str
    grade: str
    witness_minted: str | None = None
    witness_brought: str | None = None


class Verification(Value):
    """The answer of `ledger verify`; `fault` is None, or (sequence, kind) of the first break.

    Kinds: `edited removed reordered inserted cut_off projection`.
    """

    ok: bool
    events: int
    head: str
    fault: tuple[int, str] | None = None
    accepted_breaks: int = 0


class LedgerView(Protocol):
    """Reads, consistent within one transaction."""

    def operation(self, operation_id: str) -> Operation | None: ...

    def same_request(self, account_key: str, fingerprint: str) -> list[Operation]:
        """Unresolved, or open and never dispatched, operations of this account and plain fingerprint, oldest first."""
        ...

    def unknown_on_subject(self, account_key: str, subject_ref: str) -> list[Operation]:
        """Operations in state `unknown` on this subject of this account, oldest first."""
        ...

    def store(self, account_key: str) -> StoreSeen | None: ...

    def session_exists(self, session_id: str) -> bool: ...

    def head(self) -> tuple[int, str]:
        """Sequence and hash of the newest event, which a checkpoint kept elsewhere holds; (0, 64 zeros) without one."""
        ...


class Ledger(LedgerView, Protocol):
    """Append-only events with projections kept in the same transaction.

    All methods raise `LedgerError`. An append is durable when it returns.
    """

    def append(self, decide: Callable[[LedgerView], Sequence[Draft]]) -> tuple[Event, ...]:
        """Run `decide` in a write transaction and append what it returns, all or nothing.

        What `decide` raises passes through and nothing is appended. The lock spans reading the head to the end of the
        write.
        """
        ...

    def secret_key(self) -> tuple[str, bytes]:
        """The key's ID and the 32-byte key of the secret part of fingerprints, made once for each ledger, kept beside
        it and not in it.
        """
        ...

    def events(self, operation_id: str | None = None, after: int = 0) -> Iterator[Event]: ...

    def operations(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        unresolved: bool = False,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[Operation]:
        """Newest first; `unresolved` ones oldest first. `before` is an operation ID to page from."""
        ...

    def verify(self, *, head: tuple[int, str] | None = None) -> Verification:
        """`head` is a (sequence, hash) kept elsewhere, against which a cut-off tail is found."""
        ...

    def rebuild(self) -> int:
        """Make the projections again from the events; the number of operations."""
        ...

    def close(self) -> None: ...


class Limits(Value):
    """Times in seconds. `dead_after` bounds how long a dead peer goes unnoticed.

    `connect`, `handshake` (until the host key is proved), `login` and `channel` (until a guard's channel is open) end
    in `ConnectTimeout`. `idle` is how long a living peer may send nothing to a reader; 0 is for ever.
    """

    connect: float = 10.0
    handshake: float = 10.0
    login: float = 20.0
    channel: float = 10.0
    idle: float = 0.0
    dead_after: float = 30.0


class Channel(Protocol):
    """A guard's standard streams. `send` and `receive` raise `LinkLost` when the connection is gone."""

    async def send(self, data: bytes) -> None:
        """Return when all of it has left for the host. What the far side closed its end for is dropped: `receive` says
        so.
        """
        ...

    async def receive(self) -> bytes:
        """The next bytes of standard output; empty when the far side closed it. What arrived before the connection was
        lost comes first.
        """
        ...

    def noise(self) -> bytes:
        """What came on standard error so far, at most 64 KiB."""
        ...

    async def close(self) -> None:
        """Send end of file, let what was sent go out, and close. Never raises."""
        ...


class Connection(Protocol):
    host_key: str
    """`SHA256:…` of the host key that the handshake proved."""
    authority_ref: str
    """Which credential was accepted: `publickey SHA256:…`, `certificate ID SHA256:…`, never the credential."""

    async def open_guard(self, guard: bytes, root: str, *, install: bool = False) -> Channel:
        """Start the guard, which speaks after the head of a request; with `install` put it on the host first.

        A channel that ends without a framed line is how a host says that it has no guard, or a broken one: then once
        more with `install`. Raises `GuardUnreachable` (with the host's text), `RateLimited` (the channel was refused),
        `ConnectTimeout` or `LinkLost`.
        """
        ...

    async def close(self) -> None:
        """Say goodbye and close. Never raises."""
        ...

    def abort(self) -> None:
        """Close the TCP connection at once, without a word."""
        ...


class Transport(Protocol):
    def resolve(self, host: str) -> Account:
        """The host account that a host argument names, without network. Raises `UsageError`."""
        ...

    async def connect(self, account: Account, limits: Limits) -> Connection:
        """A logged-in connection with a proved host key. Raises a `NotSent`."""
        ...


class Clock(Protocol):
    def now(self) -> str:
        """RFC 3339, UTC, microseconds, ending in Z."""
        ...

    def milliseconds(self) -> int:
        """Wall clock since the epoch."""
        ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def mint(self, prefix: str) -> str:
        """A fresh `prefix_` ULID."""
        ...

    def nonce(self) -> str:
        """32 hexadecimal digits."""
        ...

    def jitter(self) -> float:
        """A random number in [0, 1)."""
        ...


class Process(Value):
    """Who we are, and who owns what we do: this process and the session's (by default the parent)."""

    session_id: str
    agent: str | None
    pid: int
    pid_start: str
    owner_pid: int
    owner_pid_start: str
    machine: str
    user: str

    def facts(self) -> dict[str, Any]:
        return fields_of(self)


class Processes(Protocol):
    def alive(self, pid: int, start: str, machine: str) -> bool | None:
        """Whether that very process lives; None where this machine cannot tell (another machine's)."""
        ...
