"""How a call ends: the exit that an answer gives, of the operation and not of its last attempt (DESIGN section 7)."""

from __future__ import annotations

from sshop.core.operation import Operation, Refusal, State
from sshop.world import Answer

# Which exit an operation's refusal gives where it was dispatched; 5 wins over what is not here (DESIGN section 7).
REFUSAL_EXIT: dict[str, str] = {
    Refusal.STORE_CHANGED: "store",
    Refusal.STORE_ROLLED_BACK: "store",
    Refusal.MARKER_UNREADABLE: "store",
    Refusal.MARKER_EXPIRED: "store",
    Refusal.FENCED: "fenced",
    Refusal.KEY_CONFLICT: "key_conflict",
    Refusal.NOT_THE_OWNER: "not_owner",
    Refusal.UNRESOLVED_TWIN: "twin",
    Refusal.SUBJECT_HAS_UNKNOWN: "twin",
    Refusal.APPROVAL_REQUIRED: "approval",
    Refusal.POLICY_FORBIDS: "policy",
}


def of_another_ledger(operation: Operation) -> bool:
    """Whether a request with secrets was answered with the result of an attempt that this ledger did not make: the host
    compares the plain part alone.
    """
    result = operation.result
    if operation.secret_key_id is None or result is None or result.by_attempt is None:
        return False
    return all(attempt.attempt_id != result.by_attempt for attempt in operation.attempts)


def exit_name(answer: Answer) -> str:
    """Which exit an answer gives: of the operation, not of its last attempt (DESIGN section 7)."""
    operation = answer.operation
    if operation is None:
        return answer.exit or "fault"
    match operation.state:
        case State.SUCCEEDED:
            return "failed" if operation.contract == "violated" else "succeeded"
        case State.FAILED:
            return "failed"
        case State.DUPLICATE:
            return "duplicate"
        case State.CANCELLED:
            return {"key_conflict": "key_conflict", "host_refused": "not_sent"}.get(
                operation.resolved_by or "", "fenced"
            )
        case _:
            pass
    if not operation.dispatched:
        return answer.exit or "not_sent"
    # 13 says "it never ran", which only a cancelled operation has proved: a fence above a run that was interrupted is 5
    if answer.exit in ("key_conflict", "store", "not_owner", "duplicate"):
        return answer.exit
    if operation.host_state == "running" or answer.exit == "running":
        return "running"
    if operation.host_state == "never_started" and answer.exit in ("not_sent", "approval", "policy"):
        return answer.exit
    return "unknown"
