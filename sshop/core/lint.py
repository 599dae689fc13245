"""What a policy may say, but should not: findings for the people who write it. What it must not say never loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sshop.core.entry import Entry, Template
from sshop.core.operation import Category, Effect
from sshop.core.policy import Policy
from sshop.core.value import Value


class Finding(Value):
    """`level` is `warning` or `note`, `place` file and line, `code` a stable word."""

    level: str
    code: str
    place: str
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.level}: {self.name}: {self.message} ({self.code})"


def _templates(entry: Entry) -> Iterator[Template]:
    yield from entry.argv
    yield from entry.converged_when
    yield entry.summary
    if entry.verify is not None:
        yield from entry.verify.argv
    for optional in (entry.subject, entry.cwd, entry.stdin):
        if optional is not None:
            yield optional
    for _, template in entry.env:
        yield template


def _used(entry: Entry) -> set[str]:
    return {name for template in _templates(entry) for kind, name in template if kind in ("param", "digest")}


def _in_command(entry: Entry) -> set[str]:
    templates = [*entry.argv, *(template for _, template in entry.env), entry.stdin or (), entry.cwd or ()]
    return {name for template in templates for kind, name in template if kind in ("param", "digest")}


def _unverified(entry: Entry) -> bool:
    return entry.category == Category.APPEND_ONLY and entry.verify is None


def _no_verify(entry: Entry) -> str | None:
    if _unverified(entry) and Effect.NOTIFICATION not in entry.effects:
        return "append_only without verify: nothing can tell later whether the effect stands"
    return None


def _message(entry: Entry) -> str | None:
    if _unverified(entry) and Effect.NOTIFICATION in entry.effects:
        return "a message that was sent cannot be looked for: a person decides where its outcome is unknown"
    return None


def _unguarded(entry: Entry) -> str | None:
    if entry.category == Category.DESTRUCTIVE and entry.approval == "none":
        return "destructive without approval: required"
    return None


def _endless(entry: Entry) -> str | None:
    if entry.category == Category.DESTRUCTIVE and entry.timeout_s is None:
        return "destructive without timeout_s"
    return None


def _no_timeout(entry: Entry) -> str | None:
    if entry.category != Category.DESTRUCTIVE and entry.timeout_s is None:
        return "without timeout_s it may run for ever"
    return None


def _unused(entry: Entry) -> str | None:
    idle = [name for name in entry.params if name not in _used(entry)]
    return f"nothing uses {', '.join(idle)}" if idle else None


def _only_described(entry: Entry) -> str | None:
    described = _used(entry) - _in_command(entry)
    if described and entry.category != Category.READ_ONLY:
        return f"{', '.join(sorted(described))} does not reach the command, so that two values make one request"
    return None


def _blind_condition(entry: Entry) -> str | None:
    if entry.category != Category.CONVERGENT:
        return None
    looked = {name for template in entry.converged_when for kind, name in template if kind in ("param", "digest")}
    acted = {name for template in entry.argv for kind, name in template if kind in ("param", "digest")}
    blind = [name for name in entry.params if name in acted - looked]
    if blind:
        return f"the condition does not look at {', '.join(blind)}: another value would count as done"
    return None


def _no_subject(entry: Entry) -> str | None:
    if entry.subject is None and entry.category != Category.READ_ONLY:
        return "without subject no later write to the same thing waits for an unknown outcome"
    return None


def _read_only_effects(entry: Entry) -> str | None:
    return "read_only, and yet it has effects" if entry.category == Category.READ_ONLY and entry.effects else None


def _wide_open(entry: Entry) -> str | None:
    wide = [
        name
        for name, param in entry.params.items()
        if param.type == "string" and re.fullmatch(r"\^?(\(\?s\))?\.[*+]\$?", param.pattern or "")
    ]
    return f"the pattern of {', '.join(wide)} takes anything" if wide else None


def _no_example(entry: Entry) -> str | None:
    bare = [
        name
        for name, param in entry.params.items()
        if param.example is None and param.default is None and param.type in ("string", "integer", "path")
    ]
    return f"no example of {', '.join(bare)}" if bare else None


CHECKS: tuple[tuple[str, str, Callable[[Entry], str | None]], ...] = (
    ("warning", "append_only_without_verify", _no_verify),
    ("warning", "destructive_without_approval", _unguarded),
    ("warning", "destructive_without_timeout", _endless),
    ("warning", "unused_parameter", _unused),
    ("warning", "parameter_only_described", _only_described),
    ("warning", "condition_ignores_parameter", _blind_condition),
    ("warning", "read_only_with_effects", _read_only_effects),
    ("warning", "pattern_takes_anything", _wide_open),
    ("note", "message_without_verify", _message),
    ("note", "no_timeout", _no_timeout),
    ("note", "no_subject", _no_subject),
    ("note", "no_example", _no_example),
)


def lint(policy: Policy) -> list[Finding]:
    """Everything that a person should look at, in the order of the files; warnings and notes alike."""
    findings = [
        Finding(level, code, entry.place, entry.name, message)
        for entry in policy.entries.values()
        for level, code, check in CHECKS
        if (message := check(entry)) is not None
    ]

    def order(finding: Finding) -> tuple[str, int, bool]:
        file, _, line = finding.place.rpartition(":")
        return file, int(line) if line.isdigit() else 0, finding.level == "note"

    return sorted(findings, key=order)
