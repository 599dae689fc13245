"""One attempt on the wire, in the order that the product promises; nowhere else is order read.

Append, then send: `attempt.dispatched` is durable before a byte that can act leaves. What is appended is made by
`sshop.logbook`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sshop import errors
from sshop.conversation import Conversation, Line
from sshop.core import command as commands
from sshop.core import events
from sshop.core.operation import Boundary, Category, Operation
from sshop.core.protocol import Frame, Hello, Request
from sshop.logbook import Logbook
from sshop.question import Acknowledgement, acknowledge
from sshop.world import FIRST, Answer, Grounds, World


def request_of(
    world: World, operation: Operation, command: commands.Command, attempt_id: str, grounds: Grounds
) -> Request:
    """The request of an attempt, with what the ledger knows of the store (DESIGN section 4, witness)."""
    store = None
    if operation.category != Category.READ_ONLY:
        store = world.ledger.store(operation.account.key)
    witnesses = (store.witness_minted, store.witness_brought) if store else ()
    return Request(
        verb="run",
        nonce=world.ids.nonce(),
        operation_id=operation.operation_id,
        attempt_id=attempt_id,
        clock=world.clock.now(),
        command=command,
        category=operation.category,
        generation=grounds.generation,
        ground=grounds.ground,
        claim_seen=operation.claim_seen if operation.category != Category.READ_ONLY else None,
        store_id=operation.store_id or (store.store_id if store else None),
        witnesses=tuple(name for name in witnesses if name is not None and name != operation.operation_id),
        new=operation.new,
        weakest_grade=operation.terms.weakest_grade,
        timeout_s=operation.terms.timeout_s,
        inline_bytes=operation.terms.max_output,
    )


class Trial:
    """One attempt: from the connection to the closing event.

    `final` tells that no further attempt would follow a temporary failure; `wait_s` counts from the claim.
    """

    def __init__(
        self,
        world: World,
        operation_id: str,
        attempt_id: str,
        command: commands.Command,
        line: Line,
        *,
        grounds: Grounds = FIRST,
        wait_s: float | None = None,
        final: bool = True,
        watch: Callable[[Operation], None] | None = None,
    ) -> None:
        self._world, self._command, self._line, self._grounds = world, command, line, grounds
        self._wait, self._final, self._watch = wait_s, final, watch
        self._operation = world.operation(operation_id)
        self._book = Logbook(world, self._operation, attempt_id, command.cwd)
        self._talk = Conversation(line, request_of(world, self._operation, command, attempt_id, grounds))
        self.claimed_at: float | None = None
        self._deadline: float | None = None
        self._stdout, self._stderr = bytearray(), bytearray()
        self._outcome: Frame | None = None
        self._ledger_error: errors.LedgerError | None = None
        self._listening = False

    async def run(self) -> Answer:
        """Raises `LedgerError` where the ledger failed before anything was sent."""
        try:
            return await self._converse()
        except asyncio.CancelledError:
            return self._detached()
        finally:
            if not self._listening:
                await self._talk.close()

    async def _converse(self) -> Answer:
        try:
            if not self._command.complete:
                raise errors.InputUnavailable(
                    "a secret of the operation is not at hand", hint="give the secret parameters again"
                )
            first = await self._talk.begin()
            if isinstance(first, Frame):
                return self._book.denied(first)
            self._book.hello = first
            refusal = self._book.check_store(first)
            if refusal is not None:
                return self._book.refused_store(refusal)
            await self._free_twin(first)
            denied = await self._talk.spool()
            if denied is not None:
                return self._book.denied(denied)
            self._book.dispatch(first, self._grounds, self._line.host_key, self._line.authority_ref)
        except errors.LinkLost as lost:
            self._line.drop()
            return self._book.not_sent(errors.HostUnreachable(f"the connection was lost before dispatch: {lost}"))
        except errors.NotSent as error:
            return self._book.not_sent(error)
        except errors.ProtocolError as error:
            self._line.drop()
            return self._book.not_sent(errors.GuardUnreachable(str(error)))
        except errors.Refused as refused:
            return self._book.overtaken(refused)
        return await self._after_go()

    async def _free_twin(self, hello: Hello) -> None:
        """A twin under the same fingerprint that this ledger has resolved is acknowledged before `go`."""
        if hello.twin is None or self._operation.category == Category.READ_ONLY:
            return
        twin = self._world.ledger.operation(hello.twin)
        if twin is not None and twin.resolved and twin.account.key == self._operation.account.key:
            await acknowledge(self._world, self._line, twin)

    # -- after `go` ----------------------------------------------------------------------------------------------------

    async def _after_go(self) -> Answer:
        """From here on an error of the ledger is no reason to say that nothing was sent."""
        try:
            lost = await self._listen()
            if self._ledger_error is not None:
                raise self._ledger_error
            if lost is not None:
                return self._book.lost(lost)
            return self._judged()
        except errors.LedgerError as error:
            return self._unrecorded(error)

    async def _listen(self) -> str | None:
        """Hand over `go` and hear the answer out; None, or why it was lost. Leaves when the caller's time is over."""
        try:
            await self._talk.go()
            async with asyncio.timeout(None) as limit:
                async for batch in self._talk.frames():
                    self._see(batch)
                    if self._book.claim and self._wait is not None and self._deadline is None:
                        self._deadline = asyncio.get_running_loop().time() + self._wait
                        limit.reschedule(self._deadline)
        except TimeoutError:
            return None
        except (errors.LinkLost, errors.ProtocolError) as error:
            self._line.drop()
            return str(error)
        return None if self._outcome is not None else "the guard's answer held no outcome"

    def _judged(self) -> Answer:
        """What the answer, or the leaving before it, makes of the attempt."""
        frame = self._outcome
        if frame is None:
            return self._book.left("left while it was running")
        try:
            if frame.word == "no":
                return self._book.denied(frame)
            if frame.word != "result":
                return self._book.stated(frame)
            answer = self._book.ended(frame, final=self._final)
        except errors.ProtocolError as error:
            return self._book.lost(str(error))
        answer.stdout, answer.stderr = bytes(self._stdout), bytes(self._stderr)
        self._acknowledge_later(answer, frame)
        return answer

    def _acknowledge_later(self, answer: Answer, frame: Frame) -> None:
        """The guard that ran it still listens; of a result that was adopted, the host is told over another channel."""
        operation = answer.operation
        if operation is None or not operation.resolved or operation.acknowledged or frame.get("rec") is None:
            return
        if frame.get("own") == "1":
            self._listening, answer.after = True, self._acknowledge
        else:
            answer.after = Acknowledgement(self._world, self._line, operation)

    async def _acknowledge(self) -> None:
        """The result is durable here: the guard, which still listens, may forget it one day."""
        if not await self._talk.acknowledge():
            await self._talk.close()
            return
        self._talk.leave()  # the guard ends by itself now, and its channel with it: nobody has to wait for that
        if self._book.claim is not None:
            self._book.append(events.OperationAcknowledged(self._book.claim[1]))

    def _see(self, batch: list[Frame]) -> None:
        bodies: list[events.AnyBody] = []
        for frame in batch:
            match frame.word:
                case "claimed" | "running":
                    claimed = frame.word == "claimed"
                    if claimed or self._book.claim is None:
                        self._book.claim = (frame.integer("gen") or 0, frame.get("rec") or "")
                        self.claimed_at = self._world.clock.monotonic()
                    bodies.append(self._book.seen(Boundary.CLAIMED if claimed else Boundary.STARTED, frame))
                case "started":
                    bodies.append(self._book.seen(Boundary.STARTED, frame))
                    if self._watch is not None:
                        self._watch(self._operation)
                case "data":
                    (self._stdout if frame.get("stream") == "out" else self._stderr).extend(frame.data or b"")
                case "result" | "no" | "state" | "fenced":
                    self._outcome = frame
                case _:
                    pass
        if bodies and self._ledger_error is None:
            try:
                self._book.append(*bodies)
            except errors.LedgerError as error:
                self._ledger_error = error  # the command runs already; its result is still to be shown

    def _unrecorded(self, error: errors.LedgerError) -> Answer:
        frame = self._outcome
        if frame is None:
            return self._book.unrecorded(error, "no answer came from the host")
        status = frame.get("status")
        shown = f"the host answered `{frame.word}`" + (f", status {status}" if status else "")
        answer = self._book.unrecorded(error, shown)
        answer.stdout, answer.stderr = bytes(self._stdout), bytes(self._stderr)
        return answer

    def _detached(self) -> Answer:
        """Ctrl-C or SIGTERM: the ledger says what was known; the command on the host goes on."""
        self._talk.leave()
        self._line.drop()
        detail = "the runner was told to stop"
        if not self._book.dispatched:
            answer = self._book.not_sent(errors.NotSent(detail))
            answer.retry = False
        else:
            try:
                answer = self._book.left(detail) if self._book.claim is not None else self._book.lost(detail)
            except errors.LedgerError as error:
                answer = self._unrecorded(error)
        answer.left = True
        return answer
