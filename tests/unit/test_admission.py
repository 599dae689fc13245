"""What a call for an operation means, given what the ledger holds."""

import itertools
from typing import Any

import pytest

from sshop import errors
from sshop.core import admission
from sshop.core.admission import Call, Way
from sshop.core.operation import Category, Operation
from tests.support import histories as made
from tests.support.histories import attempt, operation

CALL = Call(made.ACCOUNT.key, "append_only", "f" * 64, None, None)


def alive(_: Any) -> bool:
    return True


def dead(_: Any) -> bool:
    return False


IN_FLIGHT = attempt()
NOT_SENT = attempt(closed_at=made.AT, dispatch_state="not_sent")
SENT = attempt(closed_at=made.AT, dispatched_at=made.AT, dispatch_state="sent_no_response")
NOTHING = attempt(closed_at=made.AT, dispatched_at=made.AT, nothing_claimed=True, dispatch_state="execution_error")

WAYS = {
    "in flight": (IN_FLIGHT, "open", alive, "attach"),
    "left by the dead": (IN_FLIGHT, "open", dead, "attempt"),
    "not sent": (NOT_SENT, "open", alive, "attempt"),
    "nothing claimed": (NOTHING, "open", alive, "attempt"),
    "unknown": (SENT, "unknown", alive, "settle"),
    "running": (SENT, "open", alive, "settle"),
    "succeeded": (SENT, "succeeded", alive, "answer"),
    "failed": (SENT, "failed", alive, "answer"),
    "cancelled": (NOT_SENT, "cancelled", alive, "answer"),
    "duplicate": (SENT, "duplicate_effect_confirmed", alive, "answer"),
}


@pytest.mark.parametrize("case", WAYS)
@pytest.mark.parametrize("category", Category)
def test_a_call_by_id_goes_its_way(case: str, category: Category) -> None:
    one, state, living, way = WAYS[case]
    existing = operation(attempts=(one,), state=state, category=category)
    found = admission.by_id(existing, Call(*_but(category=category)), living)
    if category == "read_only" and way == "settle":
        way = "attempt"
    assert (found.way, found.operation, found.secret_unchecked) == (way, existing, False)
    assert found.opens == (way == "attempt")


def _but(**changes: Any) -> tuple[Any, ...]:
    fields = ("account_key", "category", "fingerprint", "secret_fingerprint", "secret_key_id")
    return tuple(changes.get(name, getattr(CALL, name)) for name in fields)


def test_an_id_that_nobody_knows_is_made() -> None:
    assert admission.by_id(None, CALL, alive).way is Way.CREATE


@pytest.mark.parametrize(
    "change", [{"account_key": "root@web.example:22"}, {"fingerprint": "0" * 64}, {"category": "destructive"}]
)
@pytest.mark.parametrize("state", ["open", "unknown", "succeeded", "cancelled"])
def test_another_request_under_an_id_is_refused_in_every_state(change: Any, state: str) -> None:
    with pytest.raises(errors.Refused) as caught:
        admission.by_id(operation(attempts=(SENT,), state=state), Call(*_but(**change)), alive)
    assert (caught.value.refusal, caught.value.operation_id) == ("key_conflict", made.OP)


SECRETS = [("s1", "k1"), ("s2", "k1"), ("s1", "k2")]


@pytest.mark.parametrize(("held", "asked"), list(itertools.product(SECRETS, SECRETS)))
@pytest.mark.parametrize("case", WAYS)
def test_secrets_are_compared_only_under_one_key(held: Any, asked: Any, case: str) -> None:
    one, state, living, _ = WAYS[case]
    existing = operation(attempts=(one,), state=state, secret_fingerprint=held[0], secret_key_id=held[1])
    call = Call(*_but(secret_fingerprint=asked[0], secret_key_id=asked[1]))
    if held[1] == asked[1] and held[0] != asked[0]:
        with pytest.raises(errors.Refused, match="secret"):
            admission.by_id(existing, call, living)
        return
    found = admission.by_id(existing, call, living)
    assert found.secret_unchecked == (held[1] != asked[1])
    assert not (found.opens and found.secret_unchecked)


def test_read_only_attempts_end_with_the_budget() -> None:
    sent = tuple(attempt(n, closed_at=made.AT, dispatched_at=made.AT) for n in range(3))
    call = Call(*_but(category="read_only"))
    spent = operation(category="read_only", state="unknown", attempts=sent)
    assert admission.by_id(spent, call, alive).way is Way.SETTLE


@pytest.mark.parametrize("case", WAYS)
@pytest.mark.parametrize("category", Category)
def test_a_call_without_an_id_continues_or_meets_a_twin_or_is_new(case: str, category: Category) -> None:
    one, state, living, way = WAYS[case]
    other = operation(attempts=(one,), state=state, category=category)
    call = Call(*_but(category=category))
    if category != "read_only" and way in ("attach", "settle"):
        with pytest.raises(errors.Refused) as caught:
            admission.by_request([other], call, living)
        assert (caught.value.refusal, caught.value.operation_id) == ("unresolved_twin", made.OP)
        return
    found = admission.by_request([other], call, living)
    continued = category != "read_only" and way == "attempt"
    assert (found.way, found.operation) == (("attempt", other) if continued else ("create", None))


def candidate(**changes: Any) -> Operation:
    return operation(attempts=(NOT_SENT,), **changes)


def test_the_oldest_that_was_never_dispatched_is_continued() -> None:
    one, two = candidate(operation_id="a"), candidate(operation_id="b")
    assert admission.by_request([one, two], CALL, alive).operation is one
    assert admission.by_request([candidate(superseded_by="x"), two], CALL, alive).operation is two


def test_what_had_other_secrets_is_not_continued() -> None:
    assert admission.by_request([candidate(secret_fingerprint="other")], CALL, alive).way is Way.CREATE


@pytest.mark.parametrize("state", ["open", "unknown", "succeeded"])
@pytest.mark.parametrize("theirs", Category)
@pytest.mark.parametrize("ours", Category)
def test_an_unknown_write_blocks_its_subject_for_other_writes(state: str, theirs: Category, ours: Category) -> None:
    blocking = operation(attempts=(SENT,), state=state, category=theirs, subject_ref="account:x")
    call = Call(*_but(category=ours))
    admission.subject_free([blocking], call.category, made.OP)
    if state == "unknown" and "read_only" not in (theirs, ours):
        with pytest.raises(errors.Refused) as caught:
            admission.subject_free([blocking], call.category, "another")
        assert (caught.value.refusal, caught.value.operation_id) == ("subject_has_unknown", made.OP)
    else:
        admission.subject_free([blocking], call.category, "another")
