"""What the driver's and the system's errors mean for a ledger: one literal table for each."""

from __future__ import annotations

import errno
import os
import sqlite3
from types import TracebackType

from sshop import errors
from sshop.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    SshopError,
)

Row = tuple[type[SshopError], str, str | None]

_LOCKED: Row = (LedgerLocked, "stayed locked by another process", "see which process holds it open, then try again")
_FULL: Row = (LedgerFull, "has no space left to grow", "free some space; what was written before is kept")
_WRITE: Row = (LedgerFull, "could not grow", "look at the disk quota, the file size limit and the disk's health")
_CORRUPT: Row = (LedgerCorrupt, "is damaged", "keep the file and its -wal; restore a copy, then `sshop reconcile`")
_NO_LEDGER: Row = (LedgerCorrupt, "is not a ledger of sshop", "name another file with --ledger or SSHOP_LEDGER")
_READ_ONLY: Row = (
    LedgerReadOnly,
    "cannot be written",
    "look at owner and mode of the file and its folder, or name another with --ledger or SSHOP_LEDGER",
)
_CANNOT_OPEN: Row = (LedgerReadOnly, "cannot be opened", _READ_ONLY[2])
_IO: Row = (LedgerError, "could not be read or written", "look at the disk's health")
_OURS: Row = (errors.Fault, "was used wrongly", "this is a fault of sshop; please report it")
_OTHER: Row = (LedgerError, "cannot be used", None)

# Keys are SQLite's result codes (https://www.sqlite.org/rescode.html); an extended code without a row of its own has
# that of its lowest byte.
SQLITE: dict[int, Row] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_CORRUPT: _CORRUPT,
    sqlite3.SQLITE_NOTADB: _NO_LEDGER,
    sqlite3.SQLITE_FORMAT: _NO_LEDGER,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_AUTH: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_CANTOPEN_ISDIR: (LedgerError, "is a folder", _NO_LEDGER[2]),
    sqlite3.SQLITE_IOERR: _IO,
    sqlite3.SQLITE_IOERR_WRITE: _WRITE,
    sqlite3.SQLITE_IOERR_SHMSIZE: _WRITE,
    sqlite3.SQLITE_IOERR_SHORT_READ: _CORRUPT,
    sqlite3.SQLITE_IOERR_CORRUPTFS: _CORRUPT,
    sqlite3.SQLITE_IOERR_LOCK: _LOCKED,
    sqlite3.SQLITE_ERROR: _CORRUPT,  # "no such table": our statements are right, so the file is not
    sqlite3.SQLITE_SCHEMA: _CORRUPT,
    sqlite3.SQLITE_CONSTRAINT: _OURS,
    sqlite3.SQLITE_TOOBIG: _OURS,
    sqlite3.SQLITE_MISMATCH: _OURS,
    sqlite3.SQLITE_MISUSE: _OURS,
    sqlite3.SQLITE_RANGE: _OURS,
    sqlite3.SQLITE_NOMEM: (LedgerError, "needs more memory than there is", None),
    sqlite3.SQLITE_NOLFS: _WRITE,
    sqlite3.SQLITE_INTERNAL: _OTHER,
    sqlite3.SQLITE_ABORT: _OTHER,
    sqlite3.SQLITE_INTERRUPT: _OTHER,
    sqlite3.SQLITE_NOTFOUND: _OTHER,
    sqlite3.SQLITE_EMPTY: _OTHER,
}

SYSTEM: dict[int, Row] = {
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.EROFS: _READ_ONLY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _WRITE,
    errno.EFBIG: _WRITE,
    errno.EIO: _IO,
    errno.ENOENT: (LedgerError, "does not exist", _NO_LEDGER[2]),
    errno.EISDIR: (LedgerError, "is a folder", _NO_LEDGER[2]),
    errno.ENOTDIR: (LedgerError, "lies below something that is no folder", _NO_LEDGER[2]),
    errno.ELOOP: (LedgerError, "lies behind a loop of links", _NO_LEDGER[2]),
    errno.ENAMETOOLONG: (LedgerError, "has a name that is too long", _NO_LEDGER[2]),
}


def row_of_sqlite(code: int | None) -> Row:
    """The table's row for a result code; None stands for an error of the Python module itself, and so of ours."""
    if code is None:
        return _OURS
    return SQLITE.get(code) or SQLITE.get(code & 0xFF) or _OTHER


def shown(path: str) -> str:
    """A path as it may stand in a message: printable, and on one line."""
    return path.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n")


def ledger_error(path: str, error: sqlite3.Error | OSError) -> SshopError:
    """Our error for one of theirs, naming the file; the cause is for the caller to chain."""
    if isinstance(error, OSError):
        cls, words, hint = SYSTEM.get(error.errno or 0, _OTHER)
        detail = os.strerror(error.errno) if error.errno else str(error)
        if error.filename is not None and os.fsdecode(error.filename) != path:
            detail = f"{shown(os.fsdecode(error.filename))}: {detail}"
    else:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None and isinstance(error, sqlite3.OperationalError):
            code = sqlite3.SQLITE_CORRUPT  # the module itself: text that is no UTF-8
        cls, words, hint = row_of_sqlite(code)
        detail = str(error)
    return cls(f"ledger {shown(path)} {words} ({detail})", hint=hint)


class Translation:
    """`with Translation(path):` raises a `LedgerError` (or `Fault`) for what driver and system raise."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (sqlite3.Error, OSError)):
            raise ledger_error(self.path, error) from error
