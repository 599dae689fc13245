"""What is found when somebody changes a ledger by hand, with the database's own refusals taken away first."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshop.core import events
from sshop.core.events import GENESIS, Draft
from sshop.ledger.chain import COLUMNS, link_hash
from sshop.ledger.fill import fill
from sshop.ledger.sqlite import SqliteLedger
from sshop.ports import Verification
from tests.support.ledgers import REPOSITORY

EVENTS = 120
HALF = 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A ledger of so many events; the database itself will not refuse what comes."""
    path = str(tmp_path / "ledger.db")
    ledger = SqliteLedger.open(path)
    fill(ledger, EVENTS)
    ledger.close()
    connection = sqlite3.connect(path, isolation_level=None)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.close()
    return path


def change(path: str, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    for statement in statements:
        connection.execute(statement)
    connection.execute("COMMIT")
    connection.close()


def verify(path: str, head: tuple[int, str] | None = None) -> Verification:
    ledger = SqliteLedger.open(path)
    try:
        return ledger.verify(head=head)
    finally:
        ledger.close()


def head_of(path: str) -> tuple[int, str]:
    ledger = SqliteLedger.open(path)
    head = ledger.head()
    ledger.close()
    return head


def rows(path: str) -> list[list]:
    connection = sqlite3.connect(path)
    found = [list(row) for row in connection.execute(f"SELECT {COLUMNS} FROM events ORDER BY seq")]
    connection.close()
    return found


def forged(seq: int, prev: str, hash_: str | None = None) -> str:
    """An INSERT of an event that never was, its hash right unless another is given."""
    body = events.body_bytes(events.PolicyLoaded("forged", None)).decode()
    values = ("ev_forged", "2026-01-01T00:00:00.000000Z", "ses", None, None, "policy.loaded", body)
    right = link_hash(seq, *values, prev)
    text = ", ".join("NULL" if value is None else f"'{value}'" for value in values)
    return f"INSERT INTO events ({COLUMNS}) VALUES ({seq}, {text}, '{prev}', '{hash_ or right}')"


SHIFT_UP = (
    f"UPDATE events SET seq = -seq - 1 WHERE seq >= {HALF}",
    "UPDATE events SET seq = -seq WHERE seq < 0",
)
SHIFT_DOWN = (
    f"UPDATE events SET seq = -seq + 1 WHERE seq > {HALF}",
    "UPDATE events SET seq = -seq WHERE seq < 0",
)


def swap(one: int, other: int) -> tuple[str, ...]:
    return (
        f"UPDATE events SET seq = -1 WHERE seq = {one}",
        f"UPDATE events SET seq = {one} WHERE seq = {other}",
        f"UPDATE events SET seq = {other} WHERE seq = -1",
    )


WAYS: dict[str, tuple[tuple[str, ...], tuple[int, str]]] = {
    "one byte of a body": (
        (f"UPDATE events SET body = replace(body, '0', '1') WHERE seq = {HALF}",),
        (HALF, "edited"),
    ),
    "the time": ((f"UPDATE events SET at = '1970-01-01T00:00:00.000000Z' WHERE seq = {HALF}",), (HALF, "edited")),
    "the session": ((f"UPDATE events SET session = 'ses_other' WHERE seq = {HALF}",), (HALF, "edited")),
    "the operation": ((f"UPDATE events SET operation = 'op-other' WHERE seq = {HALF}",), (HALF, "edited")),
    "no attempt": (("UPDATE events SET attempt = 'att_1' WHERE seq = 1",), (1, "edited")),
    "the ID": ((f"UPDATE events SET id = 'ev_other' WHERE seq = {EVENTS}",), (EVENTS, "edited")),
    "the type": ((f"UPDATE events SET type = 'policy.loaded' WHERE seq = {HALF}",), (HALF, "edited")),
    "the hash": ((f"UPDATE events SET hash = '{GENESIS}' WHERE seq = {HALF}",), (HALF, "edited")),
    "the hash before": ((f"UPDATE events SET prev = '{GENESIS}' WHERE seq = {HALF}",), (HALF, "edited")),
    "a body that is no text": (
        (f"UPDATE events SET body = CAST(x'7bff' AS TEXT) WHERE seq = {HALF}",),
        (HALF, "edited"),
    ),
    "a body of two texts": ((f"UPDATE events SET body = body || ' ' WHERE seq = {HALF}",), (HALF, "edited")),
    "the first is gone": (("DELETE FROM events WHERE seq = 1",), (1, "removed")),
    "one in the middle is gone": ((f"DELETE FROM events WHERE seq = {HALF}",), (HALF, "removed")),
    "many in the middle are gone": (
        (f"DELETE FROM events WHERE seq BETWEEN {HALF} AND {HALF + 30}",),
        (HALF, "removed"),
    ),
    "one is gone and the gap closed": ((f"DELETE FROM events WHERE seq = {HALF}", *SHIFT_DOWN), (HALF, "removed")),
    "neighbours changed places": (swap(HALF, HALF + 1), (HALF, "reordered")),
    "two far from each other changed places": (swap(10, HALF), (10, "reordered")),
    "the first and the last changed places": (swap(1, EVENTS), (1, "reordered")),
    "all later ones got other numbers": (
        (f"UPDATE events SET seq = seq + 1000 WHERE seq > {HALF}",),
        (HALF + 1, "reordered"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_change_by_hand_is_found_and_named(path, way):
    statements, fault = WAYS[way]
    change(path, *statements)
    assert verify(path).fault == fault


def test_an_edited_event_whose_hash_was_made_right_again_is_found_by_the_next(path):
    row = rows(path)[HALF - 1]
    row[2] = "1970-01-01T00:00:00.000000Z"
    change(path, f"UPDATE events SET at = '{row[2]}', hash = '{link_hash(*row[:9])}' WHERE seq = {HALF}")
    assert verify(path).fault == (HALF, "edited")


@pytest.mark.parametrize("hash_", [None, "f" * 64], ids=["its hash right", "its hash wrong"])
def test_an_event_that_was_pushed_in_is_found(path, hash_):
    prev = rows(path)[HALF - 2][9]
    change(path, *SHIFT_UP, forged(HALF, prev, hash_))
    assert verify(path).fault == (HALF, "inserted")


def test_events_that_were_pushed_in_are_found(path):
    prev = rows(path)[HALF - 2][9]
    change(path, *SHIFT_UP, forged(HALF, prev))
    again = [statement.replace(str(HALF), str(HALF + 1)) for statement in SHIFT_UP]
    change(path, *again, forged(HALF + 1, rows(path)[HALF - 1][9]))
    assert verify(path).fault == (HALF, "inserted")


@pytest.mark.parametrize("count", [1, 5, EVENTS])
def test_a_cut_off_tail_is_found_against_a_head_kept_elsewhere(path, count):
    head = head_of(path)
    keep = EVENTS - count
    change(path, f"DELETE FROM events WHERE seq > {keep}", "DELETE FROM operations", "DELETE FROM attempts",
           "DELETE FROM stores")  # fmt: skip
    ledger = SqliteLedger.open(path)
    ledger.rebuild()
    assert ledger.verify().ok  # nothing in the file itself can tell, and the documents say so
    ledger.close()
    assert verify(path, head).fault == (keep + 1, "cut_off")


def test_a_cut_off_tail_whose_projections_were_forgotten_is_found_without_a_head(path):
    change(path, f"DELETE FROM events WHERE seq > {EVENTS - 5}")
    assert verify(path).fault == (EVENTS - 4, "cut_off")


def test_a_whole_file_that_was_removed_is_found_against_a_head(path):
    head = head_of(path)
    Path(path).unlink()
    assert verify(path, head).fault == (1, "cut_off")


def test_a_chain_that_was_written_anew_is_found_against_a_head(path):
    head = head_of(path)
    prev, statements = GENESIS, []
    for row in rows(path):
        if row[0] == HALF:
            row[2] = "1970-01-01T00:00:00.000000Z"
        row[8], row[9] = prev, link_hash(*row[:8], prev)
        prev = row[9]
        statements.append(
            f"UPDATE events SET at = '{row[2]}', prev = '{row[8]}', hash = '{row[9]}' WHERE seq = {row[0]}"
        )
    change(path, *statements)
    assert verify(path, head).fault == (EVENTS, "edited")
    assert verify(path, (10, rows(path)[9][9])).fault != (10, "edited")


PROJECTIONS = {
    "a state": "UPDATE operations SET state = 'failed' WHERE state = 'succeeded'",
    "a value": "UPDATE operations SET value = replace(value, 'succeeded', 'failed')",
    "an operation gone": "DELETE FROM operations WHERE first = (SELECT max(first) FROM operations)",
    "an operation too many": "INSERT INTO operations SELECT first + 1, operation || 'x', last, account, host,"
    " fingerprint, subject, state, pending, unresolved, value FROM operations LIMIT 1",
    "an attempt": "UPDATE attempts SET closed_at = NULL",
    "an attempt gone": "DELETE FROM attempts",
    "a witness": "UPDATE stores SET witness_minted = 'op_01kdvdnrq24b5v2j9r9cdv0000'",
    "a store gone": "DELETE FROM stores",
}


@pytest.mark.parametrize("way", PROJECTIONS)
def test_a_projection_that_is_not_the_fold_of_its_events_is_found_and_rebuilt(path, way):
    good = verify(path)
    assert good.ok
    change(path, PROJECTIONS[way])
    found = verify(path)
    assert found.fault is not None
    assert found.fault[1] == "projection"
    assert 1 <= found.fault[0] <= EVENTS
    ledger = SqliteLedger.open(path)
    ledger.rebuild()
    ledger.close()
    assert verify(path) == good


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = '{}' WHERE seq = 3",
        "UPDATE events SET seq = seq",
        "DELETE FROM events WHERE seq = 120",
        "DELETE FROM events",
        f"INSERT OR REPLACE INTO events SELECT {COLUMNS} FROM events WHERE seq = 3",
        f"INSERT INTO events SELECT 122, {COLUMNS[5:]} FROM events WHERE seq = 120",
        f"INSERT INTO events SELECT 121, {COLUMNS[5:]} FROM events WHERE seq = 120",
        f"INSERT INTO events SELECT 0, {COLUMNS[5:]} FROM events WHERE seq = 1",
    ],
)
def test_the_database_itself_refuses_to_change_history(tmp_path, statement):
    path = str(tmp_path / "ledger.db")
    ledger = SqliteLedger.open(path)
    fill(ledger, EVENTS)
    with pytest.raises(sqlite3.IntegrityError):
        change(path, statement)
    assert ledger.verify().ok
    assert ledger.verify().events == EVENTS
    ledger.close()


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.integers(1, 2**53 - 1), any_text, any_text, any_text, st.none() | any_text, st.none() | any_text, any_text)
def test_a_link_has_the_digest_of_its_event(  # noqa: PLR0917 -- the columns of a row
    seq, id_, at, session, operation, attempt, agent
):
    body = events.SessionOpened(agent, 1, "1", agent, agent, "0")
    draft = Draft(id_, at, session, body, operation, attempt)
    text = events.body_bytes(body)
    assert link_hash(
        seq, id_, at, session, operation, attempt, body.type, text.decode(), GENESIS
    ) == events.digest(seq, draft, text, GENESIS)  # fmt: skip


def test_the_lines_of_the_document_check_a_ledger(path):
    document = (REPOSITORY / "docs" / "LEDGER.md").read_text()
    code = document.split("```python\n")[1].split("```")[0]
    exec(code, {"FILE": path})
    change(path, f"UPDATE events SET at = '' WHERE seq = {HALF}")
    with pytest.raises(AssertionError):
        exec(code, {"FILE": path})


def test_the_document_names_every_type_of_event_and_every_kind_of_fault():
    document = (REPOSITORY / "docs" / "LEDGER.md").read_text()
    for type_ in events.TYPES:
        assert f"`{type_}`" in document or f"`.{type_.split('.')[1]}`" in document, type_
    for kind in ("edited", "removed", "reordered", "inserted", "cut_off", "projection"):
        assert f"| `{kind}` |" in document
