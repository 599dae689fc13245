"""Evidence to outcome: what an answer of the guard, or its absence, says of attempt and operation. Total tables.

No answer is no proof: only a framed answer makes an operation succeeded, failed or cancelled.
"""

from __future__ import annotations

from sshop.core.operation import MARKER_STATES, Category, DispatchState, Refusal, Result, State
from sshop.core.value import Value, replace


class Denial(Value):
    """What a refusal code of the guard (docs/PROTOCOL.md section 9) means.

    `nothing_claimed`: it claimed nothing and no marker of the operation stands, so that the attempt counts as not
    dispatched (DESIGN section 3).
    `exit` is the exit code's name in `sshop.cli.exit_codes`.
    """

    dispatch_state: DispatchState
    nothing_claimed: bool
    host_state: str | None
    refusal: Refusal | None
    exit: str


_ERROR, _ANSWER = DispatchState.EXECUTION_ERROR, DispatchState.RESPONSE_RECEIVED

DENIALS: dict[str, Denial] = {
    "bad_request": Denial(_ERROR, True, None, None, "not_sent"),
    "bad_fingerprint": Denial(_ERROR, True, None, None, "not_sent"),
    "bad_input": Denial(_ERROR, True, None, None, "not_sent"),
    "bad_store": Denial(_ERROR, True, None, None, "store"),
    "bad_format": Denial(_ERROR, True, None, None, "store"),
    "no_store": Denial(_ERROR, True, None, None, "store"),
    "no_space": Denial(_ERROR, True, None, None, "store"),
    "no_links": Denial(_ERROR, True, None, None, "store"),
    "no_tool": Denial(_ERROR, True, None, None, "not_sent"),
    "store_changed": Denial(_ERROR, True, None, Refusal.STORE_CHANGED, "store"),
    "rolled_back": Denial(_ERROR, True, None, Refusal.STORE_ROLLED_BACK, "store"),
    "expired": Denial(_ANSWER, False, "expired", Refusal.MARKER_EXPIRED, "store"),
    "key_conflict": Denial(_ANSWER, True, None, Refusal.KEY_CONFLICT, "key_conflict"),
    "fenced": Denial(_ANSWER, False, "fenced", Refusal.FENCED, "fenced"),
    "unresolved_twin": Denial(_ERROR, True, None, Refusal.UNRESOLVED_TWIN, "twin"),
    "unreadable": Denial(_ANSWER, False, "unreadable", Refusal.MARKER_UNREADABLE, "store"),
    "interrupted": Denial(_ANSWER, False, "interrupted", None, "unknown"),
    "weak_grade": Denial(_ERROR, True, None, None, "store"),
    "no_become": Denial(_ERROR, True, None, None, "not_sent"),
    "condition_failed": Denial(_ERROR, False, "never_started", None, "not_sent"),
    "no_output": Denial(_ANSWER, True, None, None, "not_sent"),
    "no_record": Denial(_ANSWER, True, None, None, "not_sent"),
    "no_cwd": Denial(_ERROR, True, None, None, "not_sent"),
}
UNLISTED = Denial(_ERROR, False, None, None, "unknown")

# Refusals in which the state that the guard names is not this operation's, or not this store's.
_OF_ANOTHER = frozenset(["key_conflict", "store_changed", "rolled_back"])


def marker_state(word: str | None) -> str | None:
    """The state that a guard named, None where this version knows no such word: then it proves nothing."""
    return word if word in MARKER_STATES else None


def denial(code: str, *, claim: str | None, host_state: str | None) -> Denial:
    """The row of a code, corrected by what the answer says of claim and marker: a claim or marker that stands is
    dispatched, and a code that this version does not know proves nothing.
    """
    row = DENIALS.get(code, UNLISTED)
    if claim is not None and claim != "none":
        row = replace(row, nothing_claimed=False)
    said = marker_state(host_state)
    if said is not None and row.host_state is None and code not in _OF_ANOTHER:
        row = replace(row, host_state=said, nothing_claimed=row.nothing_claimed and said == "absent")
    return row


class Verdict(Value):
    """What a piece of evidence makes of the operation. `state` is None where it settles nothing."""

    state: State | None
    by: str
    why: str
    temporary: str | None = None


def signal_status(status: int) -> bool:
    """Whether a shell reports a death by signal with this status (128+N)."""
    return 128 < status <= 192


def says_nothing(status: int | None) -> bool:
    """A condition that was not evaluated, could not be run, or died."""
    return status is None or status in (126, 127) or signal_status(status)


def of_result(
    result: Result,
    category: str,
    *,
    success_exit: tuple[int, ...] = (0,),
    rate_limited_exit: tuple[int, ...] = (),
    temporary_failure_exit: tuple[int, ...] = (),
) -> Verdict:
    """What the host's record of an end says.

    A convergent command succeeded by a success exit *and* its condition; one that was so already ran nothing. Where the
    condition was not evaluated after the run, nothing is settled. Nor is it where a command that was told to end left
    an exit of success: it may have done all of it, or have stopped in good order half-way.
    """
    if result.status is None:
        if result.changed is False:
            return Verdict(State.SUCCEEDED, "result", "the condition held already; nothing had to run")
        return Verdict(None, "result", "the record names no exit status")
    status = result.status
    if result.killed is not None and not (status in success_exit and category == Category.CONVERGENT):
        cause = {"timeout": "its time limit", "cancel": "a cancel request"}.get(result.killed, result.killed)
        if status in success_exit and category != Category.READ_ONLY:
            why = f"told to end because of {cause}, it left exit status {status}: whether it did all of it is not known"
            return Verdict(None, "result", why)
        return Verdict(State.FAILED, "result", f"the guard ended it because of {cause}")
    if status in success_exit:
        if category != Category.CONVERGENT:
            return Verdict(State.SUCCEEDED, "result", f"the host recorded exit status {status}")
        if result.after is None or says_nothing(result.after):
            return Verdict(None, "result", f"exit status {status}, but the condition was not evaluated afterwards")
        if result.after == 0:
            return Verdict(State.SUCCEEDED, "result", f"exit status {status}, and the condition holds")
        return Verdict(State.FAILED, "result", f"exit status {status}, and the condition still does not hold")
    temporary = None
    if status in rate_limited_exit:
        temporary = "rate_limited"
    elif status in temporary_failure_exit:
        temporary = "destination_5xx"
    return Verdict(State.FAILED, "result", f"the host recorded exit status {status}", temporary)


def never_ran(ran: str | None, generation: int) -> bool:
    """Whether a fence of that generation stands above nothing that was ever started, by the guard's word for it."""
    return generation <= 1 or ran == "0"


def of_denial(
    code: str, *, dispatched_before: bool, minted_here: bool, generation: int, ran: str | None = None
) -> Verdict:
    """What a refusal of the guard settles. Source: DESIGN section 4 (fence, horizon)."""
    match code:
        case "fenced" if never_ran(ran, generation):
            return Verdict(State.CANCELLED, "fence", "the operation was fenced before it ran; it never will")
        case "expired" if minted_here and not dispatched_before:
            return Verdict(State.CANCELLED, "host_refused", "its ID is older than the host's horizon; it never ran")
        case "key_conflict" if not dispatched_before:
            return Verdict(State.CANCELLED, "key_conflict", "the ID belongs to another request on the host")
        case _:
            return Verdict(None, "host_refused", f"the host refused: {code}")
