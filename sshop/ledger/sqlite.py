"""The ledger in one SQLite file: `SqliteLedger`, an implementation of `sshop.ports.Ledger`.

One connection, used by one thread. Every append is one transaction under the write lock (BEGIN IMMEDIATE), from reading
the head to a commit that is on disk; every read is consistent in itself, and within an append with all others.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sshop import errors
from sshop.core.events import GENESIS, Draft, Event, body_bytes
from sshop.core.operation import Operation, State
from sshop.ledger import chain, projection, schema
from sshop.ledger.driver_errors import Translation
from sshop.ledger.key import load_key
from sshop.ledger.opening import drop_torn_end, open_database
from sshop.ledger.projection import EVENT_COLUMNS, Entry, event_of, operation_of
from sshop.ledger.turns import Turns
from sshop.ports import LedgerView, StoreSeen, Verification

WAIT_SECONDS = 15.0
_PAGE = 500
_KEPT = 256

_INSERT_EVENT = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteLedger:
    """Append-only events with projections kept in the same transaction, in one file.

    `notice` is what people should be told of how the file was found, or None.
    """

    def __init__(self, path: str, connection: sqlite3.Connection, turns: Turns, notice: str | None = None) -> None:
        self.path = path
        self.notice = notice
        self._connection = connection
        self._turns = turns
        self._errors = Translation(path)
        self._known: dict[str, Entry] = {}
        self._appending = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True, wait: float = WAIT_SECONDS) -> SqliteLedger:
        """The ledger at `path`; made there, with its folders, if it is missing and `create`.

        `wait` is how many seconds another process may hold the write lock. Raises a `LedgerError`.
        """
        name = os.fspath(path)
        turns = Turns(name, wait)
        try:
            connection = open_database(name, wait=wait, create=create, turns=turns, migrate=_migrate)
            return cls(name, connection, turns, drop_torn_end(connection, name, turns))
        except BaseException:
            turns.close()
            raise

    # -- appending -----------------------------------------------------------------------------------------------

    def append(self, decide: Callable[[LedgerView], Sequence[Draft]]) -> tuple[Event, ...]:
        """Run `decide` under the write lock and append what it returns, all or nothing; durable on return."""
        if self._appending:
            raise errors.Fault("an append inside the decision of another")
        with self._turns:
            self._begin()
            try:
                drafts = decide(self)
                with self._errors:
                    appended, changed = self._write(drafts)
                    self._connection.execute("COMMIT")
            finally:
                self._end()
        self._remember(changed)
        return appended

    def _begin(self) -> None:
        with self._errors:
            self._connection.execute("BEGIN IMMEDIATE")
        self._appending = True

    def _end(self) -> None:
        """Roll back what is not committed."""
        self._appending = False
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _write(self, drafts: Sequence[Draft]) -> tuple[tuple[Event, ...], dict[str, Entry]]:
        if not drafts:
            return (), {}
        head = self._connection.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        seq, prev = head or (0, GENESIS)
        rows: list[tuple[Any, ...]] = []
        appended: list[Event] = []
        for draft in drafts:
            seq += 1
            body, type_ = draft.body, draft.body.type
            try:
                text = body_bytes(body).decode()
                place = (seq, draft.id, draft.at, draft.session_id, draft.operation_id, draft.attempt_id, type_)
                digest = chain.link_hash(*place, text, prev)
            except (UnicodeError, TypeError, ValueError) as error:
                raise errors.Fault(f"an event of type {type_} cannot be written as canonical JSON: {error}") from error
            rows.append((*place, text, prev, digest))
            appended.append(Event(*place, body, prev, digest))
            prev = digest
        self._connection.executemany(_INSERT_EVENT, rows)
        try:
            changed = projection.project(self._connection, appended, self._entry)
        except errors.LedgerCorrupt as error:
            raise errors.Fault(f"an event that cannot follow was to be appended: {error.message}") from error
        return tuple(appended), changed

    def _remember(self, changed: dict[str, Entry]) -> None:
        """Keep operations as they were committed; `last` tells whether another process has gone further."""
        if len(self._known) + len(changed) > _KEPT:
            self._known.clear()
        if len(changed) <= _KEPT:
            self._known.update(changed)

    # -- reading -------------------------------------------------------------------------------------------------

    def _entry(self, operation_id: str) -> Entry | None:
        row = self._connection.execute(
            "SELECT first, last, value FROM operations WHERE operation = ?", (operation_id,)
        ).fetchone()
        if row is None:
            return None
        known = self._known.get(operation_id)
        if known is not None and known.last == row[1]:
            return known
        return Entry(row[0], row[1], operation_of(row[2]))

    def operation(self, operation_id: str) -> Operation | None:
        with self._errors:
            entry = self._entry(operation_id)
        return None if entry is None else entry.operation

    def same_request(self, account_key: str, fingerprint: str) -> list[Operation]:
        return self._operations(
            "WHERE account = ? AND fingerprint = ? AND pending = 1 ORDER BY first", account_key, fingerprint
        )

    def unknown_on_subject(self, account_key: str, subject_ref: str) -> list[Operation]:
        return self._operations(
            "WHERE account = ? AND subject = ? AND state = 'unknown' ORDER BY first", account_key, subject_ref
        )

    def store(self, account_key: str) -> StoreSeen | None:
        with self._errors:
            return projection.read_store(self._connection, account_key)

    def session_exists(self, session_id: str) -> bool:
        query = "SELECT EXISTS (SELECT 1 FROM events WHERE session = ? AND type = 'session.opened')"
        with self._errors:
            return bool(self._connection.execute(query, (session_id,)).fetchone()[0])

    def operations(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        unresolved: bool = False,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[Operation]:
        """Newest first by sequence; `unresolved` ones oldest first. Raises `UsageError` where `before` is unknown."""
        source, conditions = _source(state, host, unresolved=unresolved)
        values: list[Any] = []
        for condition, value in (("state = ?", state), ("host = ?", host)):
            if value is not None:
                conditions.append(condition)
                values.append(str(value))
        if unresolved:
            conditions.append("unresolved = 1")
        if before is not None:
            conditions.append("first > ?" if unresolved else "first < ?")
            values.append(self._first(before))
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        order = "ORDER BY first" if unresolved else "ORDER BY first DESC"
        return self._operations(f"{source} {where}{order} LIMIT ?", *values, -1 if limit is None else limit)

    def _first(self, operation_id: str) -> int:
        with self._errors:
            row = self._connection.execute(
                "SELECT first FROM operations WHERE operation = ?", (operation_id,)
            ).fetchone()
        if row is None:
            raise errors.UsageError(f"there is no operation {operation_id} to page from")
        return int(row[0])

    def _operations(self, clause: str, *values: Any) -> list[Operation]:
        with self._errors:
            rows = self._connection.execute(f"SELECT value FROM operations {clause}", values).fetchall()
        return [operation_of(row[0]) for row in rows]

    def events(self, operation_id: str | None = None, after: int = 0) -> Iterator[Event]:
        """Events in their order, read in pages: appending meanwhile is allowed, and is seen."""
        where = "WHERE seq > ?" if operation_id is None else "WHERE operation = ? AND seq > ?"
        query = f"SELECT {EVENT_COLUMNS} FROM events {where} ORDER BY seq LIMIT {_PAGE}"
        first = () if operation_id is None else (operation_id,)
        while True:
            with self._errors:
                rows = self._connection.execute(query, (*first, after)).fetchall()
            yield from map(event_of, rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    # -- the whole -----------------------------------------------------------------------------------------------

    def head(self) -> tuple[int, str]:
        """Sequence and hash of the newest event: what a checkpoint kept elsewhere holds."""
        with self._errors:
            row = self._connection.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        return row or (0, GENESIS)

    def verify(self, *, head: tuple[int, str] | None = None, projections: bool = True) -> Verification:
        """Whether the chain holds, reaches `head`, and adds up to the projections; one consistent reading of all."""
        with self._errors:
            self._connection.execute("BEGIN")
            try:
                count, last, fault = chain.check(self._connection, head)
                if fault is None and projections:
                    try:
                        fault = projection.compare(self._connection, count)
                    except errors.LedgerCorrupt:
                        fault = chain.Break(count, "projection")
            finally:
                self._end()
        return Verification(ok=fault is None, events=count, head=last, fault=fault)

    def rebuild(self) -> int:
        """Make the projections again from the events; the number of operations."""
        self._known.clear()
        with self._turns:
            self._begin()
            try:
                with self._errors:
                    count = projection.rebuild(self._connection)
                    self._connection.execute("COMMIT")
            finally:
                self._end()
        return count

    def secret_key(self) -> tuple[str, bytes]:
        return load_key(self.path)

    def close(self) -> None:
        with self._errors:
            self._connection.close()
        self._turns.close()


def _source(state: str | None, host: str | None, *, unresolved: bool) -> tuple[str, list[str]]:
    """Which index a list is read by, and the words that make SQLite see that it covers the list."""
    if unresolved or state in (State.OPEN, State.UNKNOWN):
        return "INDEXED BY operations_unfinished", [schema.UNFINISHED]
    if host is not None:
        return "INDEXED BY operations_by_host", []
    if state is not None and state != State.SUCCEEDED:
        return "INDEXED BY operations_ended", [schema.ENDED]
    return "NOT INDEXED", []


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for step in range(version, schema.VERSION):
        for statement in schema.MIGRATIONS[step]:
            connection.execute(statement)
    projection.rebuild(connection)
