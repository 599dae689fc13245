"""Identifiers: what may be an operation ID, and the ULIDs that sshop mints, which carry their time."""

from __future__ import annotations

import re

from sshop import errors

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_MINTED = re.compile(rf"op_[0-7][{_ALPHABET}]{{25}}\Z")


def check_id(text: str) -> str:
    """`text`, when it may be an operation ID.

    Raises `UsageError` otherwise. Source: DESIGN section 2.
    """
    if not ID_PATTERN.match(text):
        raise errors.UsageError(
            f"not an operation ID: {text[:140]!r}",
            hint="1 to 128 of A-Z a-z 0-9 . _ - and a letter or digit first",
        )
    return text


def is_minted(operation_id: str) -> bool:
    """Whether the ID carries its time: `op_` and a valid lower-case ULID."""
    return bool(_MINTED.match(operation_id))


def mint(prefix: str, milliseconds: int, entropy: bytes) -> str:
    """`prefix_` and a lower-case ULID of a time since the epoch and 10 random bytes (ULID specification)."""
    number = (milliseconds << 80) | int.from_bytes(entropy[:10], "big")
    return f"{prefix}_" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def minted_at(operation_id: str) -> int:
    """Milliseconds since the epoch that a minted ID carries."""
    number = 0
    for character in operation_id[3:13]:
        number = number * 32 + _ALPHABET.index(character)
    return number
