"""An answer as the one JSON object of `--json` (DESIGN section 7), pure. `SCHEMA` changes when a field does."""

from __future__ import annotations

import base64
from typing import Any

from sshop.core import command as commands
from sshop.core import lifecycle
from sshop.core.operation import Attempt, Category, Operation, Result, State
from sshop.core.value import fields_of
from sshop.world import Answer

SCHEMA = {"name": "sshop.operation", "version": 1}
SHOWN_BYTES = 1 << 20
FIELDS = (
    "schema", "operation_id", "state", "health", "category", "effects", "host", "account", "intent", "idempotency_key",
    "session_id", "owner", "generation", "replayed", "attempt", "destination", "evidence", "record_id", "effect_refs",
    "exit_status", "signal", "timed_out", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "stdout_sha256",
    "truncated", "result_contract", "supersedes_operation_id", "policy", "next", "error",
)  # fmt: skip
_BLANK: dict[str, Any] = dict.fromkeys(FIELDS) | {"schema": SCHEMA}


def operation(answer: Answer, *, limit: int = SHOWN_BYTES) -> dict[str, Any]:
    """All fields, null where there is nothing to say."""
    op = answer.operation
    if op is None:
        return _BLANK | {"next": follow_up(answer), "error": _error(answer)}
    result, attempt = op.result, op.latest
    out, out64, cut_out = _text(answer.stdout, limit)
    err, err64, cut_err = _text(answer.stderr, limit)
    missing = result is not None and (
        result.stdout_bytes > len(answer.stdout or b"") or result.stderr_bytes > len(answer.stderr or b"")
    )
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "operation_id": op.operation_id,
        "state": str(op.state),
        "health": str(lifecycle.health(op)),
        "category": op.category,
        "effects": list(op.effects),
        "host": op.account.host,
        "account": op.account.key,
        "intent": {"kind": op.kind, "subject_ref": op.subject_ref, "summary": op.summary},
        "idempotency_key": op.operation_id,
        "session_id": op.session_id,
        "owner": op.owner,
        "generation": op.generation or None,
        "replayed": op.replayed,
        "attempt": attempt and _attempt(attempt),
        "destination": {
            "host_key": attempt.host_key if attempt else None,
            "store_id": op.store_id,
            "authority_ref": attempt.authority_ref if attempt else None,
            "cwd": op.command.get("cwd"),
        },
        "evidence": _evidence(op, attempt),
        "record_id": op.records[-1] if op.records else None,
        "effect_refs": list(op.records) if result is not None else [],
        "exit_status": result.status if result else None,
        "signal": _signal(result),
        "timed_out": result is not None and result.killed == "timeout",
        "stdout": out,
        "stderr": err,
        "stdout_bytes": result.stdout_bytes if result else None,
        "stderr_bytes": result.stderr_bytes if result else None,
        "stdout_sha256": result.stdout_sha256 if result else None,
        "truncated": bool(cut_out or cut_err or missing),
        "result_contract": op.contract,
        "supersedes_operation_id": op.supersedes,
        "policy": {"digest": op.policy_digest, "commit": op.policy_commit},
        "next": follow_up(answer),
        "error": _error(answer),
    }
    if out64 is not None:
        value["stdout_base64"] = out64
    if err64 is not None:
        value["stderr_base64"] = err64
    return value


def error(command: str, code: str, message: str, hint: str | None, operation_id: str | None) -> dict[str, Any]:
    """What ended a command before there was an answer: for `run` as the operation's object with nothing known, for
    others as an object of its own.
    """
    step: dict[str, Any] = {"action": "correct", "command": None, "why": hint or message}
    if operation_id is not None and code in ("unresolved_twin", "subject_has_unknown"):
        step = {"action": "continue", "command": f"sshop replay {operation_id}", "why": message}
    elif operation_id is not None:
        step |= {"command": f"sshop show {operation_id}"}
    elif code == "interrupted" or code.startswith("not_sent"):
        step["action"] = "retry"
    value = {"operation_id": operation_id, "next": step, "error": {"code": code, "message": message, "hint": hint}}
    return (_BLANK if command == "run" else {"schema": {"name": "sshop.error", "version": 1}}) | value


def _text(data: bytes | None, limit: int) -> tuple[str | None, str | None, bool]:
    if data is None:
        return None, None, False
    shown = data[:limit]
    cut = len(data) > limit
    try:
        return shown.decode("utf-8"), None, cut
    except UnicodeDecodeError:
        if cut:
            whole = shown.decode("utf-8", "ignore")
            if len(shown) - len(whole.encode()) < 4 and data.startswith(whole.encode()):
                return whole, None, cut
        return None, base64.b64encode(shown).decode(), cut


