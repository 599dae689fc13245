"""The tables of a ledger as text, their version, and the steps from older versions.

`events` is the history: rows are added and never changed, and the database itself refuses anything else. All other
tables are projections: they can be dropped and made again from the events (`sshop.ledger.projection`), and so a
migration never has to move their rows.
"""

from __future__ import annotations

VERSION = 2
APPLICATION_ID = 0x7373_686F  # "ssho", in the header of the file

EVENTS = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    at TEXT NOT NULL,
    session TEXT NOT NULL,
    operation TEXT,
    attempt TEXT,
    type TEXT NOT NULL,
    body TEXT NOT NULL,
    prev TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT
"""
# There is no unique index on the hash: it costs three quarters of the speed of grouped appends at a million events,
# and the chain proves more than it would.
EVENTS_OF_OPERATIONS = "CREATE INDEX events_of_operations ON events (operation, seq) WHERE operation IS NOT NULL"
EVENTS_OF_SESSIONS = "CREATE INDEX events_of_sessions ON events (session) WHERE type = 'session.opened'"

NO_UPDATE = """
CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END
"""
NO_DELETE = """
CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are never removed'); END
"""
# Also what keeps INSERT OR REPLACE out, which deletes without firing a trigger.
IN_ORDER = """
CREATE TRIGGER events_are_linked BEFORE INSERT ON events
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM events)
    OR NEW.prev IS NOT coalesce((SELECT hash FROM events WHERE seq = NEW.seq - 1), printf('%064d', 0))
BEGIN SELECT RAISE(ABORT, 'events are added at the end of the chain'); END
"""

# `first` and `last` are sequences of an operation's events: its age and its newest state go by them, never by a clock.
PROJECTIONS: dict[str, str] = {
    "operations": """
CREATE TABLE operations (
    first INTEGER PRIMARY KEY,
    operation TEXT NOT NULL UNIQUE,
    last INTEGER NOT NULL,
    account TEXT NOT NULL,
    host TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    subject TEXT,
    state TEXT NOT NULL,
    pending INTEGER NOT NULL,
    unresolved INTEGER NOT NULL,
    value TEXT NOT NULL
) STRICT
""",
    "attempts": """
CREATE TABLE attempts (
    operation TEXT NOT NULL,
    attempt TEXT NOT NULL,
    number INTEGER NOT NULL,
    session TEXT NOT NULL,
    opened_at TEXT NOT NULL,
    dispatched_at TEXT,
    closed_at TEXT,
    dispatch_state TEXT,
    boundary TEXT NOT NULL,
    PRIMARY KEY (operation, attempt)
) STRICT, WITHOUT ROWID
""",
    "stores": """
CREATE TABLE stores (
    account TEXT PRIMARY KEY,
    store TEXT NOT NULL,
    machine TEXT NOT NULL,
    grade TEXT NOT NULL,
    witness_minted TEXT,
    witness_brought TEXT
) STRICT, WITHOUT ROWID
""",
}
# Every index that a change of state touches is one page more to make durable, so there is none over all states: of what
# is unfinished one, of what ended badly one, and `succeeded` is met at every step of a walk from the newest.
UNFINISHED = "state IN ('open', 'unknown')"
ENDED = "state IN ('cancelled', 'duplicate_effect_confirmed', 'failed')"
PROJECTION_INDEXES = (
    "CREATE INDEX operations_pending ON operations (account, fingerprint) WHERE pending = 1",
    "CREATE INDEX operations_unknown ON operations (account, subject) WHERE state = 'unknown'",
    f"CREATE INDEX operations_unfinished ON operations (first) WHERE {UNFINISHED}",
    f"CREATE INDEX operations_ended ON operations (state, first) WHERE {ENDED}",
    "CREATE INDEX operations_by_host ON operations (host, first)",
)

CREATE_EVENTS = (EVENTS, EVENTS_OF_OPERATIONS, EVENTS_OF_SESSIONS, NO_UPDATE, NO_DELETE, IN_ORDER)
CREATE_PROJECTIONS = (*PROJECTIONS.values(), *PROJECTION_INDEXES)
DROP_PROJECTIONS = tuple(f"DROP TABLE IF EXISTS {name}" for name in PROJECTIONS)

# What to do to the events' side of a ledger of that version to make it one of the next; the projections are made anew
# after the last step. Version 1, which was never released, found sessions by a scan and trusted writers with the order.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (EVENTS_OF_SESSIONS, IN_ORDER),
}
