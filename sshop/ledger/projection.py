"""The projections: what the events add up to, in tables that are kept in the transaction of every append.

One function makes the row of an operation (`row_of`), for appends, `rebuild` and `verify` alike; an append folds only
the new events onto what stands, the other two fold all. What is folded comes from `sshop.core.lifecycle`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sshop import errors
from sshop.core import events, lifecycle
from sshop.core.events import Event
from sshop.core.identity import is_minted, minted_at
from sshop.core.operation import (
    Attempt,
    Boundary,
    Operation,
    State,
    operation_from_json,
    operation_to_json,
)
from sshop.core.value import replace
from sshop.ledger import schema
from sshop.ledger.chain import Break
from sshop.ports import StoreSeen

EVENT_COLUMNS = "seq, id, at, session, operation, attempt, type, body, prev, hash"
OPERATION_COLUMNS = "first, operation, last, account, host, fingerprint, subject, state, pending, unresolved, value"
ATTEMPT_COLUMNS = "operation, attempt, number, session, opened_at, dispatched_at, closed_at, dispatch_state, boundary"
STORE_COLUMNS = "account, store, machine, grade, witness_minted, witness_brought"

_INSERT_OPERATION = f"INSERT INTO operations ({OPERATION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_VOLATILE = ("state", "pending", "unresolved")
_PUT_ATTEMPT = f"INSERT OR REPLACE INTO attempts ({ATTEMPT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_STORE = f"INSERT OR REPLACE INTO stores ({STORE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"

# Events that say something of a marker store; all others are passed over when stores are folded.
StoreBody = events.StoreMet | events.BoundarySeen
STORE_TYPES = (events.StoreMet.type, events.BoundarySeen.type)
_CLAIM_SEEN = frozenset({Boundary.CLAIMED, Boundary.STARTED, Boundary.EXIT_STATUS_RECEIVED})


class Entry(NamedTuple):
    """An operation with the sequences of its first and its last event."""

    first: int
    last: int
    operation: Operation


def event_of(row: Sequence[Any]) -> Event:
    """The event of a row of `events`. Raises `LedgerCorrupt` for one that this version cannot read."""
    seq, id_, at, session, operation, attempt, type_, body, prev, hash_ = row
    try:
        value = events.decode_body(type_, body)
    except (KeyError, TypeError, ValueError) as error:
        raise errors.LedgerCorrupt(
            f"event {seq} of type {type_} cannot be read", hint="`sshop ledger verify` tells whether it was changed"
        ) from error
    return Event(seq, id_, at, session, operation, attempt, type_, value, prev, hash_)


def operation_of(value: str) -> Operation:
    try:
        return operation_from_json(json.loads(value))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.LedgerCorrupt(
            "the projection of an operation cannot be read", hint="`sshop ledger rebuild` makes it anew"
        ) from error


def is_pending(operation: Operation) -> bool:
    """Unresolved, or open and never dispatched: what a twin of it would meet."""
    return operation.unresolved or (operation.state == State.OPEN and not operation.dispatched)


def row_of(entry: Entry) -> tuple[Any, ...]:
    """The row of `operations`, in the order of OPERATION_COLUMNS."""
    operation = entry.operation
    return (
        entry.first,
        operation.operation_id,
        entry.last,
        operation.account.key,
        operation.account.host,
        operation.fingerprint,
        operation.subject_ref,
        *_states(entry),
        events.canonical(operation_to_json(operation)).decode(),
    )


def attempt_row(operation_id: str, attempt: Attempt) -> tuple[Any, ...]:
    """The row of `attempts`, in the order of ATTEMPT_COLUMNS."""
    return (
        operation_id,
        attempt.attempt_id,
        attempt.number,
        attempt.session_id,
        attempt.opened_at,
        attempt.dispatched_at,
        attempt.closed_at,
        None if attempt.dispatch_state is None else str(attempt.dispatch_state),
        str(attempt.boundary),
    )


def store_after(store: StoreSeen | None, operation_id: str | None, body: events.Body) -> StoreSeen | None:
    """What is known of an account's marker store after one more event.

    A witness is an operation whose claim the host itself has named: of minted ones the newest by the time in the ID, of
    brought ones the last.
    """
    match body:
        case events.StoreMet(account=key, store_id=store_id, machine=machine, grade=grade):
            if store is not None and store.store_id == store_id:
                return replace(store, machine=machine, grade=grade)
            return StoreSeen(key, store_id, machine, grade)
        case events.BoundarySeen(seen_by="host") if store is not None and operation_id is not None:
            if body.record_id is None or body.boundary not in _CLAIM_SEEN or body.store_id != store.store_id:
                return store  # a read_only run claims nothing, and a late word may come from a store before this one
            if not is_minted(operation_id):
                return replace(store, witness_brought=operation_id)
            held = store.witness_minted
            if held is None or (minted_at(operation_id), operation_id) > (minted_at(held), held):
                return replace(store, witness_minted=operation_id)
    return store


def read_store(connection: sqlite3.Connection, account: str) -> StoreSeen | None:
    row = connection.execute(f"SELECT {STORE_COLUMNS} FROM stores WHERE account = ?", (account,)).fetchone()
    return None if row is None else StoreSeen(*row)


def _put_store(connection: sqlite3.Connection, store: StoreSeen) -> None:
    witnesses = store.witness_minted, store.witness_brought
    connection.execute(_PUT_STORE, (store.account, store.store_id, store.machine, store.grade, *witnesses))


def project(
    connection: sqlite3.Connection, appended: Sequence[Event], find: Callable[[str], Entry | None]
) -> dict[str, Entry]:
    """Bring the projections up to events that were just appended; the operations that they changed.

    `find` gives an operation as it stood before. Raises `LedgerCorrupt` for events that cannot follow what stands.
    """
    parts: dict[str, list[Event]] = {}
    stores: dict[str, StoreSeen] = {}
    for event in appended:
        if event.operation_id is not None:
            parts.setdefault(event.operation_id, []).append(event)
        if isinstance(event.body, StoreBody):
            account = event.body.account
            known = stores.get(account) or read_store(connection, account)
            changed = store_after(known, event.operation_id, event.body)
            if changed is not None and changed != known:
                stores[account] = changed
    after: dict[str, Entry] = {}
    for name, part in parts.items():
        before = find(name)
        folded = lifecycle.fold(part, before.operation if before else None)
        if folded is not None:
            after[name] = Entry(before.first if before else part[0].seq, part[-1].seq, folded)
            _write(connection, before, after[name])
    for store in stores.values():
        _put_store(connection, store)
    return after


def _write(connection: sqlite3.Connection, before: Entry | None, after: Entry) -> None:
    row = row_of(after)
    known: set[tuple[Any, ...]] = set()
    if before is None:
        connection.execute(_INSERT_OPERATION, row)
    else:
        # An UPDATE that names a column rewrites its indexes, changed or not; so it names none that did not.
        changes = [
            (name, new) for name, new, old in zip(_VOLATILE, row[7:10], _states(before), strict=True) if new != old
        ]
        names = "".join(f", {name} = ?" for name, _ in changes)
        values = [new for _, new in changes]
        connection.execute(
            f"UPDATE operations SET last = ?, value = ?{names} WHERE first = ?",
            (after.last, row[-1], *values, after.first),
        )
        known.update(attempt_row(row[1], attempt) for attempt in before.operation.attempts)
    for attempt in after.operation.attempts:
        attempt_values = attempt_row(row[1], attempt)
        if attempt_values not in known:
            connection.execute(_PUT_ATTEMPT, attempt_values)


def _states(entry: Entry) -> tuple[str, int, int]:
    """The values of _VOLATILE."""
    operation = entry.operation
    return str(operation.state), int(is_pending(operation)), int(operation.unresolved)


def fold_all(connection: sqlite3.Connection) -> Iterator[Entry]:
    """Every operation folded from its events, one at a time, ordered by its ID."""
    cursor = connection.execute(
        f"SELECT {EVENT_COLUMNS} FROM events WHERE operation IS NOT NULL ORDER BY operation, seq"
    )
    cursor.arraysize = 200
    part: list[Event] = []
    while rows := cursor.fetchmany():
        for row in rows:
            if part and row[4] != part[0].operation_id:
                yield from _entry_of(part)
                part = []
            part.append(event_of(row))
    if part:
        yield from _entry_of(part)


def _entry_of(part: list[Event]) -> Iterator[Entry]:
    try:
        folded = lifecycle.fold(part)
    except (KeyError, ValueError, TypeError) as error:
        raise errors.LedgerCorrupt(f"the events of operation {part[0].operation_id} do not add up: {error}") from error
    if folded is not None:
        yield Entry(part[0].seq, part[-1].seq, folded)


def fold_stores(connection: sqlite3.Connection) -> dict[str, StoreSeen]:
    """Every marker store folded from its events, by the key of its host account."""
    stores: dict[str, StoreSeen] = {}
    for row in connection.execute(f"SELECT {EVENT_COLUMNS} FROM events WHERE type IN (?, ?) ORDER BY seq", STORE_TYPES):
        event = event_of(row)
        if isinstance(event.body, StoreBody):
            changed = store_after(stores.get(event.body.account), event.operation_id, event.body)
            if changed is not None:
                stores[event.body.account] = changed
    return stores


def rebuild(connection: sqlite3.Connection) -> int:
    """Drop the projections and make them anew from the events, inside the caller's transaction."""
    for statement in (*schema.DROP_PROJECTIONS, *schema.CREATE_PROJECTIONS):
        connection.execute(statement)
    count = 0
    for entry in fold_all(connection):
        _write(connection, None, entry)
        count += 1
    for store in fold_stores(connection).values():
        _put_store(connection, store)
    return count


