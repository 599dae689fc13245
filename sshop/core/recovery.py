"""May there be another attempt, and why: DESIGN section 6's table as one total function.

Spacing attempts out is never what makes one allowed; nothing here knows a clock.
"""

from __future__ import annotations

from enum import StrEnum

from sshop.core.operation import (
    MARKER_STATES,
    Category,
    DispatchState,
    Effect,
    Operation,
    Refusal,
    RetryDecision,
    RetryReason,
)
from sshop.core.value import Value


class Situation(StrEnum):
    """What is known before another attempt."""

    NOTHING_DISPATCHED = "nothing_dispatched"
    ABSENT = "absent"
    RUNNING = "running"
    EXITED = "exited"
    NEVER_STARTED = "never_started"
    NO_ANSWER = "no_answer"
    TEMPORARY = "temporary"
    INTERRUPTED = "interrupted"
    FENCED = "fenced"
    STORE_CHANGED = "store_changed"
    ROLLED_BACK = "rolled_back"
    UNREADABLE = "unreadable"
    EXPIRED = "expired"


class Step(StrEnum):
    """What may be done: `run` is another attempt, `look` asks the host, `probe` evaluates the condition."""

    RUN = "run"
    LOOK = "look"
    PROBE = "probe"
    STOP = "stop"


class Recovery(Value):
    """`generation_step` is 1 where the next generation must be asked for; `ground` is the word of the wire."""

    step: Step
    decision: RetryDecision | None = None
    generation_step: int = 0
    ground: str = "first"
    refusal: Refusal | None = None
    why: str = ""


def effective_category(category: str, effects: tuple[str, ...]) -> Category:
    """Entries with `financial` or `notification` recover as append_only at least (DESIGN section 2)."""
    if category in (Category.READ_ONLY, Category.CONVERGENT) and {Effect.FINANCIAL, Effect.NOTIFICATION} & set(effects):
        return Category.APPEND_ONLY
    return Category(category)


def repeatable(operation: Operation) -> bool:
    """Whether a status that declares that nothing was done leads to another run of it."""
    return effective_category(operation.category, operation.effects) in (Category.READ_ONLY, Category.CONVERGENT)


def _run(decision: RetryDecision, why: str, step: int = 0, ground: str = "first") -> Recovery:
    return Recovery(Step.RUN, decision, step, ground, None, why)


def _stop(refusal: Refusal, why: str) -> Recovery:
    return Recovery(Step.STOP, refusal=refusal, why=why)


_LOOK = Recovery(Step.LOOK, why="the host's record can tell")
_PROBE = Recovery(Step.PROBE, why="the condition can tell")
_NOTHING = _run(RetryDecision.NOTHING_DISPATCHED, "no attempt was dispatched")
_READ = _run(RetryDecision.READ_ONLY, "the command only reads")
_DEDUP = _run(RetryDecision.DEDUPLICATED, "the marker on the verified store lets one claim win")
_NEXT = _run(RetryDecision.NOTHING_STARTED, "the host proved that nothing started", 1)
_CONVERGE = _run(
    RetryDecision.CONVERGENCE_CONDITION, "the condition decides whether anything has to run", 1, "converges"
)
_APPROVAL = _stop(Refusal.APPROVAL_REQUIRED, "running a destructive command again needs a fresh approval")
_PERSON = _stop(Refusal.UNKNOWN_WITHOUT_DEDUPLICATION, "it started, and nobody knows how it ended: a person decides")
_DONE = _stop(Refusal.POLICY_FORBIDS, "it failed; another run is a new operation")
_FENCED = _stop(Refusal.FENCED, "no further run can come, and nobody knows how the one before ended: a person decides")
_CHANGED = _stop(Refusal.STORE_CHANGED, "the marker store is not the one that was promised")
_ROLLED = _stop(Refusal.STORE_ROLLED_BACK, "the marker store was rolled back")
_UNREADABLE = _stop(Refusal.MARKER_UNREADABLE, "the marker cannot be read: a person decides")
_EXPIRED = _stop(Refusal.MARKER_EXPIRED, "the ID is older than the host remembers; a new operation may supersede it")

_R, _C, _A, _D = Category.READ_ONLY, Category.CONVERGENT, Category.APPEND_ONLY, Category.DESTRUCTIVE

