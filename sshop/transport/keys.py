"""Public keys and certificates as bytes: fingerprints, and what a key file says without its secret.

The wire forms are those of RFC 4253 section 6.6, OpenSSH's PROTOCOL.certkeys and PROTOCOL.key. Nothing here signs,
decrypts or verifies.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from pathlib import Path

from sshop.core.value import Value

_CERT_SUFFIX = "-cert-v01@openssh.com"
# how many strings a public key has behind its type, in a certificate too
_FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "ssh-dss": 4,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
_MAGIC = b"openssh-key-v1\0"


class PublicKey(Value):
    """A public key in its wire form."""

    algorithm: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)

    @property
    def line(self) -> str:
        """`ssh-ed25519 AAAA…`."""
        return f"{self.algorithm} {base64.b64encode(self.blob).decode()}"


class Certificate(Value):
    """What an OpenSSH certificate says. Times are seconds since the epoch."""

    key: PublicKey
    blob: bytes
    key_id: str
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    authority: str

    def fault(self, principal: str, now: float) -> str | None:
        """Why a host should refuse it for this account, as far as can be told from here."""
        if now < self.valid_after:
            return "not yet valid"
        if now >= self.valid_before:
            return "expired"
        if self.principals and principal not in self.principals:
            # a host may map principals to accounts, so this is a guess
            return f"for {', '.join(self.principals)}, not {principal}"
        return None


class PrivateFile(Value):
    """A private key file, unopened. `public` is None where only the secret would tell; `encrypted` likewise."""

    path: str
    data: bytes
    public: PublicKey | None
    encrypted: bool | None


def fingerprint(blob: bytes) -> str:
    """`SHA256:…` as ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_line(text: str) -> PublicKey | None:
    """`ssh-ed25519 AAAA… comment`, a certificate's line too; None where it is neither."""
    words = text.split(None, 2)
    if len(words) < 2:
        return None
    try:
        blob = base64.b64decode(words[1], validate=True)
        algorithm = _Wire(blob).text()
    except (ValueError, binascii.Error):
        return None
    return PublicKey(algorithm, blob) if algorithm == words[0] else None


def parse_certificate(blob: bytes) -> Certificate | None:
    """None where it is no certificate of a known kind."""
    try:
        wire = _Wire(blob)
        algorithm = wire.text()
        plain = algorithm.removesuffix(_CERT_SUFFIX)
        if plain.startswith("sk-"):
            plain += "@openssh.com"
        if not algorithm.endswith(_CERT_SUFFIX) or plain not in _FIELDS:
            return None
        wire.string()  # the nonce
        start = wire.at
        for _ in range(_FIELDS[plain]):
            wire.string()
        key = PublicKey(plain, _string(plain.encode()) + blob[start : wire.at])
        wire.number(8)
        wire.number(4)
        key_id = wire.text()
        names = _Wire(wire.string())
        principals = []
        while names.at < len(names.data):
            principals.append(names.text())
        after, before = wire.number(8), wire.number(8)
        for _ in range(3):
            wire.string()
        authority = fingerprint(wire.string())
    except ValueError:
        return None
    return Certificate(key, blob, key_id, tuple(principals), after, before, authority)


def read_private_file(path: str) -> PrivateFile:
    """Raises `OSError`."""
    data = Path(path).read_bytes()
    public: PublicKey | None = None
    encrypted: bool | None = None
    found = re.search(rb"-----BEGIN OPENSSH PRIVATE KEY-----(.*?)-----END", data, re.DOTALL)
    if found:
        try:
            body = binascii.a2b_base64(b"".join(found[1].split()))
            wire = _Wire(body.removeprefix(_MAGIC))
            encrypted = wire.string() != b"none"
            wire.string()
            wire.string()
            wire.number(4)
            blob = wire.string()
            public = PublicKey(_Wire(blob).text(), blob)
        except ValueError:
            public = None
    elif b"ENCRYPTED" in data:
        encrypted = True
    return PrivateFile(path, data, public or read_public_file(path + ".pub"), encrypted)


def read_public_file(path: str) -> PublicKey | None:
    """The key or certificate in a file of one line; None where there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((key for key in map(parse_line, text.splitlines()) if key), None)


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


class _Wire:
    """Reads RFC 4251 fields. Raises `ValueError` beyond the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def string(self) -> bytes:
        return self._take(self.number(4))

    def text(self) -> str:
        return self.string().decode()

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ValueError("cut short")
        piece = self.data[self.at : end]
        self.at = end
        return piece
