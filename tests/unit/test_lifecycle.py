"""The fold: total over the events, deterministic, and never ahead of the evidence."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from sshop import errors
from sshop.core import events, lifecycle
from sshop.core.events import TYPES, Event
from sshop.core.operation import BOUNDARY_ORDER, MARKER_STATES, State, operation_from_json, operation_to_json
from tests.support import histories as made
from tests.support.histories import attempt, event, histories, intent, opened_operation, operation

PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md"
EVIDENCE = {"response.received", "remote_record.found"}


def section(number: int) -> str:
    text = PROTOCOL.read_text()
    return text[text.index(f"\n## {number}. ") : text.index(f"\n## {number + 1}. ")]


def test_every_state_of_the_protocol_has_a_state_of_the_operation() -> None:
    documented = {
        state for line in re.findall(r"^\| (`[a-z_`, ]+`) \| ", section(6), re.MULTILINE)
        for state in re.findall(r"`([a-z_]+)`", line)
    }  # fmt: skip
    assert documented == MARKER_STATES
    assert set(lifecycle.HOST_STATE) == MARKER_STATES | {None}
    assert {state for state, said in lifecycle.HOST_STATE.items() if said is not State.UNKNOWN} == {"running"}


def body_of(type_: str) -> Any:
    """A body of that type with a value in each field."""
    cls = TYPES[type_]
    special = {
        "account": made.ACCOUNT.to_json(), "terms": {}, "command": {}, "detail": {}, "effects": [],
        "result": made.RESULT,
        "boundary": "claimed", "state": "succeeded", "host_state": "absent", "contract": "not_declared",
        "dispatch_state": "sent_no_response", "new": False, "own": True, "changed": False, "nothing_claimed": False,
        "brought": False, "generation": 1, "budget": 3, "number": 1, "pid": 1, "owner_pid": 1, "budget_remaining": 2,
        "match": "satisfied",
    }  # fmt: skip
    return cls(**{name: special.get(name, "x") for name in cls.__slots__})


WITHOUT_OPERATION = {"session.opened", "policy.loaded", "store.met"}


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_of_event_can_be_applied_or_belongs_to_none(type_: str) -> None:
    body = body_of(type_)
    before = operation(attempts=(attempt(),))
    if type_ in WITHOUT_OPERATION:
        with pytest.raises(errors.LedgerCorrupt):
            lifecycle.apply(before, event(2, body))
    elif type_ == "intent.created":
        assert lifecycle.apply(None, event(1, body)) is not None
    else:
        after = lifecycle.apply(before, event(2, body, "att_1"))
        assert after is not None
        assert after.updated_at != before.updated_at
    assert lifecycle.apply(before, event(2, body, operation_id=None)) is before


@pytest.mark.parametrize("type_", sorted(set(TYPES) - WITHOUT_OPERATION - {"intent.created"}))
def test_an_event_without_an_intent_is_corruption(type_: str) -> None:
    with pytest.raises(errors.LedgerCorrupt, match="no intent"):
        lifecycle.apply(None, event(2, body_of(type_), "att_1"))


@pytest.mark.parametrize(
    "type_", ["attempt.dispatched", "boundary.seen", "response.lost", "response.received", "attempt.closed"]
)
def test_an_event_of_an_attempt_that_is_not_there_is_corruption(type_: str) -> None:
    with pytest.raises(errors.LedgerCorrupt, match="no attempt"):
        lifecycle.apply(operation(), event(2, body_of(type_), "att_9"))


def states(history: list[Event]) -> list[Any]:
    found, current = [], None
    for item in history:
        current = lifecycle.apply(current, item)
        found.append(current)
    return found


@settings(max_examples=300)
@given(histories())
def test_no_history_ends_without_evidence_and_none_goes_back(history: list[Event]) -> None:
    seen: set[str] = set()
    boundaries: dict[str, int] = {}
    for item, current in zip(history, states(history), strict=True):
        seen.add(item.type)
        if current.state in ("succeeded", "failed"):
            assert "operation.resolved" in seen
            assert seen & EVIDENCE or current.resolved_by in ("probe", "decision")
        if current.state == "open" and current.dispatched and not any(a.in_flight for a in current.attempts):
            assert current.host_state == "running"
        assert current.unresolved == (current.dispatched and current.state in ("open", "unknown"))
        for one in current.attempts:
            rank = BOUNDARY_ORDER.index(one.boundary)
            assert rank >= boundaries.get(one.attempt_id, 0)
            boundaries[one.attempt_id] = rank
            assert one.dispatched_at is not None or rank == 0
        if current.state == "unknown":
            assert current.dispatched
        assert lifecycle.health(current) in lifecycle.Health


@settings(max_examples=200)
@given(histories())
def test_the_fold_is_deterministic_and_survives_json(history: list[Event]) -> None:
    one = lifecycle.fold(history)
    assert one == states(history)[-1] == lifecycle.fold(list(history))
    assert one is not None
    value = events.canonical(operation_to_json(one))
    import json

    assert operation_from_json(json.loads(value)) == one


@settings(max_examples=100)
@given(histories())
def test_an_operation_is_resolved_once_and_stays_so(history: list[Event]) -> None:
    found = [current.state for current in states(history) if current.resolved]
    assert len(set(found)) <= 1


# -- may_dispatch ----

SENT = {"dispatched_at": made.AT}
CLOSED = {"closed_at": made.AT, "dispatch_state": "not_sent"}


@pytest.mark.parametrize(
    ("changes", "of_attempt", "words"),
    [
        ({}, CLOSED, "closed by another"),
        ({}, SENT, "dispatched before"),
        ({"state": "cancelled"}, {}, "is cancelled by now"),
        ({"state": "succeeded"}, {}, "is succeeded by now"),
        ({"decisions": 1}, {}, "decided meanwhile"),
    ],
)
def test_a_runner_that_wakes_late_may_not_dispatch(changes: Any, of_attempt: Any, words: str) -> None:
    with pytest.raises(errors.Refused, match=words):
        lifecycle.may_dispatch(operation(attempts=(attempt(**of_attempt),), **changes), "att_1", 0)


def test_an_attempt_that_is_open_may_be_dispatched() -> None:
    lifecycle.may_dispatch(operation(attempts=(attempt(),)), "att_1", 0)


# -- health ----


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("by", [None, "result", "key_conflict"])
def test_health_is_what_is_proved(state: State, sent: int, by: str | None) -> None:
    expected = "healthy"
    if state == "duplicate_effect_confirmed":
        expected = "duplicate"
    elif by == "key_conflict":
        expected = "key_conflict"
    elif sent and state in ("open", "unknown"):
        expected = "uncertain"
    assert lifecycle.health(opened_operation(dispatched=sent, state=state, resolved_by=by)) == expected


def test_a_first_dispatch_that_counts_for_nothing_leaves_it_settled() -> None:
    one = attempt(dispatched_at=made.AT, closed_at=made.AT, nothing_claimed=True)
    assert lifecycle.settled(operation(attempts=(one,)))
    assert not lifecycle.settled(operation(attempts=(attempt(),)))
    assert not lifecycle.settled(opened_operation(dispatched=1))


def test_a_brought_id_is_not_minted_here() -> None:
    minted = lifecycle.fold([event(1, intent())])
    brought = lifecycle.fold([event(1, intent(brought=True))])
    assert minted is not None
    assert brought is not None
    assert (minted.minted_here, brought.minted_here) == (True, False)
    assert not operation(operation_id="deploy-7").minted_here


def test_values_of_the_core_are_no_dataclasses_and_are_frozen() -> None:
    assert not dataclasses.is_dataclass(operation())
    with pytest.raises(AttributeError):
        operation().state = "failed"  # type: ignore[misc]
