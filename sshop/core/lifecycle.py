"""The state of an operation as a fold of its events, and what may follow what.

`apply` is total over the event types; it judges nothing anew: states come from the events that name them, and from the
one rule that a dispatch without an answer is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from sshop import errors
from sshop.core import events
from sshop.core.events import Event
from sshop.core.operation import (
    BOUNDARY_ORDER,
    Account,
    Attempt,
    Boundary,
    Contract,
    DispatchState,
    Health,
    Operation,
    Result,
    State,
    Terms,
)
from sshop.core.value import put, replaced

# The fields of an operation that an event changes, by name.
Changes = dict[str, object]

# What a dispatched and unresolved operation is called, by what the host was last seen to say of it (MARKER_STATES).
HOST_STATE: dict[str | None, State] = {
    None: State.UNKNOWN,
    "running": State.OPEN,
    "absent": State.UNKNOWN,
    "never_started": State.UNKNOWN,
    "interrupted": State.UNKNOWN,
    "unreadable": State.UNKNOWN,
    "expired": State.UNKNOWN,
    "fenced": State.UNKNOWN,
    "exited": State.UNKNOWN,
}


_RANK: dict[str, int] = {boundary: rank for rank, boundary in enumerate(BOUNDARY_ORDER)}


def fold(history: Iterable[Event], before: Operation | None = None) -> Operation | None:
    """The operation that a history of one operation's events yields, after what it was `before` them.

    The same as `apply` for each, with one copy for them all: what nobody else holds yet is changed in place.
    """
    operation, ours = before, False
    for event in history:
        if ours and operation is not None and not isinstance(event.body, events.IntentCreated):
            put(operation, **_step(operation, event), updated_at=event.at)
        else:
            after = apply(operation, event)
            operation, ours = after, after is not operation
    return operation


def apply(operation: Operation | None, event: Event) -> Operation | None:
    """The operation after one more event; None for an event that belongs to no operation.

    Raises `LedgerCorrupt` where an event belongs to an operation or attempt that does not exist.
    """
    if event.operation_id is None:
        return operation
    body = event.body
    if isinstance(body, events.IntentCreated):
        if operation is not None:
            raise errors.LedgerCorrupt(f"event {event.seq} is a second intent of operation {event.operation_id}")
        return _created(event, body)
    if operation is None:
        raise errors.LedgerCorrupt(f"event {event.seq} belongs to operation {event.operation_id}, which has no intent")
    return replaced(operation, **_step(operation, event), updated_at=event.at)


def _created(event: Event, body: events.IntentCreated) -> Operation:
    assert event.operation_id is not None
    return Operation(
        operation_id=event.operation_id,
        session_id=event.session_id,
        owner=body.owner,
        owner_pid=body.owner_pid,
        owner_pid_start=body.owner_pid_start,
        owner_machine=body.owner_machine,
        account=Account.from_json(body.account),
        created_at=event.at,
        updated_at=event.at,
        kind=body.kind,
        name=body.name,
        summary=body.summary,
        subject_ref=body.subject_ref,
        category=body.category,
        effects=tuple(body.effects),
        command=body.command,
        fingerprint=body.fingerprint,
        secret_fingerprint=body.secret_fingerprint,
        secret_key_id=body.secret_key_id,
        budget=body.budget,
        note=body.note,
        policy_digest=body.policy_digest,
        policy_commit=body.policy_commit,
        terms=Terms.from_json(body.terms),
        new=body.new,
        contract=body.contract,
        supersedes=body.supersedes,
        brought=body.brought,
    )


def _step(operation: Operation, event: Event) -> Changes:
    match event.body:
        case events.AttemptOpened() as body:
            return {"attempts": (*operation.attempts, _opened(event, body))}
        case events.AttemptDispatched() as body:
            attempts = _with_attempt(
                operation,
                event,
                dispatched_at=event.at,
                generation=body.generation,
                boundary=further(attempt_of(operation, event.attempt_id).boundary, Boundary.REQUEST_SENT),
                boundary_seen_by="runner",
                store_id=body.store_id,
                host_key=body.host_key,
                boot=body.boot,
                authority_ref=body.authority_ref,
            )
            return {
                "attempts": attempts,
                "generation": max(operation.generation, body.generation),
                "store_id": operation.store_id or body.store_id,
                "host_state": None,
            }
        case events.BoundarySeen() as body:
            return _boundary(operation, event, body)
        case events.ResponseLost():
            return {"attempts": _with_attempt(operation, event, response="lost")}
        case events.ResponseReceived() as body:
            return _received(operation, event, body)
        case events.AttemptClosed() as body:
            return _closed(operation, event, body)
        case events.LookupPerformed() as body:
            return _looked_up(operation, body)
        case events.RemoteRecordFound() as body:
            return {
                "records": _with_record(operation, body.record_id),
                "result": Result.from_json(body.result),
                "replayed": True,
                **_observed(operation, "exited", dispatched=operation.dispatched),
            }
        case events.OperationResolved() as body:
            return {
                "state": State(body.state),
                "resolved_by": body.by,
                "resolution": body.why,
                "contract": body.contract,
                "refusal": None,
            }
        case events.RetryRefused(refusal="key_conflict"):
            return {}  # another request came under this ID; it says nothing of this one
        case events.RetryRefused() as body:
            return {"refusal": body.refusal}
        case events.RetryDecided():
            return {"refusal": None}
        case events.OwnerChanged() as body:
            return {
                "owner": body.owner,
                "owner_pid": body.owner_pid,
                "owner_pid_start": body.owner_pid_start,
                "owner_machine": body.owner_machine,
            }
        case events.OperationAcknowledged():
            return {"acknowledged": True}
        case events.OperationSuperseded() as body:
            return {"superseded_by": body.by}
        case events.ApprovalGranted() | events.ApprovalRevoked() | events.ApprovalSpent():
            return {}
        case _:
            raise errors.LedgerCorrupt(f"event {event.seq} of type {event.type} cannot belong to an operation")


def _looked_up(operation: Operation, body: events.LookupPerformed) -> Changes:
    if body.kind == "verify":
        return {"contract": Contract(body.match)}
    if body.kind == "probe":
        return {}  # what a condition says settles nothing by itself; the resolution that follows names it
    if body.host_state is None:
        return {}  # nobody answered, or not as the store that was promised
    changes = _observed(operation, body.host_state, dispatched=operation.dispatched)
    return {**changes, "generation": max(operation.generation, body.generation or 0)}


def _opened(event: Event, body: events.AttemptOpened) -> Attempt:
    assert event.attempt_id is not None
    return Attempt(
        attempt_id=event.attempt_id,
        number=body.number,
        session_id=event.session_id,
        opened_at=event.at,
        pid=body.pid,
        pid_start=body.pid_start,
        machine=body.machine,
        retry_of_attempt_id=body.retry_of_attempt_id,
        retry_reason=body.retry_reason,
        retry_decision=body.retry_decision,
        budget_remaining=body.budget_remaining,
        fingerprint=body.fingerprint,
        prior_fingerprint=body.prior_fingerprint,
        secret_fingerprint=body.secret_fingerprint,
        authority_ref=body.authority_ref,
        policy_digest=body.policy_digest,
    )


def attempt_of(operation: Operation, attempt_id: str | None) -> Attempt:
    """The attempt of that ID. Raises `LedgerCorrupt` where the operation has none."""
    for attempt in operation.attempts:
        if attempt.attempt_id == attempt_id:
            return attempt
    raise errors.LedgerCorrupt(f"operation {operation.operation_id} has no attempt {attempt_id}")


def _with_attempt(operation: Operation, event: Event, **changes: object) -> tuple[Attempt, ...]:
    attempt_of(operation, event.attempt_id)
    return tuple(
        replaced(attempt, **changes) if attempt.attempt_id == event.attempt_id else attempt
        for attempt in operation.attempts
    )


def _with_record(operation: Operation, record_id: str | None) -> tuple[str, ...]:
    if record_id is None or record_id in operation.records:
        return operation.records
    return (*operation.records, record_id)


def further(one: str, other: str) -> str:
    """The boundary that lies further on the way."""
    return other if _RANK[other] > _RANK[one] else one


def _boundary(operation: Operation, event: Event, body: events.BoundarySeen) -> Changes:
    attempt = attempt_of(operation, event.attempt_id)
    seen: Changes = {}
    if further(attempt.boundary, body.boundary) != attempt.boundary:
        seen = {"boundary": body.boundary, "boundary_seen_by": body.seen_by}
    for name in ("record_id", "sync", "host_key", "store_id"):
        if getattr(body, name) is not None:
            seen[name] = getattr(body, name)
    changes: Changes = {"attempts": _with_attempt(operation, event, **seen)}
    if body.seen_by == "host" and body.record_id is not None and body.generation is not None:
        changes["records"] = _with_record(operation, body.record_id)
        changes["claim_seen"] = (body.generation, body.record_id)
        changes["generation"] = max(operation.generation, body.generation)
    return changes


def _observed(operation: Operation, host_state: str | None, *, dispatched: bool) -> Changes:
    """What is said of an operation after the host said something of it, or nothing."""
    if operation.resolved:
        return {}
    said = HOST_STATE.get(host_state, State.UNKNOWN)
    return {"host_state": host_state, "state": said if dispatched else State.OPEN}


def _received(operation: Operation, event: Event, body: events.ResponseReceived) -> Changes:
    changes: Changes = {
        "attempts": _with_attempt(operation, event, response=body.code or body.kind, detail=body.detail),
        "host_state": body.host_state,
        "generation": max(operation.generation, body.generation or 0),
    }
    if body.result is not None:
        changes["records"] = _with_record(operation, body.record_id)
        changes["result"] = Result.from_json(body.result)
        changes["replayed"] = not body.own
    return changes


def _closed(operation: Operation, event: Event, body: events.AttemptClosed) -> Changes:
    attempt = attempt_of(operation, event.attempt_id)
    attempts = _with_attempt(
        operation,
        event,
        closed_at=event.at,
        dispatch_state=body.dispatch_state,
        boundary=further(attempt.boundary, body.boundary),
        boundary_seen_by=body.boundary_seen_by or attempt.boundary_seen_by,
        nothing_claimed=body.nothing_claimed,
        response=attempt.response or body.code,
        detail=body.detail or attempt.detail,
    )
    if body.dispatch_state == DispatchState.NOT_SENT:
        return {"attempts": attempts}
    dispatched = any(each.counts_as_dispatched for each in attempts)
    return {"attempts": attempts, **_observed(operation, operation.host_state, dispatched=dispatched)}


def may_dispatch(operation: Operation, attempt_id: str, decisions_at_opening: int) -> None:
    """Refuse what a runner that was stopped and wakes late must not do.

    Raises `Refused` where the attempt is closed, the operation resolved, or decided since the attempt was opened.
    Source: DESIGN section 3.
    """
    attempt = attempt_of(operation, attempt_id)
    name = operation.operation_id
    if not attempt.in_flight:
        raise errors.Refused("not_the_owner", f"attempt {attempt_id} was closed by another process", operation_id=name)
    if attempt.dispatched_at is not None:
        raise errors.Refused("not_the_owner", f"attempt {attempt_id} was dispatched before", operation_id=name)
    if operation.resolved:
        raise errors.Refused("not_the_owner", f"operation {name} is {operation.state} by now", operation_id=name)
    if operation.decisions != decisions_at_opening:
        raise errors.Refused("not_the_owner", f"operation {name} was decided meanwhile", operation_id=name)


def settled(operation: Operation) -> bool:
    """Whether nothing of it is in flight and no attempt counts as dispatched: as if it had only been meant."""
    return not operation.dispatched and not any(attempt.in_flight for attempt in operation.attempts)


def health(operation: Operation) -> Health:
    """Whether one distinct effect, or none, is proved (DESIGN section 2)."""
    if operation.state == State.DUPLICATE:
        return Health.DUPLICATE
    if operation.resolved_by == "key_conflict":
        return Health.KEY_CONFLICT
    if operation.unresolved:
        return Health.UNCERTAIN
    return Health.HEALTHY


def contract_at_birth(*, declared: bool) -> Contract:
    return Contract.UNCHECKED if declared else Contract.NOT_DECLARED