def compare(connection: sqlite3.Connection, events_total: int) -> Break | None:
    """The first projection that is not what the events add up to; events must have been found whole before."""
    rows = connection.execute(f"SELECT {OPERATION_COLUMNS} FROM operations ORDER BY operation")
    attempts = connection.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts ORDER BY operation, attempt")
    for entry in fold_all(connection):
        row = rows.fetchone()
        if row != row_of(entry):
            return _differs(row, entry, events_total)
        expected = sorted(attempt_row(entry.operation.operation_id, one) for one in entry.operation.attempts)
        if any(attempts.fetchone() != one for one in expected):
            return Break(entry.last, "projection")
    row = rows.fetchone()
    if row is not None:
        return _differs(row, None, events_total)
    if attempts.fetchone() is not None:
        return Break(events_total, "projection")
    held = {row[0]: StoreSeen(*row) for row in connection.execute(f"SELECT {STORE_COLUMNS} FROM stores")}
    return None if held == fold_stores(connection) else Break(events_total, "projection")


def _differs(row: tuple[Any, ...] | None, entry: Entry | None, events_total: int) -> Break:
    if row is not None and row[2] > events_total:
        return Break(events_total + 1, "cut_off")
    return Break(entry.last if entry is not None else row[2] if row is not None else events_total, "projection")
