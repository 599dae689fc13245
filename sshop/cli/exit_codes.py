"""Every exit code, once (DESIGN section 7). Codes speak of the operation, not of its last attempt."""

from __future__ import annotations

from collections.abc import Iterable

from sshop import errors

CODES: dict[str, int] = {
    "succeeded": 0,
    "failed": 1,
    "usage": 2,
    "policy": 3,
    "approval": 4,
    "unknown": 5,
    "running": 6,
    "key_conflict": 7,
    "not_sent": 8,
    "store": 9,
    "duplicate": 10,
    "twin": 11,
    "not_owner": 12,
    "fenced": 13,
    "ledger": 14,
    "fault": 70,
}

MEANING: dict[int, str] = {
    0: "the operation succeeded",
    1: "the command ran and failed, or its result contract is violated",
    2: "usage: bad ID, unknown host, command or parameter, unreadable policy",
    3: "refused by policy; nothing was sent",
    4: "an approval is needed; nothing was sent",
    5: "outcome unknown: reconcile before anything else",
    6: "still running on the host; attach with the same ID",
    7: "key conflict: the ID belongs to another request",
    8: "not sent: safe to try again",
    9: "the marker store is not the one that was promised, or cannot be written or read",
    10: "duplicate effect confirmed",
    11: "an unresolved twin exists, or the subject has an unknown operation",
    12: "another session owns the operation, or has a replay in flight",
    13: "fenced or cancelled: it never ran and never will",
    14: "the ledger cannot be used; nothing was sent",
    70: "a fault of sshop itself; the ledger keeps what was known",
}

# Of many operations at once, the first that occurs.
PRECEDENCE = (10, 5, 9, 7, 14, 70, 12, 11, 6, 4, 3, 13, 8, 1, 0)

REFUSALS: dict[str, str] = {
    "policy_forbids": "policy",
    "approval_required": "approval",
    "authority_expired": "approval",
    "authority_revoked": "approval",
    "unknown_without_deduplication": "unknown",
    "attempt_budget_exhausted": "unknown",
    "key_conflict": "key_conflict",
    "marker_store_changed": "store",
    "marker_store_rolled_back": "store",
    "marker_expired": "store",
    "marker_unreadable": "store",
    "unresolved_twin": "twin",
    "subject_has_unknown": "twin",
    "not_the_owner": "not_owner",
    "fenced": "fenced",
}


def of_error(error: BaseException) -> int:
    """The code of an error that ended a command before there was an answer."""
    match error:
        case errors.UsageError():
            return CODES["usage"]
        case errors.Refused():
            return CODES[REFUSALS[error.refusal]]
        case errors.NotSent():
            return CODES["not_sent"]
        case errors.LedgerError():
            return CODES["ledger"]
        case errors.LinkLost() | errors.ProtocolError():
            return CODES["unknown"]
        case _:
            return CODES["fault"]


def worst(codes: Iterable[int]) -> int:
    """The code of many operations together; 0 where there were none."""
    found = set(codes)
    return next((code for code in PRECEDENCE if code in found), 0)


def passthrough(code: int, status: int | None) -> int:
    """`--exit-passthrough`: the command's own status where one was received, else 200 + N, and 255 for 70."""
    if status is not None and code in (CODES["succeeded"], CODES["failed"]):
        return status
    return 255 if code == CODES["fault"] else 200 + code
