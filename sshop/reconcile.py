"""Operations asked about: what the host proves, appended as observations. Nothing here makes an attempt.

The guard's answer enters the same tables as a live one (`sshop.core.outcome`), so that a reconciled outcome is judged
as a seen one is.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

from sshop import errors
from sshop.conversation import Conversation, Line
from sshop.core import events, outcome, protocol, recovery
from sshop.core.events import Draft
from sshop.core.operation import Operation, Refusal, State
from sshop.core.protocol import Frame, Hello, Request, Verb
from sshop.core.value import Value, replace
from sshop.ports import LedgerView
from sshop.question import Acknowledgement, Heard, ask, question
from sshop.world import Answer, World

CANCEL_PATIENCE_S = 5  # for a command to end by TERM before it is killed


async def look(
    world: World, line: Line, operation: Operation, *, wait_s: float | None = 0, final: bool = True
) -> Answer:
    """Ask the host what stands under the operation, and append what was proved.

    `wait_s` is how long to wait for one that is running, None to its end; `final`: no further attempt would follow a
    failure that its entry calls temporary.
    """
    request = question(world, operation, "inquire", wait_s=None if wait_s is None else int(wait_s))
    heard = await ask(line, request, patience=None if wait_s is None else wait_s + 5)
    return conclude(world, line, operation, request, heard, kind="inquire", final=final)


def conclude(
    world: World, line: Line, operation: Operation, request: Request, heard: Heard, *, kind: str, final: bool = True
) -> Answer:
    """Append the observation, resolve where it proves the end, and leave the acknowledgement of an adopted result."""
    finding = _finding(operation, heard)
    again = finding.temporary is not None and not final and recovery.repeatable(operation)
    observation = world.ids.mint("obs")
    name = operation.operation_id
    current = world.operation(name)
    changed = finding.state is not None and not again and not current.resolved
    looked = events.LookupPerformed(
        observation_id=observation,
        kind=kind,
        query_fingerprint=hashlib.sha256(f"{request.verb} {name} {operation.fingerprint}".encode()).hexdigest(),
        endpoint=operation.account.key,
        store_id=heard.hello.store_id if heard.hello else None,
        match="operation ID and plain fingerprint",
        host_state=finding.host_state,
        generation=finding.generation,
        record_id=finding.record_id,
        changed=changed,
        why=finding.why,
    )
    bodies: list[events.AnyBody] = [looked]
    if finding.result is not None and finding.record_id is not None and not current.resolved:
        result = finding.result
        bodies.append(
            events.RemoteRecordFound(
                observation, result.generation, finding.record_id, result.by_attempt, result.to_json()
            )
        )
    if changed and finding.state is not None:
        bodies.append(
            events.OperationResolved(
                finding.state,
                finding.by,
                finding.record_id,
                finding.generation,
                observation,
                current.contract,
                finding.why,
            )
        )
    elif finding.refusal is not None and not current.resolved:
        bodies.append(events.RetryRefused(finding.refusal, finding.why))
    world.append([world.draft(body, name) for body in bodies])
    answer = Answer(world.operation(name))
    answer.temporary = again
    if finding.result is not None:
        answer.stdout, answer.stderr = heard.stdout, heard.stderr
    answer.left = finding.host_state == "running"
    answer.lost_store = finding.lost_store
    if finding.error is not None:
        answer.fail(finding.exit, finding.error, finding.why)
        answer.retry = finding.lost_store is None and heard.frame is None and _passing(heard.error)
    after = answer.operation
    if after is not None and after.resolved and not after.acknowledged and after.result is not None:
        answer.after = Acknowledgement(world, line, after)
    return answer


def _passing(error: errors.SshopError | None) -> bool:
    """Whether asking again may do better than this error of the way."""
    return not isinstance(error, errors.NotSent) or isinstance(
        error, errors.HostUnreachable | errors.ConnectTimeout | errors.RateLimited
    )


class Finding(Value):
    """What an answer to a question amounts to."""

    why: str
    host_state: str | None = None
    generation: int | None = None
    record_id: str | None = None
    state: State | None = None
    by: str = "result"
    result: Any = None
    refusal: str | None = None
    lost_store: str | None = None
    error: str | None = None
    exit: str = ""
    temporary: str | None = None


def _finding(operation: Operation, heard: Heard) -> Finding:
    try:
        return _judged(operation, heard)
    except errors.ProtocolError as error:
        return Finding(f"no answer: {error}; that proves nothing", error=error.code, exit="unknown")


def _judged(operation: Operation, heard: Heard) -> Finding:
    frame, hello = heard.frame, heard.hello
    if heard.error is not None or (frame is None and not heard.running):
        error = heard.error or errors.LinkLost("the answer held no outcome")
        exit_name = "unknown" if operation.dispatched else "not_sent"
        return Finding(f"no answer: {error}; that proves nothing", error=error.code, exit=exit_name)
    if frame is None:
        generation, record = operation.claim_seen or (None, None)
        return Finding("it is still running", "running", generation, record)
    strange = _of_another(operation, hello, frame)
    if strange is not None:
        return strange
    generation, record = frame.integer("gen"), frame.get("rec")
    if frame.word == "no":
        code = frame.get("code") or "unlisted"
        row = outcome.denial(code, claim=frame.get("claim"), host_state=frame.get("op"))
        verdict = outcome.of_denial(
            code,
            dispatched_before=operation.dispatched,
            minted_here=operation.minted_here,
            generation=generation or 1,
            ran=frame.get("ran"),
        )
        lost = code if code in ("store_changed", "rolled_back") else None
        return Finding(
            f"the guard refused ({code})" + (f": {frame.message}" if frame.message else ""),
            row.host_state if lost is None else None, generation, record, verdict.state, verdict.by,
            refusal=row.refusal, lost_store=lost, error=row.refusal or code, exit=row.exit,
        )  # fmt: skip
    if frame.word == "result":
        return _ended(operation, frame)
    if frame.word == "fenced":
        return _fenced(operation, frame)
    state = outcome.marker_state(frame.get("op"))
    if state is None and frame.word == "state":
        raise errors.ProtocolError(f"the guard named a state that is none: {frame.get('op')}")
    if frame.word == "cancelling":
        return Finding("the running command was told to end", "running", generation, record)
    if state == "fenced":
        return _fenced(operation, frame)
    lost = _lost(operation, hello, state)
    if lost is not None:
        why = "a claim that was seen on this store is gone: the store was rolled back"
        refusal = outcome.DENIALS["rolled_back"].refusal
        return Finding(why, None, refusal=refusal, lost_store=lost, error=refusal, exit="store")
    text = {
        "absent": "no marker stands; a delayed request may still arrive",
        "running": "it is still running",
        "never_started": "it was claimed, and provably nothing was started",
        "interrupted": "it was started, and its supervisor is gone without a record of the end",
        "unreadable": "the marker cannot be read whole",
        "expired": "the ID is not newer than the horizon of the store",
    }.get(state or "", "the host answered without a result")
    return Finding(text + (f" ({frame.message})" if frame.message else ""), state, generation, record)


def _of_another(operation: Operation, hello: Hello | None, frame: Frame) -> Finding | None:
    """An answer that speaks of another store than the operation is bound to, or of another request under its ID."""
    if hello is not None and operation.store_id is not None and hello.store_id != operation.store_id:
        why = f"the store is {hello.store_id}, and the operation is bound to {operation.store_id}"
        refusal = Refusal.STORE_CHANGED
        return Finding(why, refusal=refusal, lost_store="store_changed", error=refusal, exit="store")
    fingerprint = frame.get("fp")
    if frame.word in ("result", "state") and fingerprint not in (None, operation.fingerprint):
        refusal = Refusal.KEY_CONFLICT
        why = f"the marker under this ID is of another request ({fingerprint})"
        state = None if operation.dispatched else State.CANCELLED
        return Finding(why, state=state, by="key_conflict", refusal=refusal, error=refusal, exit="key_conflict")
    return None


def _lost(operation: Operation, hello: Hello | None, state: str | None) -> str | None:
    """Whether a missing marker is a rollback: its claim was seen, or an unsynced store saw another boot."""
    if state != "absent":
        return None
    if operation.claim_seen is not None:
        return "rolled_back"
    boots = {attempt.boot for attempt in operation.attempts if attempt.counts_as_dispatched}
    if hello is not None and hello.grade == "unsynced" and boots - {hello.boot}:
        return "rolled_back"
    return None


def _ended(operation: Operation, frame: Frame) -> Finding:
    result = protocol.result(frame)
    terms = operation.terms
    verdict = outcome.of_result(
        result,
        operation.category,
        success_exit=terms.success_exit,
        rate_limited_exit=terms.rate_limited_exit,
        temporary_failure_exit=terms.temporary_failure_exit,
    )
    return Finding(
        verdict.why,
        "exited",
        result.generation,
        result.record_id,
        verdict.state,
        verdict.by,
        result=result,
        temporary=verdict.temporary,
    )


def _fenced(operation: Operation, frame: Frame) -> Finding:
    """A fence above nothing that was ever started cancels; any other stands above a run whose end nobody knows.

    A guard that does not say what is below is believed where the host said before that the first never started.
    """
    generation, record = frame.integer("gen"), frame.get("rec")
    above_nothing = generation == 2 and operation.generation <= 1 and operation.host_state == "never_started"
    if not above_nothing and not outcome.never_ran(frame.get("ran"), generation or 1):
        return Finding(
            "no further run can come, and nobody knows how the one before ended: a person decides",
            "fenced", generation, record, refusal="fenced", error="fenced", exit="fenced",
        )  # fmt: skip
    return Finding(
        "the operation is fenced: it never ran and never will", "fenced", generation, record, State.CANCELLED, "fence"
    )


async def fence(world: World, line: Line, operation: Operation, *, verb: Verb = "fence") -> Answer:
    """Claim the name as cancelled, or (verb `cancel`) also end what runs; what the host says is appended.

    The host's word is the proof, since this ledger may be a copy that does not know of a dispatch. Where the host gives
    none, an operation with a minted ID that was never dispatched by this ledger is cancelled on that alone.
    """
    name = operation.operation_id

    def cancel_unsent(view: LedgerView) -> list[Draft]:
        current = view.operation(name)
        if current is None or not current.minted_here or current.resolved or current.dispatched:
            return []
        if any(attempt.in_flight and world.alive(attempt) for attempt in current.attempts):
            return []
        body = events.OperationResolved(
            State.CANCELLED,
            "nothing_dispatched",
            None,
            None,
            None,
            current.contract,
            "nothing was ever dispatched by this ledger; the host could not be asked",
        )
        return [world.draft(body, name)]

    request = question(world, operation, verb, wait_s=CANCEL_PATIENCE_S if verb == "cancel" else 0)
    heard = await ask(line, request, patience=30)
    answer = conclude(world, line, operation, request, heard, kind=verb)
    silent = not heard.running if heard.frame is None else _says_nothing_of_it(heard.frame)
    if silent and world.ledger.append(cancel_unsent):
        return Answer(world.operation(name))
    return answer


def _says_nothing_of_it(frame: Frame) -> bool:
    """A refusal that names no marker of the operation."""
    return frame.word == "no" and outcome.marker_state(frame.get("op")) in (None, "absent")


async def fetch(
    world: World, line: Line, operation: Operation, stream: str, *, offset: int = 0, follow: bool = False
) -> AsyncIterator[bytes]:
    """The recorded output of an operation, as it grows where `follow`.

    Raises a `NotSent`, `LinkLost` (what came before is whole), or `UsageError` where the host has no such output.
    """
    request = replace(question(world, operation, "fetch"), stream=stream, offset=offset, follow=follow)
    talk = Conversation(line, request)
    try:
        first = await talk.begin()
        if not isinstance(first, Frame):
            await talk.spool()
            await talk.go()
            async for batch in talk.frames():
                for frame in batch:
                    if frame.word == "data" and frame.data:
                        yield frame.data
                    elif frame.word == "no":
                        raise errors.UsageError(
                            f"the host has no output of {operation.operation_id}"
                            + (f": {frame.message}" if frame.message else "")
                        )
        else:
            raise errors.GuardUnreachable(f"the guard refused ({first.get('code')}): {first.message or ''}")
    finally:
        await talk.close()
