"""Operations asked about: what the host proves, appended as observations. Nothing here makes an attempt.

The guard's answer enters the same tables as a live one (`sshop.core.outcome`), so that a reconciled outcome is judged
as a seen one is.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from sshop import errors
from sshop.attempt import INLINE_LIMIT, acknowledge
from sshop.conversation import Conversation, Line
from sshop.core import command as commands
from sshop.core import events, outcome, protocol
from sshop.core.operation import Category, Contract, Operation, State
from sshop.core.protocol import Frame, Hello, Request, Verb
from sshop.core.value import Value, replace
from sshop.world import Answer, World


class Heard(Value):
    """What came back: the guard's first line, the frame that settles the question, and the output."""

    hello: Hello | None
    frame: Frame | None
    stdout: bytes = b""
    stderr: bytes = b""
    running: bool = False
    error: errors.SshopError | None = None


async def ask(line: Line, request: Request, *, patience: float | None = None) -> Heard:
    """One request that acts on nothing but the name, to its end. An error of the way is handed back, not raised.

    `patience` bounds the wait for an operation that is running, in seconds.
    """
    talk = Conversation(line, request)
    hello: Hello | None = None
    frame: Frame | None = None
    running = False
    output = {"out": bytearray(), "err": bytearray()}
    try:
        first = await talk.begin()
        if isinstance(first, Frame):
            return Heard(None, first)
        hello = first
        await talk.spool()
        await talk.go()
        async with asyncio.timeout(patience):
            async for batch in talk.frames():
                for item in batch:
                    match item.word:
                        case "data":
                            output[item.get("stream") or "out"].extend(item.data or b"")
                        case "running":
                            running = True
                        case "result" | "no" | "state" | "fenced" | "cancelling" | "acked":
                            frame = item
                        case _:
                            pass
    except TimeoutError:
        return Heard(hello, None, running=True)
    except (errors.LinkLost, errors.ProtocolError) as error:
        line.drop()
        return Heard(hello, None, running=running, error=error)
    except errors.NotSent as error:
        return Heard(hello, None, error=error)
    finally:
        await talk.close()
    return Heard(hello, frame, bytes(output["out"]), bytes(output["err"]), running and frame is None)


def question(
    world: World, operation: Operation, verb: Verb, *, wait_s: int | None = None, inline: int = INLINE_LIMIT
) -> Request:
    """A request about an operation, with what was promised of its store."""
    store = world.ledger.store(operation.account.key) if operation.category != Category.READ_ONLY else None
    return Request(
        verb=verb,
        nonce=world.ids.nonce(),
        operation_id=operation.operation_id,
        clock=world.clock.now(),
        command=_silent(commands.from_json(operation.command)),
        category=operation.category,
        generation=max(1, operation.generation),
        claim_seen=operation.claim_seen,
        store_id=store.store_id if store else None,
        inline_bytes=inline,
        wait_s=wait_s,
    )


def _silent(command: commands.Command) -> commands.Command:
    """The command with empty secrets: a question carries its frames for the fingerprint, and its values for nobody."""
    blank = commands.Secret(b"")
    return replace(
        command, secrets=tuple((name, blank) for name, _ in command.secrets), stdin=command.stdin
    )


async def look(world: World, line: Line, operation: Operation, *, wait_s: float | None = 0) -> Answer:
    """Ask the host what stands under the operation, and append what was proved.

    `wait_s` is how long to wait for one that is running, None to its end.
    """
    request = question(world, operation, "inquire", wait_s=None if wait_s is None else int(wait_s))
    heard = await ask(line, request, patience=None if wait_s is None else wait_s + 5)
    return await conclude(world, line, operation, request, heard, kind="inquire")


async def conclude(
    world: World, line: Line, operation: Operation, request: Request, heard: Heard, *, kind: str
) -> Answer:
    """Append the observation, resolve where it proves the end, and acknowledge a result that was adopted."""
    finding = _finding(operation, heard)
    observation = world.ids.mint("obs")
    name = operation.operation_id
    current = world.operation(name)
    changed = finding.state is not None and not current.resolved
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
    if finding.result is not None:
        answer.stdout, answer.stderr = heard.stdout, heard.stderr
    answer.left = finding.host_state == "running"
    answer.lost_store = finding.lost_store
    if finding.error is not None:
        answer.fail(finding.exit, finding.error, finding.why)
        answer.retry = finding.lost_store is None and heard.frame is None
    after = answer.operation
    if after is not None and after.resolved and not after.acknowledged and after.result is not None:
        answer.after = _Acknowledgement(world, line, after)
    return answer


class _Acknowledgement(Value):
    world: World
    line: Line
    operation: Operation

    async def __call__(self) -> None:
        await acknowledge(self.world, self.line, self.operation)


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


def _finding(operation: Operation, heard: Heard) -> Finding:
    frame, hello = heard.frame, heard.hello
    if heard.error is not None or (frame is None and not heard.running):
        error = heard.error or errors.LinkLost("the answer held no outcome")
        return Finding(f"no answer: {error}; that proves nothing", error=error.code, exit="unknown")
    if frame is None:
        generation, record = operation.claim_seen or (None, None)
        return Finding("it is still running", "running", generation, record)
    generation, record = frame.integer("gen"), frame.get("rec")
    if frame.word == "no":
        code = frame.get("code") or "unlisted"
        row = outcome.denial(code, claim=frame.get("claim"), host_state=frame.get("op"))
        verdict = outcome.of_denial(
            code, operation.operation_id, dispatched_before=operation.dispatched, minted_here=True,
            generation=generation or 1,
        )  # fmt: skip
        lost = code if code in ("store_changed", "rolled_back") else None
        return Finding(
            f"the guard refused ({code})" + (f": {frame.message}" if frame.message else ""),
            row.host_state if lost is None else None, generation, record, verdict.state, verdict.by,
            refusal=row.refusal, lost_store=lost, error=row.refusal or code, exit=row.exit,
        )  # fmt: skip
    if frame.word == "result":
        return _ended(operation, frame)
    if frame.word == "fenced":
        return _fenced(operation, generation, record)
    state = frame.get("op") or "absent"
    if frame.word == "cancelling":
        return Finding("the running command was told to end", "running", generation, record)
    if state == "fenced":
        return _fenced(operation, generation, record)
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
    }.get(state, state)
    return Finding(text + (f" ({frame.message})" if frame.message else ""), state, generation, record)


