"""Which credentials are offered to a host, in which order, and what is said of them. No secret is opened here.

The order is ssh's, but that a certificate goes before the bare key it is for: keys that the configuration names and the
agent holds, what else the agent holds (unless `IdentitiesOnly`), then key files. A key file is opened when its turn
comes, so that an encrypted one does not matter where another key is good.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence

from sshop.core.value import Value
from sshop.errors import LoginRefused
from sshop.transport.client_config import HostConfig
from sshop.transport.keys import (
    Certificate,
    PrivateFile,
    PublicKey,
    parse_certificate,
    read_private_file,
    read_public_file,
)


class Credential(Value):
    """One thing to offer: a key that the agent holds (`agent`), or a file's, with or without a certificate."""

    public: PublicKey | None
    agent: bytes | None = None
    file: PrivateFile | None = None
    certificate: Certificate | None = None

    @property
    def algorithm(self) -> str:
        return self.public.algorithm if self.public else "-"

    @property
    def ref(self) -> str:
        """`publickey SHA256:…` or `certificate ID SHA256:…`."""
        print_ = self.public.fingerprint if self.public else "-"
        if self.certificate is None:
            return f"publickey {print_}"
        name = "".join(c if c.isprintable() and not c.isspace() else "_" for c in self.certificate.key_id) or "-"
        return f"certificate {name} {print_}"

    def describe(self, user: str) -> str:
        """For a message: what it is, where it came from, and what may be wrong with it."""
        where = self.file.path if self.file else "agent"
        fault = self.certificate.fault(user, time.time()) if self.certificate else None
        return f"{self.ref} ({where}{f'; {fault}' if fault else ''})"


def agent_path(config: HostConfig, environ: Mapping[str, str]) -> str | None:
    """The socket of the agent that the configuration names, or None."""
    if config.identity_agent == "none":
        return None
    if config.identity_agent not in (None, "SSH_AUTH_SOCK"):
        return config.identity_agent
    return environ.get("SSH_AUTH_SOCK") or None


class Keyring:
    """What is at hand for one host, read from files; the agent's keys come in as bytes."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self.skipped: list[str] = []
        self._files: list[tuple[str, PublicKey | None, PrivateFile | None]] = []
        self._certificates: list[Certificate] = []
        for path in config.identities:
            self._read_identity(path)
        for path in config.certificates:
            self._read_certificate(path, named=True)

    def _read_identity(self, path: str) -> None:
        try:
            file = read_private_file(path)
        except OSError as error:
            # a public key alone chooses among the agent's
            public = read_public_file(path + ".pub")
            if public is not None:
                self._files.append((path, public, None))
            elif self.config.identities_given or not isinstance(error, FileNotFoundError):
                self.skipped.append(f"{path}: {error.strerror}")
            return
        public = file.public or read_public_file(path)
        if public is not None and b"PRIVATE KEY" not in file.data:
            self._files.append((path, public, None))
        else:
            self._files.append((path, public, file))
        self._read_certificate(path.removesuffix(".pub") + "-cert.pub")

    def _read_certificate(self, path: str, *, named: bool = False) -> None:
        line = read_public_file(path)
        certificate = parse_certificate(line.blob) if line else None
        if certificate is not None:
            self._certificates.append(certificate)
        elif line is not None or (named and not os.path.exists(path)):  # noqa: PTH110 - os.path is loaded already
            self.skipped.append(f"{path}: no certificate can be read")

    def offers(self, held: Sequence[bytes]) -> Iterator[Credential]:
        """What to offer, given the blobs that the agent holds, in order."""
        plain = [(blob, PublicKey(_algorithm(blob), blob)) for blob in held if parse_certificate(blob) is None]
        signed = [(blob, found) for blob in held if (found := parse_certificate(blob)) is not None]
        by_blob = {key.blob: key for _, key in plain}
        seen: set[bytes] = set()
        named = [public for _, public, _ in self._files if public is not None]

        def once(credential: Credential) -> Iterator[Credential]:
            shown = credential.certificate or credential.public
            if shown is None or shown.blob not in seen:
                if shown is not None:
                    seen.add(shown.blob)
                yield credential

        for public in named:
            for blob, certificate in signed:
                if public.blob in (blob, certificate.key.blob):
                    yield from once(Credential(certificate.key, agent=blob, certificate=certificate))
            if public.blob in by_blob:
                for certificate in self._for(public):
                    yield from once(Credential(public, agent=public.blob, certificate=certificate))
                yield from once(Credential(public, agent=public.blob))
        for certificate in self._certificates:
            # a CertificateFile whose key only the agent has
            if certificate.key.blob in by_blob:
                yield from once(Credential(certificate.key, agent=certificate.key.blob, certificate=certificate))
        if not self.config.identities_only:
            for blob, certificate in signed:
                yield from once(Credential(certificate.key, agent=blob, certificate=certificate))
            for blob, public in plain:
                yield from once(Credential(public, agent=blob))
        for path, key, file in self._files:
            if file is None or (key is not None and key.blob in by_blob):
                continue
            if file.encrypted:
                print_ = f" ({key.fingerprint})" if key is not None else ""
                self.skipped.append(f"{path}{print_}: it is encrypted, and no agent holds it")
                continue
            for certificate in self._for(key):
                yield from once(Credential(key, file=file, certificate=certificate))
            yield from once(Credential(key, file=file))

    def _for(self, public: PublicKey | None) -> list[Certificate]:
        return [each for each in self._certificates if public is not None and each.key.blob == public.blob]


def refuse(
    user: str,
    place: str,
    tried: Sequence[Credential],
    skipped: Sequence[str],
    *,
    reason: str,
    said: Mapping[str, Sequence[str]],
) -> LoginRefused:
    """A refused login, with everything that may help whoever reads it, and no key in it."""
    shown = [credential.describe(user) for credential in tried]
    parts = [f"{user} on {place}: no credential was accepted"]
    parts += [reason] if reason else []
    parts.append("tried " + ", ".join(shown) if shown else "there was none to try")
    parts += ["not tried: " + ", ".join(skipped)] if skipped else []
    parts += [f"{head} {', '.join(words)}" for head, words in said.items() if any(words)]
    hint = None
    if "many authentication failures" in reason:
        hint = "name the right key by IdentityFile and set IdentitiesOnly yes"
    elif any("encrypted" in each for each in skipped):
        hint = "ssh-add the key, and give SSH_AUTH_SOCK"
    elif any("expired" in each for each in shown):
        hint = "renew the certificate"
    else:
        hint = f"the host must take {user} without a question: IdentityFile or an agent here, authorized_keys there"
    return LoginRefused("; ".join(parts), hint=hint, tried=tuple(credential.ref for credential in tried))


def _algorithm(blob: bytes) -> str:
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii", "replace")
