"""A connection to a ledger's file, whatever stands there: nothing, a ledger of any version, or something else.

An existing ledger of this version costs one open and two reads of the header.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable

from sshop import errors
from sshop.ledger import schema
from sshop.ledger.driver_errors import Translation, shown
from sshop.ledger.turns import Turns

Migrate = Callable[[sqlite3.Connection, int], None]

_WAL_HEADER, _WAL_FRAME = 32, 24 + 4096  # https://www.sqlite.org/fileformat2.html#the_write_ahead_log
_CANNOT_WRITE = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})


def open_database(path: str, *, wait: float, create: bool, turns: Turns, migrate: Migrate) -> sqlite3.Connection:
    """A connection to a ledger of this version; an older one is migrated, and one that is missing made if `create`.

    A file that may only be read gives a connection that only reads. Raises a `LedgerError` that names the file.
    """
    with Translation(path):
        try:
            connection = _connect(path, "mode=rw", wait)
        except sqlite3.OperationalError:
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
            if os.path.lexists(path):
                raise
            if not create:
                raise errors.LedgerError(
                    f"there is no ledger {shown(path)}", hint="name another with --ledger or SSHOP_LEDGER"
                ) from None
            create_file(path)
            connection = _connect(path, "mode=rw", wait)
        try:
            version = _version(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF not in _CANNOT_WRITE:
                raise
            connection = _connect_reading(path, wait)
            version = _version(connection)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            if version != schema.VERSION:
                _bring_up_to_date(connection, path, wait, turns, migrate)
        except BaseException:
            connection.close()
            raise
        return connection


def drop_torn_end(connection: sqlite3.Connection, path: str, turns: Turns) -> str | None:
    """What to tell people when the last append before a crash had reached the disk in part; it is cleared away.

    SQLite itself passes over what has no commit with it, without a word. A writer at work leaves such an end for a
    moment, so it is looked at again under the write lock.
    """
    if not _torn(path):
        return None
    try:
        with Translation(path), turns:
            connection.execute("BEGIN IMMEDIATE")
            torn = _torn(path)
            connection.execute("ROLLBACK")
            if torn:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except errors.LedgerError:
        return None  # who may only read, or waits in vain for a writer, clears nothing away
    if not torn:
        return None
    return (
        f"ledger {shown(path)} ended in a torn record, left by a crash; it was dropped, and nothing before it is lost"
    )


def _torn(path: str) -> bool:
    try:
        size = os.stat(f"{path}-wal").st_size
    except OSError:
        return False
    return size > 0 and (size - _WAL_HEADER) % _WAL_FRAME != 0


def _connect(path: str, query: str, wait: float) -> sqlite3.Connection:
    # The driver sets the busy timeout before anything is read. URIs, because a plain open would create a file.
    escaped = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file://{escaped}?{query}", uri=True, timeout=wait, isolation_level=None)


def _connect_reading(path: str, wait: float) -> sqlite3.Connection:
    """A connection for a folder in which SQLite cannot keep its own files."""
    connection = _connect(path, "mode=ro", wait)
    try:
        _version(connection)
    except sqlite3.OperationalError:
        connection.close()
    else:
        return connection
    if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal") > 0:
        raise errors.LedgerReadOnly(
            f"ledger {shown(path)} cannot be read in a folder that cannot be written, since its newest events are "
            "still in the -wal file beside it",
            hint="copy both files to a folder of your own and read them there",
        )
    return _connect(path, "immutable=1", wait)


def _version(connection: sqlite3.Connection) -> int:
    """The version of the schema; -1 for a database of another program."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if connection.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION_ID:
        return version
    empty = connection.execute("SELECT NOT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0]
    return 0 if empty and version == 0 else -1


def _bring_up_to_date(connection: sqlite3.Connection, path: str, wait: float, turns: Turns, migrate: Migrate) -> None:
    version = _version(connection)
    if version == -1:
        raise errors.LedgerCorrupt(
            f"{shown(path)} is a database of another program", hint="name another file with --ledger or SSHOP_LEDGER"
        )
    if version > schema.VERSION:
        raise errors.LedgerNewer(
            f"ledger {shown(path)} was written by a newer sshop (version {version}, this one knows {schema.VERSION})",
            hint="use that sshop, or another ledger",
        )
    with turns:
        if version == 0:
            connection.execute("PRAGMA page_size = 4096")
            _set_journal(connection, path, wait)
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)  # someone else may have come first
            if version == 0:
                connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
                for statement in (*schema.CREATE_EVENTS, *schema.CREATE_PROJECTIONS):
                    connection.execute(statement)
            elif version < schema.VERSION:
                migrate(connection, version)
            connection.execute(f"PRAGMA user_version = {schema.VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _set_journal(connection: sqlite3.Connection, path: str, wait: float) -> None:
    """Write-ahead logging, for good. The change of mode does not heed the busy timeout."""
    end = time.monotonic() + wait
    mode = None
    while mode is None:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise errors.LedgerError(
            f"ledger {shown(path)} lies on a file system that cannot hold it (no shared memory)",
            hint="name a file on a local disk with --ledger or SSHOP_LEDGER",
        )


def create_file(path: str) -> None:
    """An empty file of mode 0600 in folders of mode 0700, durable; one that someone else just made is as good."""
    folder = os.path.dirname(os.path.abspath(path))
    for made in _make_folders(folder):
        _sync_folder(os.path.dirname(made))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    _sync_folder(folder)


def _make_folders(folder: str) -> list[str]:
    missing = []
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        missing.append(folder)
        folder = os.path.dirname(folder)
    made = []
    for name in reversed(missing):
        try:
            os.mkdir(name, 0o700)
        except FileExistsError:
            continue
        made.append(name)
    return made


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
