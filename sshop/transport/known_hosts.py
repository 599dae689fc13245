"""Which host keys are good: OpenSSH's known_hosts files, and the verdict on a key that a host offers.

The format is that of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT. Only the lines of the host in question are decoded. Names
are matched as ssh does with `CheckHostIP no`: by the name (or `HostKeyAlias`) alone, never by the address it has now.
Nothing here asks anybody, and nothing is ever added to a file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import shlex
from pathlib import Path

from sshop.core.value import Value
from sshop.errors import HostKeyRefused
from sshop.transport.client_config import HostConfig
from sshop.transport.keys import PublicKey, parse_line
from sshop.transport.words import matches

DEFAULT_PORT = 22


class Entry(Value):
    """One line that speaks of the host. `marker` is empty, `cert-authority` or `revoked`."""

    marker: str
    key: PublicKey
    file: str
    line: int


class Trust(Value):
    """Everything that is known of one host's keys, and the judge of what it offers."""

    host: str
    port: int
    name: str
    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    portless: tuple[Entry, ...] = ()
    revoked: frozenset[bytes] = frozenset()
    pinned: tuple[str, ...] | None = None

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Of the keys that are known, in the order of the files: what to ask the host for first."""
        known = [entry.key.algorithm for entry in (*self.entries, *self.portless) if not entry.marker]
        known += [words[0] for words in (text.split() for text in self.pinned or ()) if len(words) > 1]
        return tuple(dict.fromkeys(known))

    @property
    def has_authority(self) -> bool:
        return self.pinned is None and any(e.marker == "cert-authority" for e in (*self.entries, *self.portless))

    def judge(self, key: PublicKey) -> HostKeyRefused | None:
        """Why the host's own key is refused; None where it is good."""
        if self._is_revoked(key.blob):
            return self._refuse("revoked", key)
        if self.pinned is not None:
            good = {key.fingerprint, key.line}
            return (
                None if any(" ".join(pin.split()[:2]) in good for pin in self.pinned) else self._refuse("pinned", key)
            )
        if any(not e.marker and e.key.blob == key.blob for e in (*self.entries, *self.portless)):
            return None
        return self._refuse("changed" if any(not e.marker for e in self.entries) else "unknown", key)

    def judge_authority(self, key: PublicKey) -> HostKeyRefused | None:
        """Why the authority that signed the host's certificate is refused; None where it is good."""
        if self._is_revoked(key.blob):
            return self._refuse("authority_revoked", key)
        known = (*self.entries, *self.portless)
        if any(e.marker == "cert-authority" and e.key.blob == key.blob for e in known):
            return None
        return self._refuse("authority_unknown", key)

    def refuse(self, reason: str, text: str) -> HostKeyRefused:
        """A refusal for what the SSH library found wrong (a signature, a certificate's dates or names)."""
        return HostKeyRefused(f"{self._place()}: {text}", reason=reason)

    def _is_revoked(self, blob: bytes) -> bool:
        known = (*self.entries, *self.portless)
        return blob in self.revoked or any(e.marker == "revoked" and e.key.blob == blob for e in known)

    def _place(self) -> str:
        alias = "" if self.name in (self.host, f"[{self.host}]:{self.port}") else f" (known as {self.name})"
        return f"{self.host} port {self.port}{alias}"

    def _refuse(self, reason: str, key: PublicKey) -> HostKeyRefused:
        offered = f"{key.algorithm} {key.fingerprint}"
        file = self.files[0] if self.files else None
        trust = self._command(key, file) if reason in ("unknown", "changed") and file else None
        known = [e for e in self.entries if not e.marker]
        match reason:
            case "unknown":
                text = f"the host key is not known: {offered} is in none of {', '.join(self.files) or 'no file'}"
            case "changed":
                places = ", ".join(f"{e.key.fingerprint} ({e.file}:{e.line})" for e in known[:4])
                text = f"the host key has CHANGED: it offers {offered}, known is {places}"
            case "pinned":
                text = f"the host key is not the pinned one: it offers {offered}"
            case "revoked":
                where = [
                    f"{e.file}:{e.line}"
                    for e in (*self.entries, *self.portless)
                    if e.key.blob == key.blob and e.marker == "revoked"
                ]
                text = f"the host key is revoked: {offered} ({', '.join(where) or 'RevokedHostKeys'})"
            case "authority_revoked":
                text = f"the authority of the host's certificate is revoked: {offered}"
            case _:
                text = f"the authority of the host's certificate is not known: {offered}"
        hint = None
        if trust and reason == "unknown":
            hint = f"when the owner of the host confirms {key.fingerprint}, trust it by: {trust}"
        elif trust:
            hint = f"somebody may be in between; when the owner confirms {key.fingerprint}, replace it by: {trust}"
        return HostKeyRefused(
            f"{self._place()}: {text}", hint=hint, reason=reason, fingerprint=key.fingerprint, command=trust
        )

    def _command(self, key: PublicKey, file: str) -> str:
        """The shell command that would make exactly this key trusted."""
        quoted = shlex.quote(file)
        append = f"printf '%s\\n' {shlex.quote(f'{self.name} {key.line}')} >> {quoted}"
        if any(not e.marker for e in self.entries):
            files = dict.fromkeys(e.file for e in self.entries if not e.marker)
            forget = " && ".join(f"ssh-keygen -R {shlex.quote(self.name)} -f {shlex.quote(each)}" for each in files)
            return f"{forget} && {append}"
        folder = Path(file).parent
        return append if folder.is_dir() else f"mkdir -p -m 700 {shlex.quote(str(folder))} && {append}"


