"""One operation's intent and one attempt of it, in the order that the product promises; nowhere else is order read.

Append, then send: the intent and `attempt.dispatched` are durable before a byte that can act leaves. What an answer
means is judged by `sshop.core.outcome`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import BinaryIO

from sshop import errors
from sshop.conversation import Conversation, Line
from sshop.core import admission, events, lifecycle, outcome, protocol, recovery
from sshop.core import command as commands
from sshop.core.admission import Admission, Call, Way
from sshop.core.events import Draft
from sshop.core.operation import (
    RESOLVED,
    Account,
    Attempt,
    Boundary,
    Category,
    DispatchState,
    Operation,
    Refusal,
    RetryDecision,
    RetryReason,
    State,
    Terms,
    is_minted,
)
from sshop.core.protocol import Frame, Hello, Request
from sshop.ports import Clock, Ids, Ledger, LedgerView, Limits, Process, Processes, Transport

INLINE_LIMIT = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class World:
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

    def line(self, account: Account, root: str) -> Line:
        return Line(self.transport, account, self.limits, self.guard, root)

    def operation(self, operation_id: str) -> Operation:
        operation = self.ledger.operation(operation_id)
        if operation is None:
            raise errors.UsageError(f"the ledger has no operation {operation_id}", hint="`sshop ops` lists them")
        return operation


@dataclasses.dataclass(frozen=True, slots=True)
class Intent:
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


@dataclasses.dataclass(slots=True)
class Answer:
    """What a call ends with. `exit` is a name of `sshop.cli.exit_codes`; outputs are bytes as the host recorded them."""

    operation: Operation | None
    exit: str = ""
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    stdout: bytes | None = None
    stderr: bytes | None = None
    retry: bool = False
    lost_store: str | None = None
    temporary: bool = False
    left: bool = False

    def fail(self, exit_name: str, code: str, message: str, hint: str | None = None) -> Answer:
        self.exit, self.code, self.message, self.hint = exit_name, code, message, hint
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class Grounds:
    """Why an attempt may be made, and what it asks of the guard."""

    reason: RetryReason | None = None
    decision: RetryDecision | None = None
    generation: int = 1
    ground: str = "first"
    why: str = ""


class Runner:
    """Declares intents and makes attempts."""

    def __init__(self, world: World) -> None:
        self._world = world

    # -- intent ------------------------------------------------------------------------------------------------------

    def call(self, intent: Intent) -> Call:
        fingerprint = commands.fingerprint(intent.command)
        secret_id = secret = None
        if commands.has_secret_part(intent.command):
            secret_id, key = self._world.ledger.secret_key()
            secret = commands.secret_fingerprint(intent.command, key)
        return Call(intent.account.key, intent.category, fingerprint, secret, secret_id)

    def declare(self, intent: Intent) -> tuple[Admission, str | None]:
        """Make the intent durable, or find the operation that the call continues; with it the open attempt's ID, where
        an attempt is to be made at once.

        Raises `Refused` (`key_conflict`, `unresolved_twin`, `subject_has_unknown`, `not_the_owner`).
        """
        world, call = self._world, self.call(intent)
        operation_id = intent.operation_id or world.ids.mint("op")
        attempt_id = world.ids.mint("att")
        outcome_: list[Admission] = []

        def decide(view: LedgerView) -> list[Draft]:
            drafts: list[Draft] = []
            if not view.session_exists(world.me.session_id):
                drafts += self._session_drafts(intent)
            if intent.operation_id is not None:
                admitted = admission.by_id(view.operation(operation_id), call, world.alive)
            elif intent.new:
                admitted = Admission(Way.CREATE)
            else:
                candidates = view.same_request(call.account_key, call.fingerprint)
                admitted = admission.by_request(candidates, call, world.alive)
            existing = admitted.operation
            if intent.subject_ref is not None and admitted.way in (Way.CREATE, Way.ATTEMPT):
                blocking = view.unknown_on_subject(call.account_key, intent.subject_ref)
                admission.subject_free(blocking, call, existing.operation_id if existing else None)
            if existing is not None:
                drafts += self.take_over(existing)
            elif admitted.way is Way.CREATE:
                drafts.append(world.draft(self._intent_body(intent, call), operation_id))
            if admitted.way in (Way.CREATE, Way.ATTEMPT):
                name = existing.operation_id if existing else operation_id
                body = self._opening(existing, call.fingerprint, call.secret_fingerprint, intent, None)
                drafts.append(world.draft(body, name, attempt_id))
            outcome_[:] = [admitted]
            return drafts

        try:
            world.ledger.append(decide)
        except errors.Refused as refused:
            if refused.refusal == Refusal.KEY_CONFLICT and refused.operation_id is not None:
                body = events.RetryRefused(Refusal.KEY_CONFLICT, f"{refused.message} (asked: {call.fingerprint})")
                self.append([world.draft(body, refused.operation_id)])
            raise
        admitted = outcome_[0]
        name = admitted.operation.operation_id if admitted.operation else operation_id
        opened = admitted.way in (Way.CREATE, Way.ATTEMPT)
        return Admission(admitted.way, world.operation(name)), attempt_id if opened else None

    def append(self, drafts: Sequence[Draft]) -> None:
        self._world.ledger.append(lambda _: drafts)

    def _session_drafts(self, intent: Intent) -> list[Draft]:
        from sshop import __version__

        me = self._world.me
        drafts = [
            self._world.draft(
                events.SessionOpened(me.agent, me.owner_pid, me.owner_pid_start, me.machine, me.user, __version__)
            )
        ]
        if intent.policy_digest is not None:
            drafts.append(self._world.draft(events.PolicyLoaded(intent.policy_digest, intent.policy_commit)))
        return drafts

    def _intent_body(self, intent: Intent, call: Call) -> events.IntentCreated:
        me = self._world.me
        return events.IntentCreated(
            account=intent.account.to_json(),
            kind=intent.kind,
            name=intent.name,
            summary=intent.summary,
            subject_ref=intent.subject_ref,
            category=intent.category,
            effects=list(intent.effects),
            command=commands.to_json(intent.command),
            fingerprint=call.fingerprint,
            secret_fingerprint=call.secret_fingerprint,
            secret_key_id=call.secret_key_id,
            budget=intent.budget,
            note=intent.note,
            policy_digest=intent.policy_digest,
            policy_commit=intent.policy_commit,
            new=intent.new,
            owner=me.session_id,
            owner_pid=me.owner_pid,
            owner_pid_start=me.owner_pid_start,
            owner_machine=me.machine,
            contract=lifecycle.contract_at_birth(intent.terms.verify is not None),
            terms=intent.terms.to_json(),
        )

    def take_over(self, operation: Operation) -> list[Draft]:
        """The events that close what a dead process left open, and that change the owner where the old one is gone.

        Raises `Refused` (`not_the_owner`) where another living session owns an operation that is not resolved.
        """
        world, me = self._world, self._world.me
        drafts: list[Draft] = []
        name = operation.operation_id
        for attempt in operation.attempts:
            if attempt.in_flight and not world.alive(attempt):
                sent = attempt.dispatched_at is not None
                state = DispatchState.SENT_NO_RESPONSE if sent else DispatchState.NOT_SENT
                detail = "its process is gone"
                if sent:
                    drafts.append(
                        world.draft(events.ResponseLost(attempt.boundary, detail), name, attempt.attempt_id)
                    )
                body = events.AttemptClosed(
                    state, attempt.boundary, attempt.boundary_seen_by, False, None if sent else "not_sent.died", detail
                )
                drafts.append(world.draft(body, name, attempt.attempt_id))
        if operation.owner == me.session_id:
            if (operation.owner_pid, operation.owner_pid_start) != (me.owner_pid, me.owner_pid_start):
                drafts.append(world.draft(self._owner("the session goes on in another process"), name))
        elif not operation.resolved and admission.live_attempt(operation, world.alive) is None:
            alive = world.processes.alive(operation.owner_pid, operation.owner_pid_start, operation.owner_machine)
            if alive is not False:
                raise errors.Refused(
                    Refusal.NOT_THE_OWNER,
                    f"operation {name} is owned by session {operation.owner}, whose process {operation.owner_pid} lives",
                    operation_id=name,
                    hint="ask its owner, or look with `sshop reconcile`, which acts on nothing",
                )
            drafts.append(world.draft(self._owner(f"the process of session {operation.owner} is gone"), name))
        return drafts

    def _owner(self, why: str) -> events.OwnerChanged:
        me = self._world.me
        return events.OwnerChanged(me.session_id, me.owner_pid, me.owner_pid_start, me.machine, why)

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _opening(
        self,
        operation: Operation | None,
        fingerprint: str,
        secret: str | None,
        intent: Intent | None,
        grounds: Grounds | None,
    ) -> events.AttemptOpened:
        me = self._world.me
        last = operation.latest if operation else None
        budget = operation.budget if operation else intent.budget if intent else 0
        used = operation.dispatch_count if operation else 0
        reason = decision = None
        if operation is not None and last is not None:
            reason = grounds.reason if grounds else recovery.reason(operation)
            decision = grounds.decision if grounds else RetryDecision.NOTHING_DISPATCHED
            if grounds is None and operation.dispatched:
                decision = RetryDecision.READ_ONLY
        return events.AttemptOpened(
            number=len(operation.attempts) + 1 if operation else 1,
            pid=me.pid,
            pid_start=me.pid_start,
            machine=me.machine,
            retry_of_attempt_id=last.attempt_id if last else None,
            retry_reason=reason,
            retry_decision=decision,
            budget_remaining=max(0, budget - used - 1),
            fingerprint=fingerprint,
            prior_fingerprint=last.fingerprint if last else None,
            secret_fingerprint=secret,
            authority_ref=None,
            policy_digest=operation.policy_digest if operation else intent.policy_digest if intent else None,
        )

    def open_attempt(self, operation: Operation, command: commands.Command, grounds: Grounds) -> str:
        """Record the decision and open the attempt, in one transaction that refuses a second one in flight.

        Raises `Refused` (`not_the_owner`) where another process has an attempt in flight, or resolved it meanwhile.
        """
        world, name = self._world, operation.operation_id
        attempt_id = world.ids.mint("att")
        secret = operation.secret_fingerprint
        if commands.has_secret_part(command):
            secret = commands.secret_fingerprint(command, world.ledger.secret_key()[1])

        def decide(view: LedgerView) -> list[Draft]:
            current = view.operation(name)
            assert current is not None
            if admission.live_attempt(current, world.alive) is not None or current.resolved:
                raise errors.Refused(
                    Refusal.NOT_THE_OWNER, f"another process is at work on operation {name}", operation_id=name
                )
            drafts = self.take_over(current)
            last = current.latest
            if last is not None and grounds.reason is not None and grounds.decision is not None:
                left = max(0, current.budget - current.dispatch_count)
                body = events.RetryDecided(last.attempt_id, grounds.reason, grounds.decision, left, grounds.why)
                drafts.append(world.draft(body, name))
            opening = self._opening(current, commands.fingerprint(command), secret, None, grounds)
            return [*drafts, world.draft(opening, name, attempt_id)]

        world.ledger.append(decide)
        return attempt_id

    async def attempt(
        self,
        operation_id: str,
        attempt_id: str,
        command: commands.Command,
        line: Line,
        *,
        grounds: Grounds = Grounds(),
        source: Callable[[], BinaryIO] | None = None,
        wait_s: float | None = None,
        final: bool = True,
    ) -> Answer:
        """Make the open attempt, to its end. `final` tells that no further attempt will follow a temporary failure."""
        trial = _Trial(self, operation_id, attempt_id, command, line, grounds, source, wait_s, final)
        return await trial.run()

    def request(self, operation: Operation, command: commands.Command, attempt_id: str, grounds: Grounds) -> Request:
        """The request of an attempt, with what the ledger knows of the store (DESIGN section 4, witness)."""
        world, store = self._world, None
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

    @property
    def world(self) -> World:
        return self._world


class _Trial:
    """One attempt under way: from the connection to the closing event."""

    def __init__(
        self,
        runner: Runner,
        operation_id: str,
        attempt_id: str,
        command: commands.Command,
        line: Line,
        grounds: Grounds,
        source: Callable[[], BinaryIO] | None,
        wait_s: float | None,
        final: bool,
    ) -> None:
        self._runner, self._world = runner, runner.world
        self._id, self._attempt = operation_id, attempt_id
        self._command, self._line, self._grounds = command, line, grounds
        self._source, self._wait, self._final = source, wait_s, final
        operation = self._world.operation(operation_id)
        self._operation = operation
        self._request = runner.request(operation, command, attempt_id, grounds)
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

    def _draft(self, body: events.AnyBody) -> Draft:
        return self._world.draft(body, self._id, self._attempt)

    def _append(self, *bodies: events.AnyBody) -> None:
        self._runner.append([self._draft(body) for body in bodies])

    async def run(self) -> Answer:
        try:
            return await self._converse()
        except asyncio.CancelledError:
            return self._detached()
        finally:
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
            denied = await self._talk.spool(self._source)
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
            self._runner.append([world.draft(body)])
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
            await acknowledge(self._runner, self._line, twin)

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
            answer = self._denied(self._outcome) if self._outcome.word == "no" else self._ended(self._outcome)
        except errors.ProtocolError as error:
            return self._lost(str(error))
        return answer

    def _see(self, batch: list[Frame]) -> None:
        bodies: list[events.AnyBody] = []
        for frame in batch:
            match frame.word:
                case "claimed":
                    self._claim = (frame.integer("gen") or 0, frame.get("rec") or "")
                    bodies.append(self._seen(Boundary.CLAIMED, frame))
                case "started":
                    bodies.append(self._seen(Boundary.STARTED, frame))
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
        if bodies:
            self._append(*bodies)

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
        return answer

    def _resolved(self, verdict: outcome.Verdict, record: str | None, generation: int | None) -> events.OperationResolved:
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
        code = frame.fields.get("code") or _bare_code(frame)
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
            events.AttemptClosed(
                dispatch_state, self._boundary, self._seen_by, row.nothing_claimed, code, message
            )
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
            events.AttemptClosed(
                DispatchState.SENT_NO_RESPONSE, self._boundary, self._seen_by, False, "left", detail
            ),
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


def _bare_code(frame: Frame) -> str:
    return next((key for key, value in frame.fields.items() if value == ""), "bad_request")


async def acknowledge(runner: Runner, line: Line, operation: Operation) -> bool:
    """Tell the host, over a channel of its own, that a resolved operation's record is safe here. Never raises."""
    world = runner.world
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
        await talk.spool(None)
        await talk.go()
        async for batch in talk.frames():
            if any(frame.word == "acked" for frame in batch):
                runner.append([world.draft(events.OperationAcknowledged(record), operation.operation_id)])
                return True
    except errors.SshopError:
        pass
    finally:
        await talk.close()
    return False
