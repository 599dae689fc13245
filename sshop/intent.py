"""What a caller typed, decided by the policy and rendered: the intent that the runner makes durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sshop import errors
from sshop.core import command as commands
from sshop.core import entry as entries
from sshop.core import policy as policies
from sshop.core.command import Command, Stdin
from sshop.core.identity import check_id
from sshop.core.operation import Account, Operation, Refusal, Terms
from sshop.core.policy import Decision, Policy, Request
from sshop.world import Intent


def intend(
    policy: Policy,
    account: Account,
    root: str,
    words: Sequence[str],
    *,
    raw: Sequence[str] | None,
    shell: str | None,
    stdin: Stdin | None,
    note: str | None,
    new: bool,
    operation_id: str | None,
    read_secret: Callable[[str], bytes],
    read_file: Callable[[str], Stdin],
) -> Intent:
    """Raises `UsageError`, `Refused` (`policy_forbids`, `approval_required`), `InputUnavailable`."""
    if operation_id is not None:
        check_id(operation_id)
    request = _request(words, raw, shell)
    decision = policies.evaluate(policy, request)
    refusal = decision.refusal()
    if refusal is not None:
        raise refusal
    found = decision.entry
    verify: Command | None = None
    if found is None:
        command = policies.render_raw(policy, request, stdin)
        kind, name, subject, summary = ("shell" if shell is not None else "raw"), None, None, commands.display(command)
    else:
        values = entries.parse_values(found, words[1:])
        rendered = entries.render(found, values, read_secret, read_file)
        command, verify = rendered.command, rendered.verify
        if stdin is not None:
            raise errors.UsageError(
                f"{found.name} takes no standard input", hint="--stdin is for raw commands; an entry declares its own"
            )
        described = entries.describe(found, values)
        kind, name, subject, summary = described.kind, found.name, described.subject_ref, described.summary
    return Intent(
        account=account,
        command=command,
        category=decision.category,
        effects=tuple(decision.effects),
        kind=kind,
        name=name,
        summary=_readable(summary),
        subject_ref=None if subject is None else _readable(subject),
        budget=decision.budget,
        note=None if note is None else _readable(note),
        policy_digest=policy.digest or None,
        policy_commit=policy.commit,
        terms=_terms(policy, decision, root, verify),
        new=new,
        operation_id=operation_id,
    )


def permit(policy: Policy, operation: Operation) -> None:
    """Authority must stand now: an operation of the ledger is decided anew before it is attempted again.

    Raises `Refused` (`policy_forbids`, `approval_required`). Source: DESIGN section 6.
    """
    name = operation.operation_id
    if operation.name is not None and operation.name not in policy.entries:
        raise errors.Refused(
            Refusal.POLICY_FORBIDS, f"the catalogue has no {operation.name} any more", operation_id=name
        )
    if operation.name is not None:
        request = Request(name=operation.name)
    else:
        argv = commands.from_json(operation.command).argv
        words = tuple(b"".join(piece.text for piece in element).decode("utf-8", "surrogateescape") for element in argv)
        request = Request(shell=words[-1]) if operation.kind == "shell" else Request(argv=words)
    decision = policies.evaluate(policy, request)
    refusal = decision.refusal()
    if refusal is not None:
        raise refusal
    if decision.category != operation.category or tuple(decision.effects) != operation.effects:
        raise errors.Refused(
            Refusal.POLICY_FORBIDS,
            f"the policy calls it {' '.join((decision.category, *decision.effects))} now, and it was declared as "
            f"{' '.join((operation.category, *operation.effects))}",
            operation_id=name,
            hint="a new operation, declared under the policy of today, may run",
        )


def _request(words: Sequence[str], raw: Sequence[str] | None, shell: str | None) -> Request:
    given = sum((bool(words), raw is not None, shell is not None))
    if given > 1:
        raise errors.UsageError(
            "a catalogue command, a raw command after -- and --shell exclude each other",
            hint="sshop run HOST NAME [key=value …], or sshop run HOST -- ARGV…, or sshop run HOST --shell TEXT",
        )
    if raw is not None:
        return Request(argv=tuple(raw))
    if shell is not None:
        return Request(shell=shell)
    if not words:
        raise errors.UsageError("no command is given", hint="sshop run HOST NAME [key=value …]")
    return Request(name=words[0])


def _terms(policy: Policy, decision: Decision, root: str, verify: Command | None) -> Terms:
    found = decision.entry
    grade = None if policy.minimum_evidence == "unsynced" else policy.minimum_evidence
    if found is None:
        return Terms(timeout_s=decision.timeout_s, max_output=decision.max_output, weakest_grade=grade, root=root)
    return Terms(
        timeout_s=decision.timeout_s,
        max_output=decision.max_output,
        success_exit=tuple(found.success_exit),
        rate_limited_exit=tuple(found.rate_limited_exit),
        temporary_failure_exit=tuple(found.temporary_failure_exit),
        verify=None if verify is None else commands.to_json(verify),
        verify_exit=found.verify.exit if found.verify is not None else 0,
        verify_timeout_s=found.verify.timeout_s if found.verify is not None else None,
        weakest_grade=grade,
        root=root,
    )


def _readable(text: str) -> str:
    """Words as the ledger can keep them: bytes of the command line that are no text stand as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
