"""What the ledger is told of one attempt: which events its steps and its end become.

Order is not decided here but in `sshop.attempt`; what an answer means is judged by `sshop.core.outcome`.
"""

from __future__ import annotations

from sshop import errors
from sshop.core import events, lifecycle, outcome, protocol, recovery
from sshop.core.events import Draft
from sshop.core.operation import RESOLVED, Boundary, Category, DispatchState, Operation, State
from sshop.core.protocol import Frame, Hello
from sshop.core.value import replace
from sshop.ports import LedgerView, StoreSeen
from sshop.world import Answer, Grounds, World

STORE_REFUSALS = {
    "store_changed": "the marker store on the host is not the one that was promised",
    "rolled_back": "the marker store on the host was rolled back: a claim that was seen there is gone",
    "bad_format": "the marker store on the host has another format",
    "no_store": "the host has no marker store and could not make one",
}
# Refusals after which the store cannot be asked about the operation any more.
LOST_STORE = frozenset(["store_changed", "rolled_back", "unreadable", "expired"])


class Logbook:
    """The events of one attempt, and how far it is known to have come."""

    def __init__(self, world: World, operation: Operation, attempt_id: str, cwd: bytes | None) -> None:
        self._world, self._cwd = world, cwd
        self._id, self._attempt = operation.operation_id, attempt_id
        self.operation = operation
        self.hello: Hello | None = None
        self.dispatched = False
        self.claim: tuple[int, str] | None = None
        self._boundary: str = Boundary.NONE
        self._seen_by: str | None = None
        self._host_key: str | None = None

    def append(self, *bodies: events.AnyBody) -> None:
        self._world.append([self._world.draft(body, self._id, self._attempt) for body in bodies])

    def answer(self) -> Answer:
        return Answer(self._world.operation(self._id))

    # -- before `go` ---------------------------------------------------------------------------------------------------

    def check_store(self, hello: Hello) -> str | None:
        """The store must be the one that the ledger knows; a host never met before is written down first."""
        world, operation = self._world, self.operation
        if operation.category == Category.READ_ONLY:
            return None
        if hello.store_format not in (None, protocol.STORE_FORMAT):
            return "bad_format"
        if hello.store_id is None:
            return "no_store"
        if operation.store_id is not None and operation.store_id != hello.store_id:
            return "store_changed"
        known = world.ledger.store(operation.account.key) or self._meet(hello, hello.store_id)
        if known.store_id != hello.store_id:
            return "store_changed"
        if hello.witness == "gone":
            return "rolled_back"
        if operation.claim_seen is not None and hello.op_state == "absent":
            return "rolled_back"
        return None

    def _meet(self, hello: Hello, store_id: str) -> StoreSeen:
        """Write down the store of a host that was never met; of two who meet it at once, the first one's stands."""
        world, key = self._world, self.operation.account.key
        body = events.StoreMet(key, store_id, hello.machine or "", hello.grade or "unsynced")
        world.ledger.append(lambda view: [] if view.store(key) else [world.draft(body)])
        met = world.ledger.store(key)
        assert met is not None
        return met

    def refused_store(self, code: str) -> Answer:
        row, message = outcome.DENIALS[code], STORE_REFUSALS[code]
        bodies: list[events.AnyBody] = [
            events.AttemptClosed(DispatchState.NOT_SENT, self._boundary, self._seen_by, False, code, message)
        ]
        if row.refusal is not None:
            bodies.append(events.RetryRefused(row.refusal, message))
        self.append(*bodies)
        answer = self.answer().fail(row.exit, row.refusal or code, message, "`sshop doctor HOST` shows the store")
        answer.lost_store = code if code in LOST_STORE else None
        return answer

    def dispatch(self, hello: Hello, grounds: Grounds, host_key: str | None, authority_ref: str | None) -> None:
        """`attempt.dispatched`, durable, before `go`.

        Raises `Refused` where the attempt is not ours to make any more (DESIGN section 3).
        """
        body = events.AttemptDispatched(
            grounds.generation, grounds.ground, hello.store_id, host_key, hello.boot, authority_ref
        )

        def decide(view: LedgerView) -> list[Draft]:
            current = view.operation(self._id)
            assert current is not None
            lifecycle.may_dispatch(current, self._attempt, self.operation.decisions)
            return [self._world.draft(body, self._id, self._attempt)]

        self._world.ledger.append(decide)
        self.dispatched, self._boundary, self._seen_by = True, Boundary.REQUEST_SENT, "runner"
        self._host_key = host_key

    def overtaken(self, refused: errors.Refused) -> Answer:
        """Another process closed, resolved or decided it while this one was on its way; nothing was sent."""
        current = self._world.operation(self._id)
        if lifecycle.attempt_of(current, self._attempt).in_flight:
            self.append(
                events.AttemptClosed(
                    DispatchState.NOT_SENT, self._boundary, self._seen_by, False, refused.refusal, refused.message
                )
            )
        return self.answer().fail("not_owner", refused.refusal, refused.message, refused.hint)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def seen(self, boundary: Boundary, frame: Frame) -> events.BoundarySeen:
        self._boundary, self._seen_by = lifecycle.further(self._boundary, boundary), "host"
        return events.BoundarySeen(
            boundary=boundary,
            seen_by="host",
            generation=frame.integer("gen"),
            record_id=frame.get("rec"),
            sync=frame.get("sync"),
            host_key=self._host_key,
            store_id=self.hello.store_id if self.hello else None,
            account=self.operation.account.key,
            cwd=self._cwd.decode("utf-8", "backslashreplace") if self._cwd else None,
            boot=self.hello.boot if self.hello else None,
        )

    # -- how it ends ---------------------------------------------------------------------------------------------------

    def ended(self, frame: Frame, *, final: bool) -> Answer:
        """The guard's record of the end: boundary, answer, state and the attempt's end in one transaction."""
        result = protocol.result(frame)
        verdict = outcome.of_result(
            result,
            self.operation.category,
            success_exit=self.operation.terms.success_exit,
            rate_limited_exit=self.operation.terms.rate_limited_exit,
            temporary_failure_exit=self.operation.terms.temporary_failure_exit,
        )
        if frame.get("background") == "1":
            verdict = replace(verdict, why=f"{verdict.why}; processes that it left behind still ran")
        again = verdict.temporary is not None and not final and recovery.repeatable(self.operation)
        own = frame.get("own") == "1"
        bodies: list[events.AnyBody] = [
            self.seen(Boundary.EXIT_STATUS_RECEIVED, frame),
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
        self.append(*bodies)
        answer = self.answer()
        answer.temporary = again
        return answer

    def _resolved(
        self, verdict: outcome.Verdict, record: str | None, generation: int | None
    ) -> events.OperationResolved:
        assert verdict.state is not None
        contract = self.operation.contract
        return events.OperationResolved(verdict.state, verdict.by, record, generation, None, contract, verdict.why)

    def stated(self, frame: Frame) -> Answer:
        """There is no result; what stands instead."""
        state = "fenced" if frame.word == "fenced" else outcome.marker_state(frame.get("op"))
        generation, record = frame.integer("gen"), frame.get("rec")
        self.append(
            events.ResponseReceived(frame.word, None, state, generation, record, False, None, frame.message),
            events.AttemptClosed(
                DispatchState.RESPONSE_RECEIVED, self._boundary, self._seen_by, False, None, frame.message
            ),
        )
        return self.answer()

    def denied(self, frame: Frame) -> Answer:
        """A `no`: before `go` nothing was dispatched, after it the answer tells whether a claim stands."""
        code = frame.get("code") or "unlisted"
        row = outcome.denial(code, claim=frame.get("claim"), host_state=frame.get("op"))
        attempts = self._world.operation(self._id).attempts
        others = any(a.counts_as_dispatched for a in attempts if a.attempt_id != self._attempt)
        generation = frame.integer("gen") or 1
        verdict = outcome.of_denial(
            code,
            dispatched_before=others,
            minted_here=self.operation.minted_here,
            generation=generation,
            ran=frame.get("ran"),
        )
        message = f"the guard on {self.operation.account.key} refused ({code})"
        message += f": {frame.message}" if frame.message else ""
        state, nothing, exit_name = row.dispatch_state, row.nothing_claimed, row.exit
        if code == "expired" and verdict.state is State.CANCELLED:
            state, nothing, exit_name = DispatchState.NOT_SENT, True, "not_sent"
        bodies: list[events.AnyBody] = []
        if self.dispatched:
            record = frame.get("rec")
            bodies.append(
                events.ResponseReceived("refused", code, row.host_state, generation, record, False, None, message)
            )
        else:
            state = DispatchState.NOT_SENT
        bodies.append(events.AttemptClosed(state, self._boundary, self._seen_by, nothing, code, message))
        if verdict.state in RESOLVED:
            bodies.append(self._resolved(verdict, frame.get("rec"), generation))
        elif row.refusal is not None:
            bodies.append(events.RetryRefused(row.refusal, message))
        self.append(*bodies)
        hint = None
        if code == "unresolved_twin":
            hint = f"continue it with --op {frame.get('twin')}, or say --new if a second effect is meant"
        answer = self.answer().fail(exit_name, row.refusal or code, message, hint)
        answer.lost_store = code if code in LOST_STORE else None
        return answer

    def not_sent(self, error: errors.NotSent) -> Answer:
        detail = error.message if error.hint is None else f"{error.message} ({error.hint})"
        self.append(
            events.AttemptClosed(DispatchState.NOT_SENT, self._boundary, self._seen_by, False, error.code, detail)
        )
        answer = self.answer().fail("not_sent", error.code, error.message, error.hint)
        answer.retry = isinstance(error, errors.HostUnreachable | errors.ConnectTimeout | errors.RateLimited)
        return answer

    def lost(self, detail: str) -> Answer:
        self.append(
            events.ResponseLost(self._boundary, detail),
            events.AttemptClosed(
                DispatchState.SENT_NO_RESPONSE, self._boundary, self._seen_by, False, "link.lost", detail
            ),
        )
        return self.answer().fail("unknown", "response_lost", f"the answer was lost after dispatch: {detail}")

    def left(self, detail: str) -> Answer:
        """The caller goes away while the host is at work."""
        assert self.claim is not None
        generation, record = self.claim
        self.append(
            events.ResponseReceived("running", None, "running", generation, record, False, None, detail),
            events.AttemptClosed(DispatchState.SENT_NO_RESPONSE, self._boundary, self._seen_by, False, "left", detail),
        )
        answer = self.answer()
        answer.left = True
        return answer

    def unrecorded(self, error: errors.LedgerError, shown: str) -> Answer:
        """The ledger failed after `go`: what came back is shown, nothing is acknowledged, the state stays unknown."""
        return Answer(self.operation).fail(
            "unknown",
            error.code,
            f"{error.message}; {shown}, which the ledger does not hold",
            "mend the ledger, then `sshop reconcile` the operation",
        )
