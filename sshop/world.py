"""What a run acts through, what a caller means, and what a call ends with: the values that the acting rooms share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from sshop import errors
from sshop.core import command as commands
from sshop.core import events
from sshop.core.events import Draft
from sshop.core.operation import Account, Attempt, Operation, RetryDecision, RetryReason, Terms
from sshop.core.value import Value
from sshop.ports import Clock, Ids, Ledger, LedgerView, Limits, Process, Processes, Transport

if TYPE_CHECKING:
    from sshop.conversation import Line  # brings asyncio, which what only reads the ledger does without


class World(Value):
    """What a run acts through; made by `sshop.bootstrap`."""

    ledger: Ledger
    transport: Transport
    clock: Clock
    ids: Ids
    processes: Processes
    me: Process
    guard: bytes
    limits: Limits

    def draft(self, body: events.AnyBody, operation_id: str | None = None, attempt_id: str | None = None) -> Draft:
        return Draft(self.ids.mint("ev"), self.clock.now(), self.me.session_id, body, operation_id, attempt_id)

    def alive(self, attempt: Attempt) -> bool:
        """Whether another process holds the attempt; one of another machine counts as living."""
        mine = attempt.pid == self.me.pid and attempt.pid_start == self.me.pid_start
        return not mine and self.processes.alive(attempt.pid, attempt.pid_start, attempt.machine) is not False

    def append(self, drafts: Sequence[Draft]) -> None:
        """A resolution is left out where the operation was resolved meanwhile: what settled it first stands."""

        def decide(view: LedgerView) -> list[Draft]:
            return [draft for draft in drafts if not _is_late(draft, view)]

        self.ledger.append(decide)

    def line(self, account: Account, root: str) -> Line:
        from sshop.conversation import Line

        return Line(self.transport, account, self.limits, self.guard, root)

    def operation(self, operation_id: str) -> Operation:
        operation = self.ledger.operation(operation_id)
        if operation is None:
            raise errors.UsageError(f"the ledger has no operation {operation_id}", hint="`sshop ops` lists them")
        return operation


def _is_late(draft: Draft, view: LedgerView) -> bool:
    if draft.operation_id is None or not isinstance(draft.body, events.OperationResolved):
        return False
    current = view.operation(draft.operation_id)
    return current is not None and current.resolved


class Intent(Value):
    """What a caller means to have done, decided by policy already."""

    account: Account
    command: commands.Command
    category: str
    effects: tuple[str, ...]
    kind: str
    name: str | None
    summary: str
    subject_ref: str | None
    budget: int
    note: str | None
    policy_digest: str | None
    policy_commit: str | None
    terms: Terms
    new: bool = False
    operation_id: str | None = None


class Answer:
    """What a call ends with. `exit` is a name of `sshop.cli.exit_codes`; outputs are as the host recorded them."""

    def __init__(
        self,
        operation: Operation | None,
        *,
        stdout: bytes | None = None,
        stderr: bytes | None = None,
        left: bool = False,
    ) -> None:
        self.operation = operation
        self.exit = ""
        self.code: str | None = None
        self.message: str | None = None
        self.hint: str | None = None
        self.stdout, self.stderr = stdout, stderr
        self.retry = False
        self.lost_store: str | None = None
        self.temporary = False
        self.left = left
        self.after: Callable[[], Awaitable[None]] | None = None

    def fail(self, exit_name: str, code: str, message: str, hint: str | None = None) -> Answer:
        self.exit, self.code, self.message, self.hint = exit_name, code, message, hint
        return self


class Grounds(Value):
    """Why an attempt may be made, and what it asks of the guard."""

    reason: RetryReason | None = None
    decision: RetryDecision | None = None
    generation: int = 1
    ground: str = "first"
    why: str = ""


FIRST = Grounds()
