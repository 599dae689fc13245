"""Every error that sshop raises, as one tree; each class has a stable dotted code and tells whose side it is on.

::

    SshopError
    ├── UsageError                 ours to say no: the caller's words are off           usage
    │   └── PolicyFileError        … a policy file, with file, line and column          usage.policy
    ├── Refused                    a rule said no: one of the closed list               its refusal
    ├── NotSent                    provably nothing was dispatched                      not_sent
    │   ├── HostUnreachable        no TCP connection, no such name                      not_sent.unreachable
    │   ├── ConnectTimeout         connect, handshake or login took too long            not_sent.timeout
    │   ├── RateLimited            sshd refused by its own limits                       not_sent.rate_limited
    │   ├── HostKeyRefused         unknown, changed or revoked host key                 not_sent.host_key
    │   ├── LoginRefused           no credential was accepted                           not_sent.login
    │   ├── GuardUnreachable       the login works, the guard does not answer           not_sent.guard
    │   └── InputUnavailable       a secret or standard input is not at hand            not_sent.input
    ├── LinkLost                   the connection ended; says nothing about the host    link.lost
    │   └── LinkIdle               nothing came for too long                            link.idle
    ├── ProtocolError              the far side broke the protocol                      protocol
    ├── LedgerError                the ledger cannot be used                            ledger
    │   ├── LedgerLocked                                                                ledger.locked
    │   ├── LedgerFull                                                                  ledger.full
    │   ├── LedgerCorrupt                                                               ledger.corrupt
    │   ├── LedgerReadOnly                                                              ledger.read_only
    │   └── LedgerNewer                                                                 ledger.newer
    └── Fault                      a fault of sshop itself                              fault

Unknown is never an error here: it is an outcome (`sshop.core.outcome`).
"""

from __future__ import annotations


class SshopError(Exception):
    """Something went wrong."""

    code = "error"

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.hint = hint
        super().__init__(self.message)


class UsageError(SshopError):
    """The command line cannot be understood."""

    code = "usage"


class PolicyFileError(UsageError):
    """A policy file cannot be used."""

    code = "usage.policy"

    def __init__(
        self,
        message: str,
        *,
        file: str,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.file, self.line, self.column = file, line, column
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(f"{place}: {message}", hint=hint)


class Refused(SshopError):
    """A rule refused the operation."""

    code = "refused"

    def __init__(
        self,
        refusal: str,
        message: str,
        *,
        operation_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.refusal = refusal
        self.operation_id = operation_id
        self.code = refusal
        super().__init__(message, hint=hint)


class NotSent(SshopError):
    """Nothing was dispatched."""

    code = "not_sent"


class HostUnreachable(NotSent):
    """The host cannot be reached."""

    code = "not_sent.unreachable"


class ConnectTimeout(NotSent):
    """The host did not answer in time."""

    code = "not_sent.timeout"


class RateLimited(NotSent):
    """The SSH server refused the connection by its own limits."""

    code = "not_sent.rate_limited"


class HostKeyRefused(NotSent):
    """The host key is not trusted.

    `reason` is one of `unknown changed revoked pinned authority_unknown authority_revoked certificate unreadable`;
    `command` is the shell command that would trust the offered key, where there is one.
    """

    code = "not_sent.host_key"

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        reason: str = "unknown",
        fingerprint: str | None = None,
        command: str | None = None,
    ) -> None:
        self.reason, self.fingerprint, self.command = reason, fingerprint, command
        super().__init__(message, hint=hint)


class LoginRefused(NotSent):
    """No credential was accepted.

    `tried` names the credentials that were offered, by fingerprint.
    """

    code = "not_sent.login"

    def __init__(self, message: str | None = None, *, hint: str | None = None, tried: tuple[str, ...] = ()) -> None:
        self.tried = tried
        super().__init__(message, hint=hint)


class GuardUnreachable(NotSent):
    """The guard on the host does not answer."""

    code = "not_sent.guard"


class InputUnavailable(NotSent):
    """A secret or the standard input of the operation is not at hand."""

    code = "not_sent.input"


class LinkLost(SshopError):
    """The connection ended."""

    code = "link.lost"


class LinkIdle(LinkLost):
    """The host lives and sent nothing for too long."""

    code = "link.idle"


class ProtocolError(SshopError):
    """The far side broke the protocol."""

    code = "protocol"


class LedgerError(SshopError):
    """The ledger cannot be used."""

    code = "ledger"


class LedgerLocked(LedgerError):
    """The ledger stayed locked by another process."""

    code = "ledger.locked"


class LedgerFull(LedgerError):
    """There is no space left for the ledger."""

    code = "ledger.full"


class LedgerCorrupt(LedgerError):
    """The ledger is damaged."""

    code = "ledger.corrupt"


class LedgerReadOnly(LedgerError):
    """The ledger cannot be written."""

    code = "ledger.read_only"


class LedgerNewer(LedgerError):
    """The ledger was written by a newer sshop."""

    code = "ledger.newer"


class Fault(SshopError):
    """A fault of sshop itself."""

    code = "fault"
