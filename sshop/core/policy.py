"""The policy as a value, and its decision over a request: what a command is, and whether it may run.

The policy names entries and types their arguments. What it does not know is destructive; what needs an approval is
refused until there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sshop import errors
from sshop.core import command, entry
from sshop.core.entry import NOTHING
from sshop.core.operation import Category, Refusal
from sshop.core.recovery import effective_category
from sshop.core.value import Value

DEFAULT_BUDGET = 3
SHELL = "bash"


class Host(Value):
    """What hosts.yaml says of a host; what is None comes from the OpenSSH configuration."""

    name: str
    address: str | None = None
    port: int | None = None
    user: str | None = None
    root: str | None = None
    authority_ref: str | None = None
    groups: tuple[str, ...] = ()


class Policy(Value):
    """Everything that the folder of policies says. Times are seconds, sizes bytes.

    `digest` is SHA-256 over the files' names and bytes, `commit` the git commit that is checked out there.
    """

    entries: Mapping[str, entry.Entry] = NOTHING
    rules: Sequence[Any] = ()
    hosts: Mapping[str, Host] = NOTHING
    digest: str = ""
    commit: str | None = None
    folder: str = ""
    budgets: Mapping[str, int] = NOTHING
    not_sent_tries: int = 5
    backoff_first_s: float = 0.5
    backoff_most_s: float = 30.0
    recover: str = "auto"
    review_after_s: int = 3600
    minimum_evidence: str = "unsynced"
    approval_required: tuple[str, ...] = ()
    raw_argv: str = "allowed"
    raw_shell: str = "allowed"
    timeout_s: int | None = None
    max_output: int = 1_048_576
    redact: tuple[str, ...] = ()
    limits: Mapping[str, float] = NOTHING


class Request(Value):
    """What a caller asks for: the name of an entry, or the words of a raw command, or a shell text."""

    name: str | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None


class Decision(Value):
    """What a request is, and whether it may run. `rule` is file and line, or None where no rule knows it.

    `outcome` is `allowed`, `approval_required` or `refused`; `recovers_as` the row of the recovery table.
    """

    outcome: str
    category: str
    recovers_as: str
    effects: tuple[str, ...]
    reason: str
    rule: str | None
    budget: int
    timeout_s: int | None
    max_output: int
    entry: entry.Entry | None = None

    def refusal(self) -> errors.Refused | None:
        """The error of a request that may not run."""
        if self.outcome == "approval_required":
            return errors.Refused(
                Refusal.APPROVAL_REQUIRED,
                self.reason,
                hint="approvals are not built yet: a person runs it, or the policy sets approval: none",
            )
        if self.outcome == "refused":
            return errors.Refused(
                Refusal.POLICY_FORBIDS, self.reason, hint="use a catalogue entry, or change raw in policy.yaml"
            )
        return None


def find_entry(policy: Policy, name: str) -> entry.Entry:
    """The entry of that name.

    Raises `UsageError` with near names.
    """
    found = policy.entries.get(name)
    if found is None:
        import difflib

        names = sorted(policy.entries)
        close = difflib.get_close_matches(name, names, 5, 0.5)
        listed = f"did you mean {', '.join(close)}? " if close else ""
        some = ", ".join(names[:200]) + (" …" if len(names) > 200 else "")
        some = f"there are: {some}" if some else "the catalogue is empty"
        raise errors.UsageError(
            f"no command {name[:80]!r} in the catalogue", hint=f"{listed}{some}; a raw command stands after --"
        )
    return found


def evaluate(policy: Policy, request: Request) -> Decision:
    """What the request is, by which rule, and whether it may run.

    Raises `UsageError` for an entry that does not exist and for an empty command.
    """
    if request.name is not None:
        return _evaluate_entry(policy, find_entry(policy, request.name))
    if request.shell is not None:
        return _raw_decision(
            policy, Category.DESTRUCTIVE, "shell text is destructive whatever it says", None, policy.raw_shell
        )
    if not request.argv:
        raise errors.UsageError("the command is empty", hint="sshop run HOST NAME [key=value …] or -- ARGV…")
    from sshop.core import rules

    category, rule = rules.sort(policy.rules, request.argv)
    if rule is None:
        return _raw_decision(policy, category, "no rule knows it", None, policy.raw_argv)
    return _raw_decision(policy, category, rule.reason, rule.place, policy.raw_argv)


def _evaluate_entry(policy: Policy, found: entry.Entry) -> Decision:
    needed = found.approval == "required" or found.category in policy.approval_required
    if found.approval == "required":
        reason = f"{found.name} needs an approval"
    elif needed:
        reason = f"commands that are {found.category} need an approval"
    else:
        reason = f"{found.name} is in the catalogue"
    return Decision(
        outcome="approval_required" if needed else "allowed",
        category=found.category,
        recovers_as=effective_category(found.category, found.effects),
        effects=found.effects,
        reason=reason,
        rule=found.place,
        budget=found.budget or policy.budgets.get(found.category, DEFAULT_BUDGET),
        timeout_s=policy.timeout_s if found.timeout_s is None else found.timeout_s,
        max_output=policy.max_output if found.max_output is None else found.max_output,
        entry=found,
    )


def _raw_decision(policy: Policy, category: str, reason: str, rule: str | None, allowed: str) -> Decision:
    if allowed == "refused":
        outcome, reason = "refused", "the policy allows commands of the catalogue alone"
    elif category in policy.approval_required:
        outcome, reason = "approval_required", f"commands that are {category} need an approval ({reason})"
    else:
        outcome = "allowed"
    return Decision(
        outcome=outcome,
        category=category,
        recovers_as=category,
        effects=(),
        reason=reason,
        rule=rule,
        budget=policy.budgets.get(category, DEFAULT_BUDGET),
        timeout_s=policy.timeout_s,
        max_output=policy.max_output,
    )


def render_raw(policy: Policy, request: Request, stdin: command.Stdin | None = None) -> command.Command:
    """The command of a raw request; what looks like a secret in it is hidden. Shell text runs under `bash -c`.

    Raises `UsageError`.
    """
    from sshop.core import redact

    if request.shell is not None:
        words: tuple[str, ...] = (SHELL, "-c", request.shell)
    else:
        words = request.argv or ()
    return command.Command(argv=redact.hide(words, policy.redact), stdin=stdin)
