"""One attempt on the wire, in the order that the product promises; nowhere else is order read.

Append, then send: `attempt.dispatched` is durable before a byte that can act leaves. What an answer means is judged by
`sshop.core.outcome`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sshop import errors
from sshop.conversation import Conversation, Line
from sshop.core import command as commands
from sshop.core import events, lifecycle, outcome, protocol, recovery
from sshop.core.events import Draft
from sshop.core.operation import (
    RESOLVED,
    Boundary,
    Category,
    DispatchState,
    Operation,
    State,
    is_minted,
)
from sshop.core.protocol import Frame, Hello, Request
from sshop.ports import LedgerView
from sshop.world import FIRST, Answer, Grounds, World

INLINE_LIMIT = 64 << 20


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
        store_id=store.store_id if store else None,
        witnesses=tuple(name for name in witnesses if name is not None and name != operation.operation_id),
        new=operation.new,
        weakest_grade=operation.terms.weakest_grade,
        timeout_s=operation.terms.timeout_s,
        inline_bytes=INLINE_LIMIT,
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
        self._world = world
        self._watch = watch
        self._id, self._attempt = operation_id, attempt_id
        self._command, self._line, self._grounds = command, line, grounds
        self._wait, self._final = wait_s, final
        operation = world.operation(operation_id)
        self._operation = operation
        self._request = request_of(world, operation, command, attempt_id, grounds)
        self._talk = Conversation(line, self._request)
        self._hello: Hello | None = None
        self._dispatched = False
        self._boundary: str = Boundary.NONE
        self._seen_by: str | None = None
        self._claim: tuple[int, str] | None = None
        self._running = False
        self._deadline: float | None = None
        self._stdout, self._stderr = bytearray(), bytearray()
        self._outcome: Frame | None = None
        self._ledger_error: errors.LedgerError | None = None
        self._listening = False

    def _draft(self, body: events.AnyBody) -> Draft:
        return self._world.draft(body, self._id, self._attempt)

    def _append(self, *bodies: events.AnyBody) -> None:
        self._world.append([self._draft(body) for body in bodies])

    async def run(self) -> Answer:
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
                return self._denied(first)
            self._hello = first
            refusal = self._check_store(first)
            if refusal is not None:
                return self._refused_store(refusal)
            await self._free_twin(first)
            denied = await self._talk.spool()
            if denied is not None:
                return self._denied(denied)
            self._dispatch(first)
        except errors.LinkLost as lost:
            self._line.drop()
            return self._not_sent(errors.HostUnreachable(f"the connection was lost before dispatch: {lost}"))
        except errors.NotSent as error:
            return self._not_sent(error)
        except errors.ProtocolError as error:
            self._line.drop()
            return self._not_sent(errors.GuardUnreachable(str(error)))
        return await self._after_go()

    def _check_store(self, hello: Hello) -> str | None:
        """The store must be the one that the ledger knows; a host never met before is written down first."""
        world = self._world
        if self._operation.category == Category.READ_ONLY:
            return None
        known = world.ledger.store(self._operation.account.key)
        if hello.store_format not in (None, protocol.STORE_FORMAT):
            return "bad_format"
        if hello.store_id is None:
            return "no_store"
        if known is None:
            body = events.StoreMet(
                self._operation.account.key, hello.store_id, hello.machine or "", hello.grade or "unsynced"
            )
            self._world.append([world.draft(body)])
        elif known.store_id != hello.store_id:
            return "store_changed"
        if self._operation.store_id is not None and self._operation.store_id != hello.store_id:
            return "store_changed"
        if hello.witness == "gone":
            return "rolled_back"
        if self._operation.claim_seen is not None and hello.op_state == "absent":
            return "rolled_back"
        return None

    def _refused_store(self, code: str) -> Answer:
        row = outcome.DENIALS[code]
        message = {
            "store_changed": "the marker store on the host is not the one that was promised",
            "rolled_back": "the marker store on the host was rolled back: a claim that was seen there is gone",
            "bad_format": "the marker store on the host has another format",
            "no_store": "the host has no marker store and could not make one",
        }[code]
        drafts: list[events.AnyBody] = [
            events.AttemptClosed(DispatchState.NOT_SENT, self._boundary, self._seen_by, False, code, message)
        ]
        if row.refusal is not None:
            drafts.append(events.RetryRefused(row.refusal, message))
        self._append(*drafts)
        answer = self._answer().fail(row.exit, row.refusal or code, message, "`sshop doctor HOST` shows the store")
        answer.lost_store = code if code in ("store_changed", "rolled_back") else None
        return answer

    async def _free_twin(self, hello: Hello) -> None:
        """A twin under the same fingerprint that this ledger has resolved is acknowledged before `go`."""
        if hello.twin is None or self._operation.category == Category.READ_ONLY:
            return
        twin = self._world.ledger.operation(hello.twin)
        if twin is not None and twin.resolved and twin.account.key == self._operation.account.key:
            await acknowledge(self._world, self._line, twin)

    def _dispatch(self, hello: Hello) -> None:
        """`attempt.dispatched`, durable, refused where the attempt is not ours to make any more.

        Raises `NotSent`.
        """
        decisions = self._operation.decisions
        body = events.AttemptDispatched(
            self._grounds.generation,
            self._grounds.ground,
            hello.store_id,
            self._line.host_key,
            hello.boot,
            self._line.authority_ref,
        )

        def decide(view: LedgerView) -> list[Draft]:
            current = view.operation(self._id)
            assert current is not None
            lifecycle.may_dispatch(current, self._attempt, decisions)
            return [self._draft(body)]

        self._world.ledger.append(decide)
        self._dispatched, self._boundary, self._seen_by = True, Boundary.REQUEST_SENT, "runner"

    # -- after `go` ----------------------------------------------------------------------------------------------------

    async def _after_go(self) -> Answer:
        try:
            await self._talk.go()
            async with asyncio.timeout(None) as limit:
                async for batch in self._talk.frames():
                    self._see(batch)
                    if self._claim and self._wait is not None and self._deadline is None:
                        self._deadline = asyncio.get_running_loop().time() + self._wait
                        limit.reschedule(self._deadline)
        except TimeoutError:
            return self._left("left while it was running")
        except (errors.LinkLost, errors.ProtocolError) as lost:
            self._line.drop()
            return self._lost(str(lost))
        if self._outcome is None:
            return self._lost("the guard's answer held no outcome")
        try:
            if self._ledger_error is not None:
                raise self._ledger_error
            return self._denied(self._outcome) if self._outcome.word == "no" else self._ended(self._outcome)
        except errors.ProtocolError as error:
            return self._lost(str(error))
        except errors.LedgerError as error:
            return self._unrecorded(error, self._outcome)

    def _unrecorded(self, error: errors.LedgerError, frame: Frame) -> Answer:
        """The ledger failed after `go`: the result is shown, nothing is acknowledged, the state stays unknown."""
        shown = f"the host answered `{frame.word}`" + (f", status {frame.get('status')}" if frame.get("status") else "")
        answer = Answer(self._operation, stdout=bytes(self._stdout), stderr=bytes(self._stderr))
        return answer.fail(
            "unknown", error.code, f"{error.message}; {shown}, which the ledger does not hold",
            "mend the ledger, then `sshop reconcile` the operation",
        )  # fmt: skip

    def _see(self, batch: list[Frame]) -> None:
        bodies: list[events.AnyBody] = []
        for frame in batch:
            match frame.word:
                case "claimed":
                    self._claim = (frame.integer("gen") or 0, frame.get("rec") or "")
                    bodies.append(self._seen(Boundary.CLAIMED, frame))
                case "started":
                    bodies.append(self._seen(Boundary.STARTED, frame))
                    if self._watch is not None:
                        self._watch(self._operation)
                case "running":
                    self._running = True
                    self._claim = self._claim or (frame.integer("gen") or 0, frame.get("rec") or "")
                    bodies.append(self._seen(Boundary.STARTED, frame))
                case "data":
                    (self._stdout if frame.get("stream") == "out" else self._stderr).extend(frame.data or b"")
                case "result" | "no" | "state" | "fenced":
                    self._outcome = frame
                case _:
                    pass
        if bodies and self._ledger_error is None:
            try:
                self._append(*bodies)
            except errors.LedgerError as error:
                self._ledger_error = error  # the command runs already; its result is still to be shown

    def _seen(self, boundary: Boundary, frame: Frame) -> events.BoundarySeen:
        self._boundary, self._seen_by = lifecycle.further(self._boundary, boundary), "host"
        hello, cwd = self._hello, self._command.cwd
        record = frame.get("rec")
        return events.BoundarySeen(
            boundary=boundary,
            seen_by="host",
            generation=frame.integer("gen"),
            record_id=record,
            sync=frame.get("sync"),
            host_key=self._line.host_key,
            store_id=hello.store_id if hello else None,
            account=self._operation.account.key,
            cwd=cwd.decode("utf-8", "backslashreplace") if cwd else None,
            boot=hello.boot if hello else None,
        )

    def _ended(self, frame: Frame) -> Answer:
        """The guard's record of the end: boundary, answer, state and the attempt's end in one transaction."""
        if frame.word != "result":
            return self._stated(frame)
        result = protocol.result(frame)
        terms, own = self._operation.terms, frame.get("own") == "1"
        verdict = outcome.of_result(
            result,
            self._operation.category,
            success_exit=terms.success_exit,
            rate_limited_exit=terms.rate_limited_exit,
            temporary_failure_exit=terms.temporary_failure_exit,
        )
        repeatable = recovery.effective_category(self._operation.category, self._operation.effects) in (
            Category.READ_ONLY,
            Category.CONVERGENT,
        )
        again = verdict.temporary is not None and repeatable and not self._final
        bodies: list[events.AnyBody] = [
            self._seen(Boundary.EXIT_STATUS_RECEIVED, frame),
            events.ResponseReceived(
                "result",
                verdict.temporary,
                "exited",
                result.generation,
                result.record_id,
                own,
                result.to_json(),
                verdict.why,
            ),
            events.AttemptClosed(
                DispatchState.RESPONSE_RECEIVED, Boundary.EXIT_STATUS_RECEIVED, "host", False, verdict.temporary, None
            ),
        ]
        if verdict.state is not None and not again:
            bodies.append(self._resolved(verdict, result.record_id, result.generation))
        self._append(*bodies)
        answer = self._answer()
        answer.stdout, answer.stderr = bytes(self._stdout), bytes(self._stderr)
        answer.temporary = again
        if own and result.record_id is not None and answer.operation is not None and answer.operation.resolved:
            self._listening, answer.after = True, self._acknowledge
        return answer

    async def _acknowledge(self) -> None:
        """The result is durable here: the guard, which still listens, may forget it one day."""
        try:
            if await self._talk.acknowledge() and self._claim is not None:
                self._append(events.OperationAcknowledged(self._claim[1]))
        finally:
            await self._talk.close()

    def _resolved(
        self, verdict: outcome.Verdict, record: str | None, generation: int | None
    ) -> events.OperationResolved:
        assert verdict.state is not None
        contract = self._operation.contract
        return events.OperationResolved(verdict.state, verdict.by, record, generation, None, contract, verdict.why)

    def _stated(self, frame: Frame) -> Answer:
        state = "fenced" if frame.word == "fenced" else frame.get("op")
        self._append(
            events.ResponseReceived(
                frame.word, None, state, frame.integer("gen"), frame.get("rec"), False, None, frame.message
            ),
            events.AttemptClosed(
                DispatchState.RESPONSE_RECEIVED, self._boundary, self._seen_by, False, None, frame.message
            ),
        )
        return self._answer()

    def _denied(self, frame: Frame) -> Answer:
        """A `no`: before `go` nothing was dispatched, after it the answer tells whether a claim stands."""
        code = frame.get("code") or "unlisted"
        claim = frame.get("claim")
        row = outcome.denial(code, claim=claim, host_state=frame.get("op"))
        before = self._world.operation(self._id)
        others = any(a.counts_as_dispatched for a in before.attempts if a.attempt_id != self._attempt)
        generation = frame.integer("gen") or 1
        verdict = outcome.of_denial(
            code,
            self._id,
            dispatched_before=others,
            minted_here=is_minted(self._id),
            generation=generation,
        )
        message = f"the guard on {self._operation.account.key} refused ({code})"
        message += f": {frame.message}" if frame.message else ""
        bodies: list[events.AnyBody] = []
        dispatch_state, exit_name = row.dispatch_state, row.exit
        if code == "expired" and verdict.state is State.CANCELLED:
            dispatch_state, exit_name = DispatchState.NOT_SENT, "not_sent"
        if not self._dispatched:
            dispatch_state = DispatchState.NOT_SENT
        if self._dispatched:
            bodies.append(
                events.ResponseReceived(
                    "refused", code, row.host_state, generation, frame.get("rec"), False, None, message
                )
            )
        bodies.append(
            events.AttemptClosed(dispatch_state, self._boundary, self._seen_by, row.nothing_claimed, code, message)
        )
        if verdict.state is not None and verdict.state in RESOLVED:
            bodies.append(self._resolved(verdict, frame.get("rec"), generation))
        elif row.refusal is not None:
            bodies.append(events.RetryRefused(row.refusal, message))
        self._append(*bodies)
        hint = None
        if code == "unresolved_twin":
            twin = frame.get("twin")
            hint = f"continue it with --op {twin}, or say --new if a second effect is meant"
        answer = self._answer().fail(exit_name, row.refusal or code, message, hint)
        answer.lost_store = code if code in ("store_changed", "rolled_back", "unreadable", "expired") else None
        return answer

    def _not_sent(self, error: errors.NotSent) -> Answer:
        detail = error.message if error.hint is None else f"{error.message} ({error.hint})"
        self._append(
            events.AttemptClosed(DispatchState.NOT_SENT, self._boundary, self._seen_by, False, error.code, detail)
        )
        answer = self._answer().fail("not_sent", error.code, error.message, error.hint)
        answer.retry = isinstance(error, errors.HostUnreachable | errors.ConnectTimeout | errors.RateLimited)
        return answer

    def _lost(self, detail: str) -> Answer:
        self._append(
            events.ResponseLost(self._boundary, detail),
            events.AttemptClosed(
                DispatchState.SENT_NO_RESPONSE, self._boundary, self._seen_by, False, "link.lost", detail
            ),
        )
        return self._answer().fail("unknown", "response_lost", f"the answer was lost after dispatch: {detail}")

    def _left(self, detail: str) -> Answer:
        """The caller goes away while the host is at work."""
        assert self._claim is not None
        generation, record = self._claim
        self._append(
            events.ResponseReceived("running", None, "running", generation, record, False, None, detail),
            events.AttemptClosed(DispatchState.SENT_NO_RESPONSE, self._boundary, self._seen_by, False, "left", detail),
        )
        answer = self._answer()
        answer.left = True
        return answer

    def _detached(self) -> Answer:
        """Ctrl-C or SIGTERM: the ledger says what was known; the command on the host goes on."""
        self._talk.leave()
        self._line.drop()
        detail = "the runner was told to stop"
        if self._claim is not None:
            answer = self._left(detail)
        elif self._dispatched:
            answer = self._lost(detail)
        else:
            answer = self._not_sent(errors.NotSent(detail))
            answer.retry = False
        answer.left = True
        return answer

    def _answer(self) -> Answer:
        return Answer(self._world.operation(self._id))


async def acknowledge(world: World, line: Line, operation: Operation) -> bool:
    """Tell the host, over a channel of its own, that a resolved operation's record is safe here. Never raises."""
    record = operation.result.record_id if operation.result else operation.records[-1] if operation.records else None
    if record is None:
        return False
    request = Request(
        verb="ack", nonce=world.ids.nonce(), operation_id=operation.operation_id, record_id=record,
        command=commands.from_json(operation.command),
    )  # fmt: skip
    talk = Conversation(line, request)
    try:
        if isinstance(await talk.begin(), Frame):
            return False
        await talk.spool()
        await talk.go()
        async for batch in talk.frames():
            if any(frame.word == "acked" for frame in batch):
                world.append([world.draft(events.OperationAcknowledged(record), operation.operation_id)])
                return True
    except errors.SshopError:
        pass
    finally:
        await talk.close()
    return False
