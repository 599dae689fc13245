"""The key of the secret part of fingerprints: a file beside the ledger and never in it.

Who has the ledger alone cannot try out secrets against it.
"""

from __future__ import annotations

import contextlib
import json
import os

from sshop import errors
from sshop.ledger.driver_errors import Translation, shown

KEY_BYTES = 32


def load_key(ledger: str) -> tuple[str, bytes]:
    """The key's ID and the key; made by the first who asks, once, whoever else asks at that moment.

    Raises `LedgerError`, `LedgerCorrupt` where the file holds something else.
    """
    path = f"{ledger}.key"
    with Translation(path):
        text = _read(path)
        if text is None:
            _create(path)
            text = _read(path)
    try:
        value = json.loads(text or "")
        key = bytes.fromhex(value["key"])
        key_id = value["key_id"]
    except (ValueError, TypeError, KeyError):
        key_id, key = "", b""
    if not isinstance(key_id, str) or not key_id or len(key) != KEY_BYTES:
        raise errors.LedgerCorrupt(
            f"{shown(path)} does not hold the key of the ledger beside it", hint="restore it from a copy"
        )
    return key_id, key


def _read(path: str) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        return file.read(4096)


def _create(path: str) -> None:
    """Write aside, sync, and link: the name appears whole, and only for the first."""
    aside = f"{path}.{os.getpid()}-{os.urandom(8).hex()}"
    text = json.dumps({"key": os.urandom(KEY_BYTES).hex(), "key_id": f"key_{os.urandom(8).hex()}"})
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, text.encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        os.unlink(aside)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
