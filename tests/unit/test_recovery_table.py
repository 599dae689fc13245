"""May there be another attempt: DESIGN section 6's table, written anew here, cell by cell."""

import itertools

import pytest

from sshop.core import recovery
from sshop.core.operation import MARKER_STATES, Category, Effect, Operation
from sshop.core.recovery import PROBED_IN_VAIN, TABLE, Situation, Step
from tests.support.histories import opened_operation

# Situation: what each of read_only, convergent, append_only and destructive may do. A word is a step, then the ground
# of another attempt or the refusal; `+1` asks for the next generation.
EXPECTED = {
    "nothing_dispatched": ["run nothing_dispatched"] * 4,
    "no_answer": ["run read_only", "look", "look", "look"],
    "running": ["run read_only", "look", "look", "look"],
    "exited": ["run read_only", "probe", "look", "look"],
    "absent": [
        "run read_only",
        "run destination_idempotency_confirmed",
        "run destination_idempotency_confirmed",
        "stop approval_required",
    ],
    "never_started": [
        "run read_only",
        "run nothing_started +1",
        "run nothing_started +1",
        "stop approval_required",
    ],
    "temporary": ["run read_only", "run convergence_condition +1", "stop policy_forbids", "stop policy_forbids"],
    "interrupted": [
        "run read_only",
        "run convergence_condition +1",
        "stop unknown_without_deduplication",
        "stop unknown_without_deduplication",
    ],
    "fenced": ["run read_only", "stop fenced", "stop fenced", "stop fenced"],
    "store_changed": ["run read_only", "probe", "stop marker_store_changed", "stop marker_store_changed"],
    "rolled_back": ["run read_only", "probe", "stop marker_store_rolled_back", "stop marker_store_rolled_back"],
    "unreadable": ["run read_only", "probe", "stop marker_unreadable", "stop marker_unreadable"],
    "expired": ["run read_only", "probe", "stop marker_expired", "stop marker_expired"],
}
# An interrupted convergent command: the claim of the next generation evaluates the condition first, so that "probe,
# then succeeded; else the next generation" is one step on the host, which nothing can come between.
CELLS = [(s, c, EXPECTED[s][i]) for s in EXPECTED for i, c in enumerate(Category)]


def test_the_table_is_total() -> None:
    assert set(TABLE) == set(Situation)
    assert {str(situation) for situation in Situation} == set(EXPECTED)
    assert all(set(row) == set(Category) for row in TABLE.values())


@pytest.mark.parametrize(("situation", "category", "expected"), CELLS, ids=lambda value: str(value).replace(" ", "-"))
def test_each_cell_is_the_one_of_the_design(situation: str, category: Category, expected: str) -> None:
    cell = TABLE[Situation(situation)][category]
    words = [str(cell.step)]
    words += [str(word) for word in (cell.decision, cell.refusal) if word is not None]
    words += ["+1"] if cell.generation_step else []
    assert " ".join(words) == expected
    assert cell.why
    assert (cell.ground == "converges") == (cell.decision == "convergence_condition")
    assert (cell.decision is not None) == (cell.step is Step.RUN)
    assert (cell.refusal is not None) == (cell.step is Step.STOP)


def test_a_probe_in_vain_stops_wherever_the_table_probes() -> None:
    probing = {s for s, row in TABLE.items() for cell in row.values() if cell.step is Step.PROBE}
    assert set(PROBED_IN_VAIN) == probing | {Situation.INTERRUPTED}
    assert all(cell.step is Step.STOP for cell in PROBED_IN_VAIN.values())


@pytest.mark.parametrize("category", Category)
@pytest.mark.parametrize("effects", list(itertools.product([None, *Effect], repeat=2)))
def test_money_and_messages_recover_as_append_only_at_least(
    category: Category, effects: tuple[str | None, ...]
) -> None:
    named = tuple(effect for effect in effects if effect is not None)
    hazardous = "financial" in named or "notification" in named
    weak = category in ("read_only", "convergent")
    assert recovery.effective_category(category, named) == ("append_only" if hazardous and weak else category)


def dispatched(category: str, state: str | None, attempts: int = 1, budget: int = 3) -> Operation:
    return opened_operation(category=category, host_state=state, dispatched=attempts, budget=budget)


@pytest.mark.parametrize("state", [None, "claimed", "haunted", *sorted(MARKER_STATES)])
def test_every_word_of_the_host_is_a_situation(state: str | None) -> None:
    known = recovery.situation(dispatched("append_only", state))
    assert known == (state if state in MARKER_STATES else "no_answer")


@pytest.mark.parametrize("lost", ["store_changed", "rolled_back", "unreadable", "expired"])
def test_a_lost_store_matters_only_where_something_was_dispatched(lost: str) -> None:
    assert recovery.situation(dispatched("append_only", "absent"), lost) == lost
    assert recovery.situation(dispatched("append_only", None, 0), lost) == "nothing_dispatched"


@pytest.mark.parametrize("situation", Situation)
@pytest.mark.parametrize("category", Category)
def test_no_cell_runs_beyond_the_budget(situation: Situation, category: Category) -> None:
    operation = dispatched(category, None, attempts=3)
    row = recovery.decide(operation, situation)
    if situation is Situation.NOTHING_DISPATCHED:
        assert row.step is Step.RUN
    else:
        assert row.step is not Step.RUN
    within = recovery.decide(operation, situation, budget=4)
    assert within is TABLE[situation][category]


REASONS = {
    ("not_sent.unreachable", "not_sent"): "connection_not_established",
    ("not_sent.rate_limited", "not_sent"): "rate_limited",
    ("not_sent.login", "not_sent"): "credential_refreshed",
    ("rate_limited", "response_received"): "rate_limited",
    ("destination_5xx", "response_received"): "destination_5xx",
    ("link.lost", "sent_no_response"): "response_lost_after_dispatch",
}


@pytest.mark.parametrize(("how", "expected"), REASONS.items(), ids=str)
def test_the_reason_says_how_the_attempt_before_ended(how: tuple[str, str], expected: str) -> None:
    operation = opened_operation(dispatched=1, response=how[0], dispatch_state=how[1])
    assert recovery.reason(operation) == expected
    assert recovery.reason(operation, operator=True) == "operator_requested"


def test_the_reason_of_a_first_try_is_that_there_was_no_connection() -> None:
    assert recovery.reason(opened_operation()) == "connection_not_established"