def read_trust(config: HostConfig, pinned: tuple[str, ...] | None = None) -> Trust:
    """What the files of this host's configuration say of it.

    Raises `HostKeyRefused` for a file that is there and cannot be read: it may be the one that revokes the key.
    """
    if config.host_key_alias:
        name, portless = config.host_key_alias, None
    elif config.port == DEFAULT_PORT:
        name, portless = config.address, None
    else:
        # as ssh: a key that stands under the plain name is good on any port, but a port's own entry goes first
        name, portless = f"[{config.address}]:{config.port}", config.address
    files = (*config.user_known_hosts, *config.global_known_hosts)
    found: list[Entry] = []
    plain: list[Entry] = []
    revoked: frozenset[bytes] = frozenset()
    try:
        for file in files:
            for names, entry in _lines(file):
                if _speaks_of(names, name):
                    _keep(found, entry)
                elif portless and _speaks_of(names, portless):
                    _keep(plain, entry)
        if config.revoked_host_keys:
            revoked = _read_revoked(config.revoked_host_keys)
    except _UnreadableError as error:
        place = f"{config.address} port {config.port}"
        raise HostKeyRefused(f"{place}: no host key can be trusted: {error}", reason="unreadable") from error
    if any(not entry.marker for entry in found):
        plain = [entry for entry in plain if entry.marker]
    return Trust(config.address, config.port, name, files, tuple(found), tuple(plain), revoked, pinned)


class _UnreadableError(Exception):
    """A file of host keys that cannot be read."""


def _read(file: str) -> bytes | None:
    try:
        return Path(file).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _UnreadableError(f"{file} cannot be read: {error.strerror}") from error


def _lines(file: str) -> list[tuple[str, tuple[str, str, str, int]]]:
    """The lines of a file: names, and marker, key text, file and line number, not yet decoded."""
    result = []
    for number, line in enumerate((_read(file) or b"").decode("utf-8", "replace").splitlines(), 1):
        words = line.split(None, 2)
        marker = ""
        if words and words[0].startswith("@"):
            marker, words = words[0][1:], line.split(None, 3)[1:]
        if len(words) > 2 and not words[0].startswith("#") and marker in ("", "cert-authority", "revoked"):
            result.append((words[0], (marker, f"{words[1]} {words[2]}", file, number)))
    return result


def _keep(entries: list[Entry], line: tuple[str, str, str, int]) -> None:
    marker, text, file, number = line
    key = parse_line(text)
    if key is not None:
        entries.append(Entry(marker, key, file, number))


def _speaks_of(names: str, host: str) -> bool:
    if not names.startswith("|"):
        return matches(names, host, fold=True)
    try:
        _, kind, salt, digest = names.split("|")
        made = hmac.digest(base64.b64decode(salt), host.lower().encode(), hashlib.sha1)
        return kind == "1" and hmac.compare_digest(made, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False


def _read_revoked(file: str) -> frozenset[bytes]:
    """The keys of a RevokedHostKeys file, one a line."""
    data = _read(file)
    if data is None:
        # sshd and ssh alike: a list that is named and missing revokes everything
        raise _UnreadableError(f"RevokedHostKeys {file} is missing")
    if data.startswith(b"SSHKRL\n"):
        raise _UnreadableError(f"RevokedHostKeys {file} is a binary KRL; sshop reads lists of public keys")
    parsed = [parse_line(line) for line in data.decode("utf-8", "replace").splitlines()]
    return frozenset(key.blob for key in parsed if key)
