"""What people read, as text made from values; pure. Nothing that a host or a caller wrote moves the cursor."""

from __future__ import annotations

from collections.abc import Iterable

from sshop.cli import document
from sshop.cli.report import escape
from sshop.core import lifecycle
from sshop.core.events import Event
from sshop.core.operation import Operation, State
from sshop.world import Answer

_STATE_WORDS = {
    State.OPEN: "open",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.UNKNOWN: "unknown: nobody knows yet whether it ran",
    State.CANCELLED: "cancelled: it never ran and never will",
    State.DUPLICATE: "duplicate effect confirmed",
}


def outcome_line(answer: Answer) -> str:
    """One line that says what became of the operation."""
    op = answer.operation
    if op is None:
        return answer.message or "nothing was done"
    words = [op.operation_id, "on", op.account.host + ":", _state(op)]
    if op.result is not None and op.result.status is not None:
        words.append(f"(exit status {op.result.status})")
    elif op.result is not None and op.result.changed is False:
        words.append("(nothing had to change)")
    if op.replayed:
        words.append("- replayed: the result is an earlier run's")
    if op.contract == "violated":
        words.append("- but its result contract is violated")
    return " ".join(words)


def _state(op: Operation) -> str:
    if op.state == State.OPEN:
        return (
            "running on the host"
            if op.host_state == "running"
            else "open: nothing was dispatched"
            if not op.dispatched
            else "open"
        )
    return _STATE_WORDS[State(op.state)]


def next_line(answer: Answer) -> str | None:
    """What may be done now, or None where nothing is left to do."""
    step = document.follow_up(answer)
    if step["action"] == "none":
        return None
    return f"{step['command']}  ({step['why']})" if step["command"] else str(step["why"] or "")


def listing(operations: Iterable[Operation]) -> str:
    """One line each: ID, state, category, host, time, summary."""
    lines = [
        f"{op.operation_id:30} {op.state:10.26} {op.category:12} {escape(op.account.host):20.20} "
        f"{op.created_at[:19].replace('T', ' ')} {escape(op.summary)[:80]}"
        for op in operations
    ]
    return "".join(line.rstrip() + "\n" for line in lines) or "no operations\n"


def show(op: Operation, history: Iterable[Event]) -> str:
    """One screen: what was meant, what left this machine, what the host proves, what is safe; then the timeline."""
    answer = Answer(op)
    step = document.follow_up(answer)
    lines = [
        f"operation   {op.operation_id}  {_state(op)}  [{lifecycle.health(op)}]",
        f"meant       {op.summary}",
        f"command     {document.command_line(op)}",
        f"            {' '.join((op.category, *op.effects))}"
        + (f", subject {op.subject_ref}" if op.subject_ref else ""),
        f"where       {op.account.host} ({op.account.key})" + (f", store {op.store_id}" if op.store_id else ""),
        f"owner       {op.owner} (process {op.owner_pid})",
        f"left here   {_left(op)}",
        f"host says   {_proof(op)}",
        f"settled by  {op.resolved_by}: {op.resolution}" if op.resolved_by else f"settled     no{_why(op)}",
        f"safe now    {step['command'] or step['action']}" + (f" - {step['why']}" if step["why"] else ""),
    ]
    if op.note:
        lines.insert(3, f"note        {op.note}")
    if op.contract != "not_declared":
        lines.insert(-1, f"contract    {op.contract}")
    lines.append("")
    lines.append("timeline")
    lines += [_event_line(event) for event in history]
    return "".join(escape(line) + "\n" for line in lines)


def _why(op: Operation) -> str:
    return f" ({op.refusal})" if op.refusal else ""


def _left(op: Operation) -> str:
    sent = [attempt for attempt in op.attempts if attempt.dispatched_at]
    if not sent:
        return f"nothing: {len(op.attempts)} attempt(s), none dispatched"
    last = sent[-1]
    return f"{len(sent)} of {len(op.attempts)} attempt(s) dispatched, the last at {last.dispatched_at}"


def _proof(op: Operation) -> str:
    if op.result is not None:
        result = op.result
        status = "nothing had to run" if result.status is None else f"exit status {result.status}"
        killed = f", ended by {result.killed}" if result.killed else ""
        return f"record {result.record_id or '-'}: {status}{killed}; synced: {result.sync or '-'}"
    if op.host_state is not None:
        return op.host_state
    if op.claim_seen is not None:
        return f"claimed as {op.claim_seen[1]}, no end seen"
    return "nothing yet"


def _event_line(event: Event) -> str:
    values = event.body.to_json()
    picked = {
        "session.opened": ("agent", "user"),
        "intent.created": ("summary",),
        "attempt.opened": ("number", "retry_of_attempt_id", "retry_reason", "retry_decision", "budget_remaining"),
        "attempt.dispatched": ("generation", "ground", "store_id"),
        "boundary.seen": ("boundary", "seen_by", "record_id", "sync"),
        "response.lost": ("detail",),
        "response.received": ("kind", "code", "host_state", "detail"),
        "attempt.closed": ("dispatch_state", "boundary", "code", "detail"),
        "lookup.performed": ("kind", "host_state", "changed", "why"),
        "remote_record.found": ("record_id", "generation"),
        "retry.decided": ("reason", "decision", "why"),
        "retry.refused": ("refusal", "why"),
        "owner.changed": ("owner", "why"),
        "operation.resolved": ("state", "by", "why"),
        "operation.acknowledged": ("record_id",),
    }.get(event.type, tuple(values))
    facts = " ".join(f"{name}={_fact(values[name])}" for name in picked if values.get(name) is not None)
    who = f" {event.attempt_id[-8:]}" if event.attempt_id else ""
    return f"{event.seq:>7} {event.at[11:23]}{who:9} {event.type:22} {facts}"


def _fact(value: object) -> str:
    text = str(value)
    return f"“{text}”" if " " in text else text
