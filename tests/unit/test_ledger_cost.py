"""What must not grow with history, and what a start must not load."""

import json
import subprocess
import sys

import pytest

from sshop.core import events, lifecycle
from sshop.core.events import Event
from sshop.core.operation import operation_from_json, operation_to_json
from sshop.ledger.fill import DECK, Synthesis, fill
from sshop.ledger.sqlite import SqliteLedger
from tests.support.ledger_writer import session
from tests.support.ledgers import REPOSITORY, tell

READS = {
    "operation": lambda ledger, o: ledger.operation(o.operation_id),
    "same_request": lambda ledger, o: ledger.same_request(o.account.key, o.fingerprint),
    "unknown_on_subject": lambda ledger, o: ledger.unknown_on_subject(o.account.key, "package:x"),
    "store": lambda ledger, o: ledger.store(o.account.key),
    "session_exists": lambda ledger, o: ledger.session_exists(o.session_id),
    "head": lambda ledger, o: ledger.head(),
    "events of an operation": lambda ledger, o: list(ledger.events(o.operation_id)),
    "events from a place": lambda ledger, o: next(ledger.events(after=7)),
    "newest": lambda ledger, o: ledger.operations(limit=5),
    "older": lambda ledger, o: ledger.operations(limit=5, before=o.operation_id),
    "succeeded": lambda ledger, o: ledger.operations(state="succeeded", limit=5),
    "failed": lambda ledger, o: ledger.operations(state="failed", limit=5, before=o.operation_id),
    "unknown": lambda ledger, o: ledger.operations(state="unknown", limit=5),
    "open": lambda ledger, o: ledger.operations(state="open", host=o.account.host, limit=5),
    "by host": lambda ledger, o: ledger.operations(host=o.account.host, limit=5),
    "by host and state": lambda ledger, o: ledger.operations(host=o.account.host, state="failed", limit=5),
    "unresolved": lambda ledger, o: ledger.operations(unresolved=True, limit=5),
    "append": lambda ledger, o: ledger.append(lambda view: [session("a", 1)]),
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    ledger = SqliteLedger.open(tmp_path_factory.mktemp("cost") / "ledger.db")
    fill(ledger, 3000)
    yield ledger
    ledger.close()


@pytest.mark.parametrize("read", READS)
def test_nothing_on_the_way_of_a_run_looks_at_every_row_or_sorts(ledger, read):
    statements: list[str] = []
    operation = ledger.operations(limit=40)[-1]
    ledger._known.clear()
    ledger._connection.set_trace_callback(statements.append)
    try:
        READS[read](ledger, operation)
    finally:
        ledger._connection.set_trace_callback(None)
    planned = 0
    for statement in statements:
        if not statement.startswith(("SELECT", "UPDATE")):
            continue
        planned += 1
        limited = "LIMIT" in statement
        for row in ledger._connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
            plan = row[3]
            assert "TEMP B-TREE" not in plan, (plan, statement)
            assert not plan.startswith("SCAN") or "CONSTANT" in plan or limited, (plan, statement)
    assert planned > 0


def test_a_group_of_events_is_one_transaction_and_one_row_for_each_operation(ledger):
    statements: list[str] = []
    world = Synthesis(1)
    drafts = tell(world, 0) + tell(world, 1)
    ledger._connection.set_trace_callback(statements.append)
    ledger.append(lambda view: drafts)
    ledger._connection.set_trace_callback(None)
    assert statements.count("COMMIT") == statements.count("BEGIN IMMEDIATE") == 1
    assert sum(statement.startswith("INSERT INTO operations") for statement in statements) == 2
    assert not any(statement.startswith("UPDATE operations") for statement in statements)


def test_opening_an_existing_ledger_reads_its_header_and_nothing_else(ledger, monkeypatch):
    statements: list[str] = []
    import sqlite3

    connect = sqlite3.connect

    def traced(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    SqliteLedger.open(ledger.path).close()
    assert statements == ["PRAGMA user_version", "PRAGMA application_id", "PRAGMA synchronous = FULL"]


def test_a_ledger_is_durable_at_every_commit_and_never_in_a_rollback_journal(ledger):
    assert ledger._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert ledger._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_start_loads_no_more_than_the_ledger_needs():
    code = "import sys; import sshop.ledger.sqlite; print(*sorted(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, text=True, capture_output=True,
                                check=True).stdout.split())  # fmt: skip
    assert "sqlite3" in loaded
    unwanted = {"pathlib", "typing_extensions", "asyncio", "pydantic", "typer", "yaml", "asyncssh", "random", "logging",
                "urllib", "tempfile", "threading", "subprocess", "platformdirs", "sshop.ledger.fill"}  # fmt: skip
    assert loaded & unwanted == set()


# -- fill --------------------------------------------------------------------------------------------------------------


def test_a_synthetic_history_has_every_outcome_and_is_good(tmp_path):
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    assert fill(ledger, 5000) == 5000
    assert ledger.verify().ok
    every = ledger.operations()
    assert {o.state for o in every} == {"open", "succeeded", "failed", "unknown", "cancelled"}
    assert {o.category for o in every} == {"read_only", "convergent", "append_only", "destructive"}
    assert any(o.result and o.result.changed is False for o in every)
    assert any(o.replayed for o in every)
    assert any(len(o.attempts) > 1 and o.attempts[1].retry_reason == "response_lost_after_dispatch" for o in every)
    assert any(not o.dispatched for o in every)
    assert all(o.account.host.endswith(".invalid") for o in every)
    types = {event.type for event in ledger.events()}
    assert types >= set(events.TYPES) - {"approval.granted", "approval.revoked", "approval.spent", "owner.changed",
                                         "operation.superseded"}  # fmt: skip
    ledger.close()


def test_the_same_seed_makes_the_same_history_in_whatever_groups(tmp_path):
    heads = []
    for index, (seed, group) in enumerate(((1, 2000), (1, 7), (2, 2000))):
        ledger = SqliteLedger.open(tmp_path / f"{index}.db")
        fill(ledger, 700, seed=seed, group=group)
        heads.append(ledger.head())
        ledger.close()
    assert heads[0] == heads[1] != heads[2]


def test_only_an_empty_ledger_is_filled(tmp_path):
    from sshop import errors

    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    ledger.append(lambda view: [session("a", 1)])
    with pytest.raises(errors.UsageError, match="not empty"):
        fill(ledger, 10)
    assert ledger.head()[0] == 1
    ledger.close()


# -- what the rows are made of -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(DECK)))
def test_an_operation_survives_its_row_and_folding_changes_nothing_that_others_hold(number):
    world = Synthesis(5)
    operation, history = None, []
    for seq, draft in enumerate(tell(world, number), 1):
        if draft.operation_id is None:
            continue
        event = Event(seq, draft.id, draft.at, "ses", draft.operation_id, draft.attempt_id, draft.body.type,
                      draft.body, "", "")  # fmt: skip
        history.append(event)
        before, kept = operation, repr(operation)
        operation = lifecycle.apply(operation, event)
        assert lifecycle.fold([event], before) == lifecycle.fold(history) == operation
        assert repr(before) == kept
        text = events.canonical(operation_to_json(operation))
        assert operation_from_json(json.loads(text)) == operation
        assert events.decode_body(draft.body.type, events.body_bytes(draft.body)) == draft.body
