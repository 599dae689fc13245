"""What an answer of the guard says: the whole grid, against the words of DESIGN and docs/PROTOCOL.md."""

import itertools
import re
from pathlib import Path

import pytest

from sshop.cli.exit_codes import CODES
from sshop.core import outcome
from sshop.core.operation import MARKER_STATES, Category, DispatchState, Refusal, Result, State
from sshop.core.outcome import DENIALS

PROTOCOL = (Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md").read_text()
SECTION_9 = PROTOCOL[PROTOCOL.index("\n## 9. ") : PROTOCOL.index("\n## 10. ")]
NUMBERED = dict(re.findall(r"^\| (\d+) \| `([a-z_]+)` \|", SECTION_9, re.MULTILINE))

# Code: dispatch state, whether the attempt counts for nothing, state, refusal, exit.
EXPECTED = {
    "bad_request": ("execution_error", True, None, None, "not_sent"),
    "bad_fingerprint": ("execution_error", True, None, None, "not_sent"),
    "bad_input": ("execution_error", True, None, None, "not_sent"),
    "bad_store": ("execution_error", True, None, None, "store"),
    "bad_format": ("execution_error", True, None, None, "store"),
    "no_store": ("execution_error", True, None, None, "store"),
    "no_space": ("execution_error", True, None, None, "store"),
    "no_links": ("execution_error", True, None, None, "store"),
    "no_tool": ("execution_error", True, None, None, "not_sent"),
    "store_changed": ("execution_error", True, None, "marker_store_changed", "store"),
    "rolled_back": ("execution_error", True, None, "marker_store_rolled_back", "store"),
    "expired": ("response_received", False, "expired", "marker_expired", "store"),
    "key_conflict": ("response_received", True, None, "key_conflict", "key_conflict"),
    "fenced": ("response_received", False, "fenced", "fenced", "fenced"),
    "unresolved_twin": ("execution_error", True, None, "unresolved_twin", "twin"),
    "unreadable": ("response_received", False, "unreadable", "marker_unreadable", "store"),
    "interrupted": ("response_received", False, "interrupted", None, "unknown"),
    "weak_grade": ("execution_error", True, None, None, "store"),
    "no_become": ("execution_error", True, None, None, "not_sent"),
    "condition_failed": ("execution_error", False, "never_started", None, "not_sent"),
    "no_output": ("response_received", True, None, None, "not_sent"),
    "no_record": ("response_received", True, None, None, "not_sent"),
    "no_cwd": ("execution_error", True, None, None, "not_sent"),
}


def test_the_table_has_the_codes_of_the_protocol_and_no_others() -> None:
    assert list(NUMBERED) == [str(number) for number in range(1, len(NUMBERED) + 1)]
    assert set(NUMBERED.values()) == set(DENIALS) == set(EXPECTED)


@pytest.mark.parametrize("code", EXPECTED)
def test_each_row_is_what_was_decided(code: str) -> None:
    row = DENIALS[code]
    assert (row.dispatch_state, row.nothing_claimed, row.host_state, row.refusal, row.exit) == EXPECTED[code]
    assert row.exit in CODES
    assert row.dispatch_state in DispatchState
    assert row.refusal is None or row.refusal in Refusal


@pytest.mark.parametrize("code", [*EXPECTED, "unlisted"])
@pytest.mark.parametrize("claim", [None, "none", "rec_1"])
@pytest.mark.parametrize("said", [None, "haunted", *sorted(MARKER_STATES)])
def test_a_claim_or_a_marker_that_stands_counts_as_dispatched(code: str, claim: str | None, said: str | None) -> None:
    row = outcome.denial(code, claim=claim, host_state=said)
    stands = said in MARKER_STATES - {"absent"} and code not in ("key_conflict", "store_changed", "rolled_back")
    nothing = EXPECTED.get(code, (None, False))[1]
    assert row.nothing_claimed == (nothing and claim in (None, "none") and not stands)
    assert row.host_state in MARKER_STATES | {None}
    assert row.host_state != "haunted"
    if code == "key_conflict":
        assert row.host_state is None


STATUSES = [None, 0, 1, 75, 69, 126, 127, 130, 255]


def expected_state(category: str, status: int | None, killed: str | None, after: int | None, changed: bool | None):
    """DESIGN sections 2 and 4, in words of its own."""
    if status is None:
        return "succeeded" if changed is False else None
    if killed is not None and status == 0 and category in ("append_only", "destructive"):
        return None
    if killed is not None and category == "read_only":
        return "failed"
    if status != 0:
        return "failed"
    if category != "convergent":
        return "succeeded"
    if after is None or after in (126, 127) or 128 < after <= 192:
        return None
    return "succeeded" if after == 0 else "failed"


GRID = list(
    itertools.product(
        Category, STATUSES, [None, "timeout", "cancel"], [None, 0, 1], [None, 0, 1, 126, 127, 137], [None, True, False]
    )
)


def test_every_record_of_an_end_is_judged_as_the_design_says() -> None:
    for category, status, killed, before, after, changed in GRID:
        record = Result("rec", 1, status, changed, killed, before, after)
        verdict = outcome.of_result(record, category, rate_limited_exit=(75,), temporary_failure_exit=(69,))
        assert verdict.state == expected_state(category, status, killed, after, changed), record
        temporary = {75: "rate_limited", 69: "destination_5xx"}.get(status or 0) if killed is None else None
        assert verdict.temporary == temporary
        assert temporary is None or verdict.state == "failed"
        assert (verdict.by, bool(verdict.why)) == ("result", True)


@pytest.mark.parametrize("status", [0, 1, 100])
def test_other_statuses_can_be_declared_a_success(status: int) -> None:
    verdict = outcome.of_result(Result("rec", 1, status), "append_only", success_exit=(0, 100))
    assert verdict.state == ("failed" if status == 1 else "succeeded")


@pytest.mark.parametrize("code", [*EXPECTED, "unlisted"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("minted", [True, False])
@pytest.mark.parametrize("generation", [1, 2, 3])
@pytest.mark.parametrize("ran", [None, "-", "1", "0"])
def test_a_refusal_settles_only_what_it_proves(
    code: str, before: bool, minted: bool, generation: int, ran: str | None
) -> None:
    verdict = outcome.of_denial(code, dispatched_before=before, minted_here=minted, generation=generation, ran=ran)
    proved = {
        "fenced": generation == 1 or ran == "0",
        "expired": minted and not before,
        "key_conflict": not before,
    }.get(code, False)
    assert verdict.state == (State.CANCELLED if proved else None)
    assert verdict.by == {"fenced": "fence", "key_conflict": "key_conflict"}.get(code if proved else "", "host_refused")


@pytest.mark.parametrize("status", [None, *range(256)])
def test_what_a_condition_says_nothing_with(status: int | None) -> None:
    assert outcome.says_nothing(status) == (status is None or status in (126, 127) or 128 < status <= 192)
