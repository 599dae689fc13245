-- The tables of a ledger of version 1, without rows. Never changed: it stands for what lies on somebody's disk.
PRAGMA page_size = 4096;
PRAGMA journal_mode = WAL;
PRAGMA application_id = 1936943215;
PRAGMA user_version = 1;
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
) STRICT;
CREATE INDEX events_of_operations ON events (operation, seq) WHERE operation IS NOT NULL;
CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are never removed'); END;
CREATE TABLE operations (
    operation TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    value TEXT NOT NULL
);
CREATE INDEX operations_by_state ON operations (state);
