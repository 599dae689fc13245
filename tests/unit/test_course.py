"""The way of one call through one operation, against a simulated host: every branch, without a network."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sshop import errors, probe, reconcile
from sshop.cli import document
from sshop.cli.document import follow_up
from sshop.cli.exit_codes import CODES, of_error
from sshop.core import command as commands
from sshop.core import events
from sshop.core.command import Command, Secret, Stdin, text
from sshop.core.operation import Account, Contract, Operation, State, Terms
from sshop.core.value import replace
from sshop.ending import exit_name
from sshop.question import ask, question
from sshop.replay import Course, Mode
from sshop.world import Answer, Intent
from tests.support.fakes import ACCOUNT, Bench, Plan

CONDITION = (text("test"), text("-e"), text("x"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def intent(category: str = "append_only", *words: str, **changes: Any) -> Intent:
    condition = CONDITION if category == "convergent" else ()
    command = changes.pop("command", None) or Command(
        argv=tuple(text(word) for word in words or ("do", "it")), condition=condition,
        secrets=changes.pop("secrets", ()), stdin=changes.pop("stdin", None),
    )  # fmt: skip
    values: dict[str, Any] = {
        "account": ACCOUNT, "command": command, "category": category, "effects": (), "kind": "raw", "name": None,
        "summary": commands.display(command), "subject_ref": None, "budget": 3, "note": None, "policy_digest": None,
        "policy_commit": None, "terms": Terms(),
    }  # fmt: skip
    return Intent(**{**values, **changes})


async def run(bench: Bench, meant: Intent, *plans: Plan, acknowledged: bool = True, **mode: Any) -> Answer:
    bench.host.plans += plans
    answer = await Course(bench.world, bench.line(), Mode(**mode)).run(meant)
    if acknowledged and answer.after is not None:
        await answer.after()
    assert bench.ledger.verify().ok or bench.ledger.gone
    return answer


async def replay(bench: Bench, operation_id: str, *plans: Plan, **mode: Any) -> Answer:
    bench.host.plans += plans
    answer = await Course(bench.world, bench.line(), Mode(operator=True, **mode)).replay(
        bench.world.operation(operation_id)
    )
    if answer.after is not None:
        await answer.after()
    return answer


def of(answer: Answer) -> Operation:
    assert answer.operation is not None
    return answer.operation


def code(answer: Answer) -> int:
    return CODES[answer.exit]


def attempts(answer: Answer) -> list[str | None]:
    return [attempt.dispatch_state for attempt in of(answer).attempts]


def types(bench: Bench, answer: Answer) -> list[str]:
    return [event.type for event in bench.ledger.events(of(answer).operation_id)]


# -- the straight way ----


@pytest.mark.parametrize("category", ["read_only", "convergent", "append_only", "destructive"])
async def test_a_run_succeeds_with_one_effect(bench: Bench, category: str) -> None:
    answer = await run(bench, intent(category))
    assert (code(answer), of(answer).state, len(bench.host.effects)) == (0, "succeeded", 1)
    order = types(bench, answer)
    assert order.index("attempt.dispatched") < order.index("boundary.seen") < order.index("operation.resolved")
    assert ("operation.acknowledged" in order) == (category != "read_only")


async def test_a_failed_command_is_failed(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(status=3))
    assert (code(answer), of(answer).state) == (1, "failed")
    assert of(answer).result is not None


async def test_a_condition_that_holds_already_runs_nothing(bench: Bench) -> None:
    bench.host.condition = 0
    answer = await run(bench, intent("convergent"))
    assert (code(answer), bench.host.effects) == (0, [])
    assert of(answer).result is not None
    assert of(answer).result.changed is False


async def test_a_condition_that_does_not_hold_afterwards_is_a_failure(bench: Bench) -> None:
    assert code(await run(bench, intent("convergent"), Plan(after=1))) == 1


# -- not sent ----


async def test_not_sent_is_tried_again_with_growing_pauses_up_to_the_limit(bench: Bench) -> None:
    answer = await run(bench, intent(), *[Plan(connect=errors.HostUnreachable("refused")) for _ in range(9)])
    assert (code(answer), of(answer).state) == (8, "open")
    assert attempts(answer) == ["not_sent"] * 5
    assert bench.clock.sleeps == sorted(bench.clock.sleeps)
    assert len(bench.clock.sleeps) == 4
    parents = [attempt.retry_of_attempt_id for attempt in of(answer).attempts]
    assert parents == [None, *[attempt.attempt_id for attempt in of(answer).attempts[:-1]]]
    assert {a.retry_reason for a in of(answer).attempts[1:]} == {"connection_not_established"}
    assert {a.retry_decision for a in of(answer).attempts[1:]} == {"nothing_dispatched"}


async def test_a_rate_limit_of_sshd_is_not_sent_and_names_its_reason(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(connect=errors.RateLimited()))
    assert (code(answer), attempts(answer)) == (0, ["not_sent", "response_received"])
    assert of(answer).attempts[1].retry_reason == "rate_limited"


@pytest.mark.parametrize("error", [errors.LoginRefused(), errors.HostKeyRefused(), errors.InputUnavailable()])
async def test_what_would_end_the_same_way_is_not_tried_again(bench: Bench, error: errors.NotSent) -> None:
    answer = await run(bench, intent(), Plan(connect=error))
    assert (code(answer), attempts(answer), answer.code) == (8, ["not_sent"], error.code)
    assert bench.clock.sleeps == []


async def test_another_call_continues_what_was_never_dispatched(bench: Bench) -> None:
    first = await run(bench, intent(), Plan(connect=errors.LoginRefused()))
    second = await run(bench, intent())
    assert (code(second), of(second).operation_id) == (0, of(first).operation_id)
    assert of(second).attempts[1].retry_reason == "credential_refreshed"


@pytest.mark.parametrize("word", ["head", "hello"])
@pytest.mark.parametrize("recover", ["auto", "look", "none"])
async def test_a_cut_before_dispatch_is_not_sent(bench: Bench, word: str, recover: str) -> None:
    meant = intent(stdin=Stdin(3, None, Secret(b"abc"))) if word == "hello" else intent()
    answer = await run(bench, meant, Plan(cut=word), recover=recover)
    assert (code(answer), len(bench.host.effects)) == ((8, 0) if recover == "none" else (0, 1))
    assert attempts(answer)[0] == "not_sent"


# -- a lost answer ----


@pytest.mark.parametrize("category", ["convergent", "append_only", "destructive"])
@pytest.mark.parametrize("word", ["go", "claimed", "started", "result", "data"])
@pytest.mark.parametrize("recover", ["auto", "look"])
async def test_a_lost_answer_is_looked_for_and_adopted(bench: Bench, category: str, word: str, recover: str) -> None:
    answer = await run(bench, intent(category), Plan(cut=word), recover=recover)
    assert (code(answer), len(bench.host.effects)) == (0, 1)
    assert attempts(answer) == ["sent_no_response"]
    assert of(answer).replayed
    assert answer.stdout == b"done\n"
    assert {"response.lost", "lookup.performed", "remote_record.found", "operation.acknowledged"} <= set(
        types(bench, answer)
    )


async def test_without_recovery_it_stays_unknown_until_replay(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="go"), recover="none")
    assert (code(answer), of(answer).state, of(answer).result) == (5, "unknown", None)
    after = await replay(bench, of(answer).operation_id)
    assert (code(after), of(after).state, len(bench.host.effects)) == (0, "succeeded", 1)


async def test_a_request_that_never_arrived_runs_again_under_its_id(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="lost_go"))
    assert (code(answer), len(bench.host.effects)) == (0, 1)
    second = of(answer).attempts[1]
    assert (second.retry_reason, second.retry_decision, second.generation) == (
        "response_lost_after_dispatch",
        "destination_idempotency_confirmed",
        1,
    )


async def test_a_destructive_command_is_looked_for_and_not_run_again(bench: Bench) -> None:
    answer = await run(bench, intent("destructive"), Plan(cut="lost_go"))
    assert (code(answer), bench.host.effects, of(answer).refusal) == (5, [], "approval_required")
    assert attempts(answer) == ["sent_no_response"]


async def test_an_interrupted_append_only_command_waits_for_a_person(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(end="interrupted"))
    assert (code(answer), of(answer).state) == (5, "unknown")
    assert of(answer).refusal == "unknown_without_deduplication"
    assert len(bench.host.effects) == 1
    again = await run(bench, intent(operation_id=of(answer).operation_id))
    assert (code(again), len(bench.host.effects)) == (5, 1)


async def test_an_interrupted_convergent_command_asks_for_the_next_generation(bench: Bench) -> None:
    answer = await run(bench, intent("convergent"), Plan(end="interrupted"))
    second = of(answer).attempts[1]
    assert (code(answer), second.generation, second.retry_decision) == (0, 2, "convergence_condition")
    dispatched = [e.body for e in bench.ledger.events(of(answer).operation_id) if e.type == "attempt.dispatched"]
    assert [body.ground for body in dispatched] == ["first", "converges"]


async def test_money_and_messages_are_not_repeated_by_rule(bench: Bench) -> None:
    meant = intent("convergent", effects=("financial",))
    answer = await run(bench, meant, Plan(end="interrupted"))
    assert (code(answer), len(bench.host.effects)) == (5, 1)


async def test_what_was_claimed_and_never_started_runs_as_the_next_generation(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(end="never_started"))
    assert (code(answer), len(bench.host.effects), of(answer).generation) == (0, 1, 2)
    assert of(answer).attempts[1].retry_decision == "nothing_started"


async def test_an_unreadable_marker_is_exit_9_and_is_never_run(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(end="unreadable"))
    assert (code(answer), bench.host.effects, of(answer).refusal) == (9, [], "marker_unreadable")


async def test_read_only_runs_again_after_a_pause(bench: Bench) -> None:
    answer = await run(bench, intent("read_only"), Plan(cut="go"), Plan(cut="go"), recover="look")
    assert (code(answer), len(bench.host.effects)) == (0, 3)
    assert len(bench.clock.sleeps) == 2


async def test_read_only_has_a_budget_over_all_calls(bench: Bench) -> None:
    answer = await run(bench, intent("read_only"), *[Plan(cut="go") for _ in range(9)])
    assert (code(answer), of(answer).refusal, len(bench.host.effects)) == (5, "attempt_budget_exhausted", 3)
    again = await run(bench, intent("read_only", operation_id=of(answer).operation_id))
    assert (code(again), len(bench.host.effects)) == (5, 3)


async def test_the_budget_counts_over_all_calls(bench: Bench) -> None:
    answer = await run(bench, intent(budget=2), Plan(cut="lost_go"), recover="none")
    answer = await replay(bench, of(answer).operation_id, Plan(cut="lost_go"), recover="auto")
    assert (code(answer), of(answer).refusal, of(answer).dispatch_count) == (5, "attempt_budget_exhausted", 2)
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), bench.host.effects) == (5, [])


async def test_a_convergent_command_without_attempts_left_is_probed(bench: Bench) -> None:
    answer = await run(bench, intent("convergent", budget=1), Plan(end="interrupted"))
    assert (code(answer), of(answer).refusal) == (5, "attempt_budget_exhausted")
    bench.host.condition = 0
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), of(answer).resolved_by) == (0, "probe")


async def test_looking_fails_as_often_as_attempts_may_and_then_it_is_unknown(bench: Bench) -> None:
    bench.host.question_faults = [errors.LinkLost("cut") for _ in range(20)]
    answer = await run(bench, intent(), Plan(cut="go"))
    assert (code(answer), of(answer).state) == (5, "unknown")
    assert bench.host.asked.count("inquire") == 5
    assert len(bench.clock.sleeps) == 4


# -- failures that an entry calls temporary ----

TEMPORARY = Terms(rate_limited_exit=(75,), temporary_failure_exit=(69,))


@pytest.mark.parametrize(("status", "reason"), [(75, "rate_limited"), (69, "destination_5xx")])
@pytest.mark.parametrize("cut", [None, "started"])
async def test_a_temporary_failure_opens_the_next_generation(
    bench: Bench, status: int, reason: str, cut: str | None
) -> None:
    answer = await run(bench, intent("convergent", terms=TEMPORARY), Plan(status=status, after=1, cut=cut))
    assert (code(answer), len(bench.host.effects), of(answer).generation) == (0, 2, 2)
    assert cut or of(answer).attempts[1].retry_reason == reason
    assert len(bench.clock.sleeps) == 1


async def test_a_temporary_failure_without_attempts_left_is_failed(bench: Bench) -> None:
    plans = [Plan(status=75, after=1) for _ in range(5)]
    answer = await run(bench, intent("convergent", terms=TEMPORARY), *plans)
    assert (code(answer), of(answer).state, len(bench.host.effects)) == (1, "failed", 3)


@pytest.mark.parametrize("category", ["append_only", "destructive"])
async def test_a_temporary_status_of_other_commands_is_a_failure(bench: Bench, category: str) -> None:
    answer = await run(bench, intent(category, terms=TEMPORARY), Plan(status=75))
    assert (code(answer), len(bench.host.effects)) == (1, 1)


# -- the store ----


async def met(bench: Bench) -> None:
    assert code(await run(bench, intent("append_only", "before"))) == 0


@pytest.mark.parametrize("category", ["convergent", "append_only", "destructive"])
async def test_another_store_before_the_first_dispatch_is_exit_9_and_nothing_is_sent(
    bench: Bench, category: str
) -> None:
    await met(bench)
    bench.host.store = "st_2"
    answer = await run(bench, intent(category))
    assert (code(answer), attempts(answer), of(answer).refusal) == (9, ["not_sent"], "marker_store_changed")
    assert len(bench.host.effects) == 1


async def test_a_missing_witness_is_exit_9_and_nothing_is_sent(bench: Bench) -> None:
    await met(bench)
    bench.host.markers.clear()
    answer = await run(bench, intent("destructive"))
    assert (code(answer), attempts(answer), of(answer).refusal) == (9, ["not_sent"], "marker_store_rolled_back")


async def test_another_store_after_a_lost_answer_stops(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="go"), recover="none")
    bench.host.store, bench.host.markers = "st_2", {}
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), of(answer).state, len(bench.host.effects)) == (9, "unknown", 1)
    assert of(answer).refusal == "marker_store_changed"


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("loss", ["changed", "rolled_back"])
async def test_a_convergent_command_is_probed_where_the_store_is_lost(bench: Bench, holds: bool, loss: str) -> None:
    answer = await run(bench, intent("convergent"), Plan(cut="started", after=1), recover="none")
    bench.host.markers.clear()
    bench.host.condition = 0 if holds else 1
    if loss == "changed":
        bench.host.store = "st_2"
    answer = await replay(bench, of(answer).operation_id)
    assert code(answer) == (0 if holds else 9)
    assert of(answer).state == ("succeeded" if holds else "unknown")
    assert of(answer).resolved_by == ("probe" if holds else None)
    assert len(bench.host.effects) == 1


async def test_an_operation_is_bound_to_its_store_also_where_another_was_adopted(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="claimed"), recover="none")
    bench.host.store, bench.host.markers = "st_2", {}
    bench.world.append([bench.world.draft(events.StoreMet(ACCOUNT.key, "st_2", "m-1", "file_synced"))])
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), len(bench.host.effects)) == (9, 1)


async def test_a_missing_marker_after_a_seen_claim_is_a_rollback(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="claimed"), recover="none")
    bench.host.markers.clear()
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), of(answer).refusal, len(bench.host.effects)) == (9, "marker_store_rolled_back", 1)


async def test_an_unsynced_store_proves_absence_only_on_the_same_boot(bench: Bench) -> None:
    bench.host.grade = "unsynced"
    answer = await run(bench, intent(), Plan(cut="lost_go"), recover="none")
    bench.host.boot = "b-2"
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), bench.host.effects) == (9, [])


async def test_an_expired_id_that_was_minted_here_is_cancelled_and_not_sent(bench: Bench) -> None:
    bench.clock.passed = -1_000_000
    bench.host.horizon = "op_7zzzzzzzzzzzzzzzzzzzzzzzzz"
    answer = await run(bench, intent())
    assert (code(answer), of(answer).state, attempts(answer)) == (8, "cancelled", ["not_sent"])


async def test_an_expired_id_that_was_brought_is_unknown(bench: Bench) -> None:
    bench.host.horizon = "op_7zzzzzzzzzzzzzzzzzzzzzzzzz"
    answer = await run(bench, intent(operation_id="op_01aryz6s41tst9zz0gpq8n9jvq"))
    assert (code(answer), of(answer).state, of(answer).refusal) == (9, "unknown", "marker_expired")


# -- what stands on the host from before ----


@pytest.mark.parametrize(("end", "exit_code"), [("interrupted", 5), ("unreadable", 9)])
async def test_a_ledger_that_was_lost_finds_what_stands_and_stops(tmp_path: Path, end: str, exit_code: int) -> None:
    old = Bench(tmp_path)
    await run(old, intent(operation_id="deploy-7"), Plan(end=end), recover="none")
    new = Bench(tmp_path, pid=500, session="ses_two", ledger_name="other.sqlite", host=old.host)
    answer = await run(new, intent(operation_id="deploy-7"))
    assert (code(answer), of(answer).state, len(attempts(answer))) == (exit_code, "unknown", 1)
    assert len(old.host.effects) == (1 if end == "interrupted" else 0)


async def test_a_ledger_that_was_lost_adopts_a_result_and_acknowledges_it(tmp_path: Path) -> None:
    old = Bench(tmp_path)
    await run(old, intent(operation_id="deploy-7"), acknowledged=False)
    new = Bench(tmp_path, pid=500, session="ses_two", ledger_name="other.sqlite", host=old.host)
    answer = await run(new, intent(operation_id="deploy-7"))
    assert (code(answer), of(answer).replayed, len(old.host.effects)) == (0, True, 1)
    assert old.host.newest("deploy-7").acked
    assert answer.code is None


async def test_a_ledger_that_was_lost_cannot_check_the_secrets_of_a_result(tmp_path: Path) -> None:
    old = Bench(tmp_path)
    await run(old, intent(operation_id="deploy-7", secrets=(("TOKEN", Secret(b"one")),)))
    new = Bench(tmp_path, pid=500, session="ses_two", ledger_name="other.sqlite", host=old.host)
    answer = await run(new, intent(operation_id="deploy-7", secrets=(("TOKEN", Secret(b"two")),)))
    assert (code(answer), answer.code, len(old.host.effects)) == (0, "secret_unchecked", 1)


async def test_an_id_of_another_request_on_the_host_is_a_key_conflict(tmp_path: Path) -> None:
    old = Bench(tmp_path)
    await run(old, intent("append_only", "other", operation_id="deploy-7"))
    new = Bench(tmp_path, pid=500, session="ses_two", ledger_name="other.sqlite", host=old.host)
    answer = await run(new, intent(operation_id="deploy-7"))
    assert (code(answer), of(answer).state, of(answer).resolved_by) == (7, "cancelled", "key_conflict")
    assert len(old.host.effects) == 1


async def test_a_look_does_not_adopt_the_result_of_another_request(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="go"), recover="none")
    bench.host.newest(of(answer).operation_id).fp = "0" * 64
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), of(answer).state, of(answer).result) == (7, "unknown", None)


# -- twins ----


async def test_the_same_request_after_an_unknown_outcome_is_a_twin(bench: Bench) -> None:
    first = await run(bench, intent(), Plan(cut="go"), recover="none")
    with pytest.raises(errors.Refused) as caught:
        await run(bench, intent())
    assert (caught.value.refusal, caught.value.operation_id) == ("unresolved_twin", of(first).operation_id)
    assert CODES["twin"] == of_error(caught.value) == 11
    assert code(await run(bench, intent(new=True))) == 0
    assert len(bench.host.effects) == 2


async def test_a_twin_of_another_ledger_is_found_on_the_host(tmp_path: Path) -> None:
    old = Bench(tmp_path)
    first = await run(old, intent(), acknowledged=False)
    new = Bench(tmp_path, pid=500, session="ses_two", ledger_name="other.sqlite", host=old.host)
    answer = await run(new, intent())
    assert (code(answer), answer.code, len(old.host.effects)) == (11, "unresolved_twin", 1)
    assert of(first).operation_id in (answer.hint or "")
    assert (of(answer).state, attempts(answer), of(answer).dispatched) == ("open", ["execution_error"], False)


async def test_a_resolved_twin_is_acknowledged_before_go(bench: Bench) -> None:
    await run(bench, intent(), acknowledged=False)
    answer = await run(bench, intent())
    assert (code(answer), len(bench.host.effects)) == (0, 2)
    assert bench.host.asked == ["run", "run", "ack"]


async def test_a_replay_respects_a_subject_with_an_unknown_operation_as_a_run_does(bench: Bench) -> None:
    meant = intent("append_only", "two", subject_ref="account:x")
    first = await run(bench, meant, Plan(connect=errors.LoginRefused()))
    unknown = await run(bench, intent("append_only", "one", subject_ref="account:x"), Plan(cut="go"), recover="none")
    name, effects = of(first).operation_id, list(bench.host.effects)
    refused = await replay(bench, name)
    assert (code(refused), refused.code, bench.host.effects) == (11, "subject_has_unknown", effects)
    await replay(bench, of(unknown).operation_id)
    assert code(await replay(bench, name)) == 0


@pytest.mark.parametrize(
    ("then", "now"),
    [({"category": "convergent"}, {}), ({}, {"category": "destructive"}), ({}, {"effects": ("financial",)})],
)
async def test_what_another_policy_sorted_otherwise_is_not_continued(
    bench: Bench, then: dict[str, Any], now: dict[str, Any]
) -> None:
    """By its old category the run would be judged and recovered by rules that hold no more."""
    before = await run(bench, intent(**then), Plan(connect=errors.LoginRefused()))
    answer = await run(bench, intent(**now))
    assert code(answer) == 0
    assert of(answer).operation_id != of(before).operation_id
    assert of(answer).category == now.get("category", "append_only")


async def test_a_subject_with_an_unknown_operation_is_refused(bench: Bench) -> None:
    await run(bench, intent("append_only", "one", subject_ref="account:x"), Plan(cut="go"), recover="none")
    with pytest.raises(errors.Refused, match="unknown outcome") as caught:
        await run(bench, intent("append_only", "two", subject_ref="account:x"))
    assert of_error(caught.value) == 11
    assert code(await run(bench, intent("read_only", "two", subject_ref="account:x"))) == 0


# -- refusals of the host ----

DENIED = {
    "bad_request": 8, "bad_fingerprint": 8, "bad_input": 8, "bad_store": 9, "bad_format": 9, "no_store": 9,
    "no_space": 9, "no_links": 9, "no_tool": 8, "weak_grade": 9, "no_become": 8, "no_cwd": 8, "store_changed": 9,
    "rolled_back": 9, "unresolved_twin": 11, "no_output": 8, "no_record": 8,
}  # fmt: skip


@pytest.mark.parametrize(("denied", "exit_code"), DENIED.items())
async def test_a_refusal_that_claimed_nothing_counts_as_not_dispatched(
    bench: Bench, denied: str, exit_code: int
) -> None:
    answer = await run(bench, intent(), Plan(deny=denied))
    assert (code(answer), of(answer).dispatched, of(answer).state) == (exit_code, False, "open")
    assert len(of(answer).attempts) == 1
    again = await run(bench, intent(operation_id=of(answer).operation_id))
    assert (code(again), len(bench.host.effects)) == (0, 1)


async def test_a_refusal_with_a_claim_that_stands_counts(bench: Bench) -> None:
    fields = "claim=rec_x op=never_started gen=1 rec=rec_x twin=-"
    answer = await run(bench, intent(), Plan(deny="condition_failed", deny_fields=fields))
    assert (code(answer), of(answer).dispatched, of(answer).state) == (8, True, "unknown")


@pytest.mark.parametrize("fields", ["claim=- op=haunted gen=1 rec=- twin=-", "claim=none op=- gen=- rec=- twin=-"])
async def test_words_that_this_version_does_not_know_prove_nothing(bench: Bench, fields: str) -> None:
    answer = await run(bench, intent(), Plan(deny="no_such_code", deny_fields=fields), recover="none")
    assert (code(answer), of(answer).state, of(answer).host_state) == (5, "unknown", None)


@pytest.mark.parametrize(
    "lines",
    [
        ["state op=haunted gen=1 rec=rec_x", "end"], ["end"], ["result gen=1", "end"], ["result status=x", "end"],
        ["data stream=out offset=0 bytes=-3", "end"], ["claimed gen=x rec=y", "end"], ["hello", "end"],
    ],
)  # fmt: skip
async def test_an_answer_that_cannot_be_read_is_a_lost_one(bench: Bench, lines: list[str]) -> None:
    answer = await run(bench, intent(), Plan(lines=lines), recover="none")
    assert (code(answer), of(answer).state) == (5, "unknown")


# -- fences ----


async def test_a_fenced_operation_never_runs(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(cut="lost_go"), recover="none")
    fenced = await reconcile.fence(bench.world, bench.line(), of(answer))
    assert (exit_name(fenced), of(fenced).state) == ("fenced", "cancelled")
    again = await run(bench, intent(operation_id=of(answer).operation_id))
    assert (code(again), bench.host.effects) == (13, [])


@pytest.mark.parametrize("reached", [False, True])
async def test_a_fence_of_what_was_never_dispatched_needs_no_host(bench: Bench, reached: bool) -> None:
    await run(bench, intent("append_only", "another"))
    answer = await run(bench, intent(), Plan(connect=errors.LoginRefused()))
    if reached:
        bench.host.store = "st_2"
    else:
        bench.host.plans.append(Plan(connect=errors.LoginRefused()))
    fenced = await reconcile.fence(bench.world, bench.line(), of(answer))
    assert (of(fenced).state, of(fenced).resolved_by) == ("cancelled", "nothing_dispatched")


@pytest.mark.parametrize("end", ["exits", "runs"])
async def test_a_fence_by_a_ledger_that_was_restored_from_a_copy_asks_the_host(bench: Bench, end: str) -> None:
    """The copy was made before the dispatch: what it does not know of has run all the same."""
    answer = await run(bench, intent(), Plan(connect=errors.LoginRefused()))
    with sqlite3.connect(bench.folder / "copy.sqlite") as copy:
        sqlite3.connect(bench.folder / bench.ledger_name).backup(copy)
    await run(bench, intent(), Plan(end=end), wait_s=0)
    restored = Bench(bench.folder, ledger_name="copy.sqlite", host=bench.host, pid=bench.pid + 1)
    fenced = await reconcile.fence(restored.world, restored.line(), restored.world.operation(of(answer).operation_id))
    assert of(fenced).state == ("succeeded" if end == "exits" else "open")
    restored.close()


async def test_nothing_sent_to_another_store_is_not_called_safe_to_repeat(bench: Bench) -> None:
    await run(bench, intent("append_only", "another"))
    bench.host.store = "st_2"
    answer = await run(bench, intent())
    assert (code(answer), of(answer).state, follow_up(answer)["action"]) == (9, "open", "decide")


async def test_what_settled_an_operation_first_stands(bench: Bench) -> None:
    answer = await run(bench, intent("convergent"), Plan(end="interrupted"), recover="none")
    stale = of(answer)
    await reconcile.fence(bench.world, bench.line(), stale)
    late = events.OperationResolved("failed", "result", None, 1, None, "unchecked", "late")
    settled = events.OperationResolved("cancelled", "fence", None, 1, None, "unchecked", "first")
    for body in (settled, late):
        bench.world.append([bench.world.draft(body, stale.operation_id)])
    bench.host.condition = 0
    await probe.probe_condition(bench.world, bench.line(), stale)
    assert bench.world.operation(stale.operation_id).state == "cancelled"
    assert types(bench, answer).count("operation.resolved") == 1


@pytest.mark.parametrize("name", ["deploy-7", "op_01aryz6s41tst9zz0gpq8n9jvq"])
async def test_a_fence_of_a_brought_id_asks_the_host(bench: Bench, name: str) -> None:
    answer = await run(bench, intent(operation_id=name), Plan(connect=errors.LoginRefused()))
    fenced = await reconcile.fence(bench.world, bench.line(), of(answer))
    assert (of(fenced).state, of(fenced).resolved_by, bench.host.asked) == ("cancelled", "fence", ["fence"])


async def test_a_fence_above_an_interrupted_run_leaves_it_unknown(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(end="interrupted"))
    fenced = await reconcile.fence(bench.world, bench.line(), of(answer))
    assert (exit_name(fenced), of(fenced).state) == ("unknown", "unknown")
    assert follow_up(fenced)["action"] == "decide"
    # 13 says that it never ran; nothing says that of this one, whoever asks
    again = await run(bench, intent(operation_id=of(answer).operation_id))
    looked = await replay(bench, of(answer).operation_id)
    assert (code(again), code(looked), len(bench.host.effects)) == (5, 5, 1)


async def test_a_fence_that_reaches_no_host_says_nothing_of_what_was_never_dispatched(bench: Bench) -> None:
    answer = await run(bench, intent(operation_id="deploy-8"), Plan(connect=errors.LoginRefused()))
    bench.host.plans.append(Plan(connect=errors.LoginRefused()))
    fenced = await reconcile.fence(bench.world, bench.line(), of(answer))
    assert (exit_name(fenced), of(fenced).state) == ("not_sent", "open")


async def test_a_fence_above_a_run_that_never_started_cancels_only_where_no_earlier_one_did(bench: Bench) -> None:
    meant = intent("convergent")
    answer = await run(bench, meant, Plan(end="interrupted"), recover="none")
    answer = await replay(bench, of(answer).operation_id, Plan(end="never_started"), recover="auto", tries=1)
    bench.host.newest(of(answer).operation_id).state = "never_started"
    looked = await reconcile.look(bench.world, bench.line(), of(answer))
    if not of(looked).resolved:
        fenced = await reconcile.fence(bench.world, bench.line(), of(looked))
        assert of(fenced).state == "unknown"


@pytest.mark.parametrize("heard", [True, False])
async def test_a_fence_above_what_never_started_cancels_though_nobody_looked_before(bench: Bench, heard: bool) -> None:
    """Also where its own answer is lost: whoever looks later is told what stands below it."""
    answer = await run(bench, intent("append_only"), Plan(end="never_started"), recover="none")
    assert (of(answer).state, of(answer).host_state) == ("unknown", None)
    if heard:
        fenced = await reconcile.fence(bench.world, bench.line(), of(answer))
    else:
        await ask(bench.line(), question(bench.world, of(answer), "fence", wait_s=0))
        fenced = await reconcile.look(bench.world, bench.line(), of(answer))
    assert (exit_name(fenced), of(fenced).state) == ("fenced", "cancelled")


@pytest.mark.parametrize("killed", ["timeout", "cancel"])
@pytest.mark.parametrize("category", ["append_only", "destructive"])
async def test_what_was_told_to_end_and_left_a_success_is_neither_failed_nor_succeeded(
    bench: Bench, killed: str, category: str
) -> None:
    result = f"result gen=1 rec=rec_x att=att_x own=1 status=0 killed={killed} out=0 err=0"
    answer = await run(bench, intent(category), Plan(lines=[result, "end"]), recover="none")
    assert (code(answer), of(answer).state) == (5, "unknown")
    shown = document.operation(answer)
    assert (shown["exit_status"], shown["signal"], shown["timed_out"]) == (0, None, killed == "timeout")
    assert shown["next"]["action"] == "decide"


@pytest.mark.parametrize(("status", "name"), [(143, "TERM"), (137, "KILL")])
async def test_the_signal_that_ended_it_is_the_one_that_is_named(bench: Bench, status: int, name: str) -> None:
    result = f"result gen=1 rec=rec_x att=att_x own=1 status={status} killed=timeout out=0 err=0"
    answer = await run(bench, intent(), Plan(lines=[result, "end"]), recover="none")
    assert (code(answer), document.operation(answer)["signal"]) == (1, name)


# -- leaving ----


async def test_wait_0_leaves_a_running_command_and_a_later_call_gets_its_one_result(bench: Bench) -> None:
    answer = await run(bench, intent(), Plan(end="runs"), wait_s=0)
    name = of(answer).operation_id
    assert (code(answer), of(answer).state, of(answer).host_state) == (6, "open", "running")
    again = await run(bench, intent(operation_id=name), wait_s=0)
    assert (code(again), len(of(again).attempts)) == (6, 1)
    bench.host.finish(name)
    after = await run(bench, intent(operation_id=name))
    assert (code(after), of(after).replayed, len(bench.host.effects)) == (0, True, 1)


async def test_a_wait_goes_to_the_end_where_nothing_else_is_said(bench: Bench) -> None:
    bench.host.plans.append(Plan(end="runs"))
    task = asyncio.create_task(Course(bench.world, bench.line(), Mode()).run(intent()))
    await until(lambda: bench.host.effects)
    bench.host.finish(bench.host.effects[0])
    assert code(await task) == 0


async def until(true: Any) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


PLACES = {
    "connect": (Plan(hang="connect"), 8, "open"),
    "head": (Plan(hang="head"), 8, "open"),
    "hello": (Plan(hang="hello"), 8, "open"),
    "go": (Plan(hang="go"), 5, "unknown"),
    "claimed": (Plan(hang="claimed"), 6, "open"),
    "started": (Plan(end="runs"), 6, "open"),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_call_that_is_told_to_stop_says_what_is_known(bench: Bench, place: str) -> None:
    plan, exit_code, state = PLACES[place]
    bench.host.plans.append(plan)
    meant = intent(stdin=Stdin(3, None, Secret(b"abc")) if place == "hello" else None)
    task = asyncio.create_task(Course(bench.world, bench.line(), Mode()).run(meant))
    for _ in range(60):
        await asyncio.sleep(0.001)
    assert not task.done()
    task.cancel()
    answer = await task
    assert (code(answer), of(answer).state, len(attempts(answer))) == (exit_code, state, 1)
    assert None not in attempts(answer)
    assert bench.ledger.verify().ok
    if exit_code == 6 and place == "started":
        bench.host.finish(of(answer).operation_id)
    after = await run(bench, replace(meant, operation_id=of(answer).operation_id))
    assert (code(after), len(bench.host.effects)) == (0, 1)


async def test_a_call_that_is_told_to_stop_in_a_pause_sent_nothing(bench: Bench) -> None:
    bench.host.plans += [Plan(connect=errors.HostUnreachable()) for _ in range(9)]
    bench.clock.on_sleep = lambda: task.cancel() and None
    task = asyncio.create_task(Course(bench.world, bench.line(), Mode()).run(intent()))
    answer = await task
    assert (code(answer), attempts(answer)) == (8, ["not_sent"])


async def test_a_call_that_is_told_to_stop_while_it_looks_does_not_know(bench: Bench) -> None:
    bench.host.question_faults = [errors.LinkLost("cut"), errors.LinkLost("cut")]
    bench.host.plans.append(Plan(cut="go"))
    bench.clock.on_sleep = lambda: task.cancel() and None
    task = asyncio.create_task(Course(bench.world, bench.line(), Mode()).run(intent()))
    answer = await task
    assert (code(answer), of(answer).state) == (5, "unknown")


# -- the ledger fails ----


@pytest.mark.parametrize("type_", ["intent.created", "attempt.dispatched"])
async def test_a_ledger_that_fails_before_go_sends_nothing(bench: Bench, type_: str) -> None:
    bench.ledger.fails_at = {type_}
    with pytest.raises(errors.LedgerFull) as caught:
        await run(bench, intent())
    assert (of_error(caught.value), bench.host.effects) == (14, [])


@pytest.mark.parametrize("type_", ["boundary.seen", "response.received", "attempt.closed", "operation.resolved"])
async def test_a_ledger_that_fails_after_go_is_unknown_and_shows_the_result(bench: Bench, type_: str) -> None:
    bench.ledger.fails_at = {type_}
    answer = await run(bench, intent())
    assert (code(answer), answer.code, answer.stdout) == (5, "ledger.full", b"done\n")
    assert answer.after is None
    assert not bench.host.newest(of(answer).operation_id).acked
    bench.ledger.fails_at, bench.ledger.gone = set(), False
    bench.processes.dead.add(bench.pid)
    after = await replay(bench, of(answer).operation_id)
    assert (code(after), of(after).state, len(bench.host.effects)) == (0, "succeeded", 1)


@pytest.mark.parametrize("type_", ["response.lost", "lookup.performed", "remote_record.found"])
async def test_a_ledger_that_fails_while_the_answer_is_lost_is_unknown(bench: Bench, type_: str) -> None:
    bench.ledger.fails_at = {type_}
    answer = await run(bench, intent(), Plan(cut="go"))
    assert (code(answer), answer.code) == (5, "ledger.full")


async def test_a_ledger_that_fails_when_told_to_stop_is_unknown(bench: Bench) -> None:
    bench.host.plans.append(Plan(hang="go"))
    task = asyncio.create_task(Course(bench.world, bench.line(), Mode()).run(intent()))
    await until(lambda: bench.host.effects)
    bench.ledger.fails_at = {"attempt.closed"}
    task.cancel()
    assert code(await task) == 5


# -- another process ----


async def test_a_runner_that_wakes_late_sends_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.host.plans.append(Plan(hang="head"))
    course = Course(bench.world, bench.line(), Mode(tries=1))
    task = asyncio.create_task(course.run(intent()))
    await until(lambda: bench.host.open)
    other = Bench(tmp_path, pid=500, session="ses_two", host=bench.host)
    other.processes.dead |= {bench.pid, bench.pid + 1}
    cancelled = await reconcile.fence(other.world, other.line(), other.world.operation(course.operation_id or ""))
    assert of(cancelled).state == "cancelled"
    channel = bench.host.open[0]
    channel._silent = False
    channel._hello()
    answer = await task
    assert (code(answer), bench.host.effects, attempts(answer)) == (13, [], ["not_sent"])


async def test_a_living_owner_keeps_others_out_and_a_dead_one_does_not(bench: Bench, tmp_path: Path) -> None:
    first = await run(bench, intent(), Plan(cut="go"), recover="none")
    other = Bench(tmp_path, pid=500, session="ses_two", host=bench.host)
    with pytest.raises(errors.Refused) as caught:
        await run(other, intent(operation_id=of(first).operation_id))
    assert of_error(caught.value) == 12
    other.processes.dead |= {bench.pid, bench.pid + 1}
    answer = await run(other, intent(operation_id=of(first).operation_id))
    assert (code(answer), of(answer).owner, len(bench.host.effects)) == (0, "ses_two", 1)


async def test_a_second_call_attaches_to_the_one_in_flight(bench: Bench, tmp_path: Path) -> None:
    bench.host.plans.append(Plan(end="runs"))
    meant = intent(operation_id="deploy-7")
    first = asyncio.create_task(Course(bench.world, bench.line(), Mode()).run(meant))
    await until(lambda: bench.host.effects)
    other = Bench(tmp_path, pid=500, host=bench.host)
    left = await run(other, meant, wait_s=0)
    assert (code(left), len(of(left).attempts)) == (6, 1)
    second = asyncio.create_task(Course(other.world, other.line(), Mode()).run(meant))
    await asyncio.sleep(0.01)
    bench.host.finish("deploy-7")
    answers = [await first, await second]
    assert [code(answer) for answer in answers] == [0, 0]
    assert [of(answer).replayed for answer in answers] == [False, True]
    assert bench.host.effects == ["deploy-7"]


async def test_a_dead_process_leaves_not_sent_or_unknown(bench: Bench, tmp_path: Path) -> None:
    bench.ledger.fails_at = {"attempt.closed"}
    await run(bench, intent(operation_id="sent"))
    other = Bench(tmp_path, pid=500, host=bench.host)
    other.processes.dead.add(bench.pid)
    answer = await run(other, intent(operation_id="sent"))
    assert (code(answer), attempts(answer), len(bench.host.effects)) == (0, ["sent_no_response"], 1)


# -- the same ID, another request ----

OTHERS = {
    "other bytes": intent("append_only", "do", "it", "more", operation_id="deploy-7"),
    "another category": intent("destructive", operation_id="deploy-7"),
    "another account": intent(operation_id="deploy-7", account=Account("web", "root", "web.example", 22)),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("cut", [None, "go"])
async def test_another_request_under_an_id_is_a_key_conflict(bench: Bench, other: str, cut: str | None) -> None:
    first = await run(bench, intent(operation_id="deploy-7"), Plan(cut=cut), recover="none")
    with pytest.raises(errors.Refused) as caught:
        await run(bench, OTHERS[other])
    assert (of_error(caught.value), caught.value.refusal) == (7, "key_conflict")
    assert len(bench.host.effects) == 1
    assert bench.world.operation("deploy-7").state == of(first).state
    assert [e.body.refusal for e in bench.ledger.events("deploy-7") if e.type == "retry.refused"] == ["key_conflict"]


@pytest.mark.parametrize("kind", ["variable", "hidden", "stdin"])
async def test_another_secret_under_an_id_is_a_key_conflict(bench: Bench, kind: str) -> None:
    def with_secret(value: bytes) -> Intent:
        made = {
            "variable": Command(argv=(text("do"),), secrets=(("TOKEN", Secret(value)),)),
            "hidden": Command(argv=((commands.Piece("hidden", name="token", value=Secret(value)),),)),
            "stdin": Command(argv=(text("do"),), stdin=Stdin(len(value), None, Secret(value))),
        }[kind]
        return intent(command=made, operation_id="deploy-7")

    assert code(await run(bench, with_secret(b"one"))) == 0
    assert code(await run(bench, with_secret(b"one"))) == 0
    with pytest.raises(errors.Refused, match="secret") as caught:
        await run(bench, with_secret(b"two"))
    assert of_error(caught.value) == 7
    assert len(bench.host.effects) == 1


@pytest.mark.parametrize(
    ("plan", "exit_code", "state"),
    [
        (Plan(), 0, "succeeded"),
        (Plan(cut="go"), 0, "succeeded"),
        (Plan(cut="lost_go"), 7, "unknown"),
        (Plan(connect=errors.LoginRefused()), 7, "open"),
    ],
)
async def test_secrets_under_another_key_are_answered_unchecked_and_nothing_runs(
    bench: Bench, tmp_path: Path, plan: Plan, exit_code: int, state: str
) -> None:
    meant = intent(operation_id="deploy-7", secrets=(("TOKEN", Secret(b"one")),))
    await run(bench, meant, plan, recover="none")
    effects = len(bench.host.effects)
    (tmp_path / "ledger.sqlite.key").unlink()
    other = Bench(tmp_path, pid=500, host=bench.host)
    answer = await run(other, meant)
    assert (code(answer), answer.code, of(answer).state) == (exit_code, "secret_unchecked", state)
    assert len(bench.host.effects) == effects


# -- the result contract ----


@pytest.mark.parametrize(
    ("status", "contract", "exit_code"), [(0, "satisfied", 0), (1, "violated", 1), (127, "unchecked", 0)]
)
@pytest.mark.parametrize("cut", [None, "go"])
async def test_the_result_contract_is_checked(
    bench: Bench, status: int, contract: str, exit_code: int, cut: str | None
) -> None:
    bench.host.condition = status
    terms = Terms(verify=commands.to_json(Command(argv=CONDITION)))
    answer = await run(bench, intent(terms=terms), Plan(cut=cut))
    assert (of(answer).contract, code(answer), of(answer).state) == (contract, exit_code, "succeeded")


async def test_a_contract_that_cannot_be_asked_about_stays_unchecked(bench: Bench) -> None:
    bench.host.probe_cut = True
    answer = await run(bench, intent(terms=Terms(verify=commands.to_json(Command(argv=CONDITION)))))
    assert (of(answer).contract, code(answer)) == ("unchecked", 0)


async def test_an_adopter_evaluates_a_condition_that_nobody_did_afterwards(bench: Bench) -> None:
    answer = await run(bench, intent("convergent"), Plan(after=127), recover="none")
    assert (code(answer), of(answer).state) == (5, "unknown")
    bench.host.condition = 0
    answer = await replay(bench, of(answer).operation_id)
    assert (code(answer), of(answer).resolved_by) == (0, "probe")


# -- exits ----


async def test_every_combination_of_state_and_answer_has_an_exit(bench: Bench) -> None:
    base = of(await run(bench, intent(), Plan(cut="lost_go"), recover="none"))
    fresh = of(await run(bench, intent("append_only", "other"), Plan(connect=errors.LoginRefused())))
    win = {"key_conflict", "store", "not_owner", "duplicate"}
    for said in ["", *CODES]:
        for state, contract in [(s, c) for s in State for c in Contract]:
            for operation in (base, fresh):
                for host_state in (None, "running", "never_started", "absent"):
                    for by in ("result", "fence", "key_conflict", "host_refused", "nothing_dispatched"):
                        made = replace(operation, state=state, contract=contract, host_state=host_state, resolved_by=by)
                        answer = Answer(made)
                        answer.exit = said
                        expected = {
                            "succeeded": "failed" if contract == "violated" else "succeeded",
                            "failed": "failed",
                            "duplicate_effect_confirmed": "duplicate",
                            "cancelled": {"key_conflict": "key_conflict", "host_refused": "not_sent"}.get(by, "fenced"),
                        }.get(state)
                        if expected is None and operation is fresh:
                            expected = said or "not_sent"
                        if expected is None and said in win:
                            expected = said
                        if expected is None and (host_state == "running" or said == "running"):
                            expected = "running"
                        if (
                            expected is None
                            and host_state == "never_started"
                            and said in ("not_sent", "approval", "policy")
                        ):
                            expected = said
                        assert exit_name(answer) == (expected or "unknown")


def test_an_answer_without_an_operation_is_what_was_said() -> None:
    assert exit_name(Answer(None)) == "fault"
    assert exit_name(Answer(None).fail("not_sent", "c", "m")) == "not_sent"


async def test_the_time_to_wait_counts_from_the_claim_over_attempts_and_looks(bench: Bench) -> None:
    bench.host.question_faults = [errors.LinkLost("cut"), errors.LinkLost("cut")]
    answer = await run(bench, intent(), Plan(cut="claimed", end="runs"), wait_s=1.5)
    assert (code(answer), of(answer).host_state) == (6, "running")
    asked = [event.body for event in bench.ledger.events(of(answer).operation_id) if event.type == "lookup.performed"]
    assert [body.host_state for body in asked] == [None, None, "running"]


async def test_of_two_that_meet_a_host_at_once_one_store_stands(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path, pid=500, session="ses_two")
    other.host.store = "st_other"
    bench.host.plans.append(Plan(hang="head"))
    first = asyncio.create_task(Course(bench.world, bench.line(), Mode(tries=1)).run(intent("append_only", "one")))
    await until(lambda: bench.host.open)
    assert code(await run(other, intent("append_only", "two"))) == 0
    channel = bench.host.open[0]
    channel._silent = False
    channel._hello()
    answer = await first
    assert (code(answer), bench.host.effects) == (9, [])