def _lost(operation: Operation, hello: Hello | None, state: str) -> str | None:
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
    return Finding(verdict.why, "exited", result.generation, result.record_id, verdict.state, verdict.by, result=result)


def _fenced(operation: Operation, generation: int | None, record: str | None) -> Finding:
    """A fence of the first generation, or above one that never started, cancels; above an interrupted one not."""
    if (generation or 1) > 1 and operation.host_state != "never_started":
        return Finding(
            "a fence stands above a generation whose end nobody knows; no further run can come",
            "fenced", generation, record, refusal="fenced", error="fenced", exit="fenced",
        )  # fmt: skip
    return Finding(
        "the operation is fenced: it never ran and never will", "fenced", generation, record, State.CANCELLED, "fence"
    )


async def fence(world: World, line: Line, operation: Operation, *, verb: Verb = "fence") -> Answer:
    """Claim the name as cancelled, or (verb `cancel`) also end what runs; what the host says is appended.

    An operation that was never dispatched by this ledger, and has a minted ID, is cancelled without the host.
    """
    if not operation.dispatched and not operation.resolved and not _in_flight(world, operation):
        body = events.OperationResolved(
            State.CANCELLED, "nothing_dispatched", None, None, None, operation.contract, "nothing was ever dispatched"
        )
        if operation.operation_id.startswith("op_"):
            world.append([world.draft(body, operation.operation_id)])
            return Answer(world.operation(operation.operation_id))
    request = question(world, operation, verb, wait_s=0)
    heard = await ask(line, request, patience=30)
    return await conclude(world, line, operation, request, heard, kind=verb)


def _in_flight(world: World, operation: Operation) -> bool:
    return any(attempt.in_flight and world.alive(attempt) for attempt in operation.attempts)


async def probe(world: World, line: Line, operation: Operation, argv: commands.Command) -> tuple[int | None, str]:
    """Evaluate a condition as a read-only command is run; its exit status, None where there is no answer."""
    request = Request(
        verb="probe",
        nonce=world.ids.nonce(),
        operation_id=operation.operation_id,
        clock=world.clock.now(),
        command=argv,
        category=Category.READ_ONLY,
        timeout_s=operation.terms.timeout_s,
        inline_bytes=4096,
    )
    heard = await ask(line, request)
    if heard.frame is None or heard.frame.word != "result":
        why = heard.frame.message if heard.frame is not None else str(heard.error or "no answer")
        return None, why or "no answer"
    result = protocol.result(heard.frame)
    return result.status, f"exit status {result.status}"


async def probe_condition(world: World, line: Line, operation: Operation) -> bool | None:
    """Whether the condition of a convergent operation holds now; None where that cannot be told. Appended either way.

    Where it holds, the operation is resolved as succeeded.
    """
    command = commands.from_json(operation.command)
    if not command.condition:
        return None
    condition = replace(command, argv=command.condition, condition=(), stdin=None)
    status, text = await probe(world, line, operation, condition)
    holds = None if outcome.says_nothing(status) else status == 0
    observation = world.ids.mint("obs")
    why = f"the condition {'holds' if holds else 'does not hold' if holds is False else 'could not be told'}: {text}"
    bodies: list[events.AnyBody] = [
        _probed(operation, observation, "probe", match="converged_when", changed=bool(holds), why=why)
    ]
    if holds:
        bodies.append(
            events.OperationResolved(State.SUCCEEDED, "probe", None, None, observation, operation.contract, why)
        )
    world.append([world.draft(body, operation.operation_id) for body in bodies])
    return holds


def _probed(
    operation: Operation, observation: str, kind: str, *, match: str, changed: bool, why: str
) -> events.LookupPerformed:
    return events.LookupPerformed(
        observation_id=observation,
        kind=kind,
        query_fingerprint=hashlib.sha256(f"{kind} {operation.fingerprint}".encode()).hexdigest(),
        endpoint=operation.account.key,
        store_id=None,
        match=match,
        host_state=None,
        generation=None,
        record_id=None,
        changed=changed,
        why=why,
    )


async def verify(world: World, line: Line, operation: Operation) -> Operation:
    """Check the result contract of a succeeded operation, and append what the check said."""
    terms = operation.terms
    if terms.verify is None or operation.state != State.SUCCEEDED:
        return operation
    status, text = await probe(world, line, operation, commands.from_json(terms.verify))
    if outcome.says_nothing(status) and status != terms.verify_exit:
        contract = Contract.UNCHECKED
    else:
        contract = Contract.SATISFIED if status == terms.verify_exit else Contract.VIOLATED
    observation = world.ids.mint("obs")
    why = f"the result contract is {contract}: {text}"
    body = _probed(operation, observation, "verify", match=contract, changed=True, why=why)
    world.append([world.draft(body, operation.operation_id)])
    return world.operation(operation.operation_id)


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
