"""What people read, as text made from values; pure. Nothing that a host or a caller wrote moves the cursor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sshop.cli import document
from sshop.cli.report import escape
from sshop.core import lifecycle
from sshop.core.events import Event
from sshop.core.operation import Boundary, Operation, State
from sshop.world import Answer

_STATE_WORDS = {
    State.OPEN: "open",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
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
        cause = {"timeout": "its time limit", "cancel": "a cancel request"}.get(
            op.result.killed or "", op.result.killed
        )
        words.append(f"(exit status {op.result.status}{f', ended by {cause}' if cause else ''})")
    elif op.result is not None and op.result.changed is False:
        words.append("(nothing had to change)")
    if op.replayed:
        words.append("- the result of an earlier run")
    if op.contract == "violated":
        words.append("- but its result contract is violated")
    return " ".join(words)


_UNKNOWN: dict[str, str] = {
    Boundary.CLAIMED: "unknown: the host took it, and what became of it is not known here",
    Boundary.STARTED: "unknown: it started, and how it ended is not known here",
}


def _state(op: Operation) -> str:
    if op.state == State.UNKNOWN:
        if op.host_state == "interrupted":
            return "unknown: it started, and nothing tells how it ended"
        if op.host_state == "fenced":
            return "unknown: it cannot run any more, and nothing tells how an earlier run ended"
        seen = [_UNKNOWN[each] for each in (a.boundary for a in reversed(op.attempts)) if each in _UNKNOWN]
        return seen[0] if seen else "unknown: nobody knows yet whether it ran"
    if op.state == State.OPEN:
        if op.host_state == "running":
            return f"running on the host when it was last seen, at {op.updated_at[11:19]} UTC"
        return "open" if op.dispatched else "open: nothing was dispatched"
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
    return "".join(line.rstrip() + "\n" for line in lines)


def unresolved(rows: Iterable[dict[str, Any]]) -> str:
    """For each its state, whose it is, its age, and the question that is open."""
    text = ""
    for row in rows:
        lines = (
            f"{row['operation_id']} on {row['host']}: {row['state']} for {age(row['age_s'])}, owned by {row['owner']}",
            f"  meant     {_cut(row['intent']['summary'])}",
            f"  open      {row['question']}",
            f"  safe now  {row['next']['command'] or row['next']['action']}",
        )
        text += "".join(escape(line) + "\n" for line in lines)
    return text


def age(seconds: int) -> str:
    """The largest unit that is not nothing: `40 s`, `12 min`, `5 h`, `3 days`."""
    for size, unit in ((172_800, "days"), (7200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds // {'days': 86_400, 'h': 3600, 'min': 60}[unit]} {unit}"
    return f"{seconds} s"


def _cut(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"


def show(op: Operation, history: Iterable[Event]) -> str:
    """One screen: what was meant, what left this machine, what the host proves, what is safe; then the timeline."""
    step = document.follow_up(Answer(op))
    subject = f", subject {op.subject_ref}" if op.subject_ref else ""
    lines = [
        ("operation", f"{op.operation_id}  {_state(op)}  [{lifecycle.health(op)}]"),
        ("safe now", _safe(step)),
        ("settled by", f"{op.resolved_by}: {op.resolution}" if op.resolved_by else f"nobody yet{_why(op)}"),
        ("contract", op.contract if op.contract != "not_declared" else None),
        ("meant", _cut(op.summary)),
        ("note", op.note and _cut(op.note)),
        ("command", _cut(document.command_line(op))),
        ("", f"{' '.join((op.category, *op.effects))}{subject}"),
        ("where", f"{op.account.host} ({op.account.key})" + (f", store {op.store_id}" if op.store_id else "")),
        ("owner", f"{op.owner} (process {op.owner_pid})"),
        ("left here", _left(op)),
        ("host says", _proof(op)),
        ("output", _output(op)),
    ]
    text = "".join(f"{name:11} {escape(value)}\n" for name, value in lines if value is not None)
    return text + "\n" + timeline(history)


def _safe(step: dict[str, Any]) -> str:
    match step["action"]:
        case "none":
            return "nothing is left to do"
        case "decide" | "approve" | "remediate":
            return f"nothing by itself ({step['why']}): look at the host, and compare with the timeline"
        case _:
            return f"{step['command']}  ({step['why']})"


def _output(op: Operation) -> str | None:
    if op.result is None or not (op.result.stdout_bytes or op.result.stderr_bytes):
        return None
    stream = "" if op.result.stdout_bytes else " --stream err"
    counts = f"{op.result.stdout_bytes:,} bytes, {op.result.stderr_bytes:,} of errors"
    return f"{counts}: sshop output {op.operation_id}{stream}"


def timeline(history: Iterable[Event]) -> str:
    """One line an event, under a line for each day; times are UTC."""
    text, day = "", ""
    for event in history:
        if event.at[:10] != day:
            day = event.at[:10]
            text += f"timeline    {day} UTC\n"
        text += escape(_event_line(event)) + "\n"
    return text


def _why(op: Operation) -> str:
    return f" ({op.refusal})" if op.refusal else ""


def _left(op: Operation) -> str:
    sent = [attempt for attempt in op.attempts if attempt.dispatched_at]
    if not sent:
        return f"nothing: {len(op.attempts)} attempt(s), none dispatched"
    last = sent[-1]
    return f"{len(sent)} of {len(op.attempts)} attempt(s) dispatched, the last at {str(last.dispatched_at)[:19]}Z"


def _proof(op: Operation) -> str:
    if op.result is not None:
        result = op.result
        status = "nothing had to run" if result.status is None else f"exit status {result.status}"
        ended = "ended" if (result.status or 0) > 128 else "told to end"
        killed = f", {ended} by {result.killed}" if result.killed else ""
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
        "attempt.dispatched": ("generation", "ground"),
        "boundary.seen": ("boundary", "seen_by", "sync"),
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
    return f"{event.seq:>7} {event.at[11:23]}{who:9} {event.type:22} {facts}".rstrip()


def _fact(value: object) -> str:
    text = _cut(str(value), 120)
    return f"“{text}”" if " " in text else text