def _signal(result: Result | None) -> str | None:
    """The signal that ended it: only the guard's own is sure, since a command may leave any status by itself."""
    return {143: "TERM", 137: "KILL"}.get(result.status or 0) if result is not None and result.killed else None


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt_id": attempt.attempt_id,
        "number": attempt.number,
        "retry_of_attempt_id": attempt.retry_of_attempt_id,
        "retry_reason": attempt.retry_reason,
        "retry_decision": attempt.retry_decision,
        "dispatch_state": attempt.dispatch_state,
        "boundary": attempt.boundary,
        "boundary_seen_by": attempt.boundary_seen_by,
        "attempt_budget_remaining": attempt.budget_remaining,
        "request_fingerprint": attempt.fingerprint,
        "prior_request_fingerprint": attempt.prior_fingerprint,
        "started_at": attempt.opened_at,
        "ended_at": attempt.closed_at,
    }


def _evidence(op: Operation, attempt: Attempt | None) -> dict[str, Any] | None:
    if op.category == Category.READ_ONLY or attempt is None:
        return None
    sync = op.result.sync if op.result else attempt.sync
    scope = f"store {op.store_id} of {op.account.key}" if op.store_id else None
    return {"sync": sync, "scope": scope, "retained_until": None}


def _error(answer: Answer) -> dict[str, Any] | None:
    if answer.code is None:
        return None
    return {"code": answer.code, "message": answer.message, "hint": answer.hint}


def follow_up(answer: Answer) -> dict[str, Any]:
    """What may be done now, in words that can be run. It never says to run again where the table does not."""
    op = answer.operation
    if op is None:
        return {"action": "correct", "command": None, "why": answer.hint or answer.message}
    name = op.operation_id
    if op.state == State.DUPLICATE:
        return {"action": "remediate", "command": f"sshop show {name}", "why": "more than one effect is confirmed"}
    if op.resolved:
        return {"action": "none", "command": None, "why": op.resolution}
    if answer.code == "unresolved_twin" or answer.exit == "twin":
        why = "; ".join(part for part in (answer.message, answer.hint) if part)
        return {"action": "continue", "command": None, "why": why}
    if answer.code == "in_flight" or answer.exit == "not_owner":
        # another's: to replay it would be refused, to look is nobody's privilege
        return {"action": "attach", "command": f"sshop reconcile {name} --wait 60", "why": answer.message}
    if op.refusal in ("marker_store_changed", "marker_store_rolled_back"):
        return {
            "action": "decide",
            "command": f"sshop doctor {op.account.host}",
            "why": "the store is another: a person decides",
        }
    if not op.dispatched:
        return {"action": "retry", "command": f"sshop replay {name}", "why": "nothing was dispatched"}
    if op.category == Category.READ_ONLY:
        return {"action": "retry", "command": f"sshop replay {name}", "why": "it only reads"}
    if op.host_state == "running":
        return {
            "action": "attach",
            "command": f"sshop replay {name}",
            "why": "it is running; this waits for its one result",
        }
    person = {
        "interrupted": "it started, and nobody knows how it ended",
        "unreadable": "its marker cannot be read",
        "expired": "its ID is older than the host remembers",
        "fenced": "no further run can come, and nobody knows how the one before ended",
    }
    if op.host_state in person and (op.category != Category.CONVERGENT or op.host_state == "fenced"):
        return {
            "action": "decide",
            "command": f"sshop show {name}",
            "why": f"{person[op.host_state]}: a person decides",
        }
    if op.host_state == "exited" and op.result is not None and op.category != Category.CONVERGENT:
        why = f"it was told to end, and left exit status {op.result.status}: a person decides"
        return {"action": "decide", "command": f"sshop show {name}", "why": why}
    if op.refusal == "approval_required":
        return {"action": "approve", "command": f"sshop show {name}", "why": "running it again needs a fresh approval"}
    if op.refusal in ("attempt_budget_exhausted", "unknown_without_deduplication"):
        return {
            "action": "reconcile",
            "command": f"sshop reconcile {name}",
            "why": "its attempts are used up; look, then decide",
        }
    return {
        "action": "replay",
        "command": f"sshop replay {name}",
        "why": "the host's record decides; this never acts twice",
    }


def event(item: Any) -> dict[str, Any]:
    """An event of the ledger for `show`."""
    return {
        "sequence": item.seq,
        "id": item.id,
        "at": item.at,
        "session": item.session_id,
        "attempt": item.attempt_id,
        "type": item.type,
        "body": item.body.to_json(),
        "prev": item.prev,
        "hash": item.hash,
    }


def attempts(op: Operation) -> list[dict[str, Any]]:
    return [fields_of(attempt) for attempt in op.attempts]


def command_line(op: Operation) -> str:
    """The redacted command for people."""
    return commands.display(commands.from_json(op.command))