TABLE: dict[Situation, dict[Category, Recovery]] = {
    Situation.NOTHING_DISPATCHED: {_R: _NOTHING, _C: _NOTHING, _A: _NOTHING, _D: _NOTHING},
    Situation.NO_ANSWER: {_R: _READ, _C: _LOOK, _A: _LOOK, _D: _LOOK},
    Situation.RUNNING: {_R: _READ, _C: _LOOK, _A: _LOOK, _D: _LOOK},
    Situation.EXITED: {_R: _READ, _C: _PROBE, _A: _LOOK, _D: _LOOK},
    Situation.ABSENT: {_R: _READ, _C: _DEDUP, _A: _DEDUP, _D: _APPROVAL},
    Situation.NEVER_STARTED: {_R: _READ, _C: _NEXT, _A: _NEXT, _D: _APPROVAL},
    Situation.TEMPORARY: {_R: _READ, _C: _CONVERGE, _A: _DONE, _D: _DONE},
    Situation.INTERRUPTED: {_R: _READ, _C: _CONVERGE, _A: _PERSON, _D: _PERSON},
    Situation.FENCED: {_R: _READ, _C: _FENCED, _A: _FENCED, _D: _FENCED},
    Situation.STORE_CHANGED: {_R: _READ, _C: _PROBE, _A: _CHANGED, _D: _CHANGED},
    Situation.ROLLED_BACK: {_R: _READ, _C: _PROBE, _A: _ROLLED, _D: _ROLLED},
    Situation.UNREADABLE: {_R: _READ, _C: _PROBE, _A: _UNREADABLE, _D: _UNREADABLE},
    Situation.EXPIRED: {_R: _READ, _C: _PROBE, _A: _EXPIRED, _D: _EXPIRED},
}

# What remains for a convergent command whose condition was probed and does not hold, or could not be evaluated.
PROBED_IN_VAIN: dict[Situation, Recovery] = {
    Situation.STORE_CHANGED: _CHANGED,
    Situation.ROLLED_BACK: _ROLLED,
    Situation.UNREADABLE: _UNREADABLE,
    Situation.EXPIRED: _EXPIRED,
    Situation.EXITED: _PERSON,
    Situation.INTERRUPTED: _stop(Refusal.BUDGET_EXHAUSTED, "all attempts are used up, and the condition does not hold"),
}


def situation(operation: Operation, lost_store: str | None = None) -> Situation:
    """What the operation's events, and what the host said of its store last, amount to."""
    if not operation.dispatched:
        return Situation.NOTHING_DISPATCHED
    if lost_store is not None:
        return Situation(lost_store)
    state = operation.host_state
    return Situation(state) if state in MARKER_STATES else Situation.NO_ANSWER


def decide(operation: Operation, known: Situation, *, budget: int | None = None) -> Recovery:
    """The row of the table for this operation, or the refusal where its attempts are used up.

    `budget` overrides the operation's own: how many dispatched attempts it may have in all.
    """
    row = TABLE[known][effective_category(operation.category, operation.effects)]
    limit = operation.budget if budget is None else budget
    if row.step is Step.RUN and known is not Situation.NOTHING_DISPATCHED and operation.dispatch_count >= limit:
        if row is _CONVERGE and known is Situation.INTERRUPTED:
            return _PROBE  # it needs no attempt to see whether the condition holds by now
        return _stop(Refusal.BUDGET_EXHAUSTED, f"all {limit} attempts of the operation are used up")
    return row


# Why the attempt before failed, as a reason of the closed list, by the code it was closed with.
REASONS: dict[str, RetryReason] = {
    "not_sent.rate_limited": RetryReason.RATE_LIMITED,
    "not_sent.login": RetryReason.CREDENTIAL_REFRESHED,
    "rate_limited": RetryReason.RATE_LIMITED,
    "destination_5xx": RetryReason.DESTINATION_5XX,
}


def reason(operation: Operation, *, operator: bool = False) -> RetryReason:
    """The reason that the next attempt names."""
    if operator:
        return RetryReason.OPERATOR_REQUESTED
    last = operation.latest
    if last is not None and last.response in REASONS:
        return REASONS[last.response]
    if last is None or not operation.dispatched or last.dispatch_state == DispatchState.NOT_SENT:
        return RetryReason.CONNECTION_NOT_ESTABLISHED
    return RetryReason.RESPONSE_LOST
