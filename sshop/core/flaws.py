"""What must hold of a catalogue entry before it is used; one without flaws always renders for values of its types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sshop import errors
from sshop.core.command import NAME_PATTERN, RESERVED_NAMES
from sshop.core.entry import Entry, Template, names_in, near, secret_names
from sshop.core.param import Param, check_value
from sshop.core.template import ENTRY_NAME, PARAM_NAME, USER_NAME, show_template

_SHELLS = frozenset(["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "yash", "fish", "tcsh", "csh", "busybox"])
_INTERPRETERS = frozenset(["python", "python3", "perl", "ruby", "node", "php", "lua"])

Path = tuple[str | int, ...]
Flaw = tuple[Path, str, str | None]


def _code_element(argv: Sequence[Template]) -> int | None:
    """The index of the element that an interpreter reads as a program."""
    runner = False
    awk = False
    for index, template in enumerate(argv):
        word = show_template(template).rsplit("/", 1)[-1]
        if runner and (re.fullmatch(r"-[a-zA-Z]*[ceE]", word) or word in ("--command", "--eval", "--execute")):
            return index + 1
        if awk and not word.startswith("-"):
            return index
        runner = runner or word in _SHELLS or word in _INTERPRETERS
        awk = awk or word in ("awk", "gawk", "mawk")
    return None


def _template_flaws(entry: Entry, path: Path, template: Template, *, secret: bool, identity: bool) -> Iterator[Flaw]:
    for kind, name in template:
        if kind == "id" and not identity:
            yield path, "{operation_id} cannot stand here", "it may stand in argv, env, converged_when and verify"
        if kind not in ("param", "digest"):
            continue
        if kind == "digest" and not identity:
            yield path, f"{{{name}.sha256}} cannot stand here", "it may stand in argv, env, converged_when and verify"
        param = entry.params.get(name)
        if param is None:
            known = ", ".join(entry.params) or "none"
            yield path, f"{{{name}}} is not a parameter", f"{near(name, list(entry.params))}parameters: {known}"
        elif kind == "digest" and param.type != "file":
            yield path, f"{{{name}.sha256}} needs a parameter of type file", None
        elif kind == "param" and param.type == "secret" and not secret:
            yield (
                path,
                f"the secret {{{name}}} cannot stand here",
                "a secret reaches a command by env or stdin alone: what stands in an argv is seen by every process",
            )
        elif kind == "param" and param.type == "file" and path != ("stdin",):
            yield path, f"the file {{{name}}} can only be standard input", f"write stdin: '{{{name}}}'"


def _argv_flaws(entry: Entry, path: Path, argv: Sequence[Template]) -> Iterator[Flaw]:
    for index, template in enumerate(argv):
        yield from _template_flaws(entry, (*path, index), template, secret=False, identity=True)
    if argv and not argv[0]:
        yield (*path, 0), "the program's name is empty", None
    if argv and any(kind != "text" for kind, _ in argv[0]):
        yield (*path, 0), "a parameter cannot name the program", "list the programs as entries of their own"
    code = _code_element(argv)
    if code is not None and code < len(argv) and any(kind != "text" for kind, _ in argv[code]):
        yield (
            (*path, code),
            "a placeholder stands inside a program text",
            "hand values over as arguments: [sh, -c, 'printf %s \"$1\"', sh, '{name}']",
        )


def _param_flaws(name: str, param: Param) -> Iterator[Flaw]:
    path: Path = ("params", name)
    if not PARAM_NAME.match(name) or name == "operation_id":
        yield path, f"not a parameter name: {name!r}", "a small letter, then small letters, digits and _"
    if param.pattern is not None:
        try:
            re.compile(param.pattern, re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            yield (*path, "pattern"), f"not a regular expression: {error}", None
            return
    if param.minimum is not None and param.maximum is not None and param.minimum > param.maximum:
        yield (*path, "minimum"), f"minimum {param.minimum} is more than maximum {param.maximum}", None
    if len(set(param.values)) != len(param.values):
        yield (*path, "values"), "a value stands twice", None
    if param.root is not None and not re.fullmatch(r"(/[^/\0]+)+/?", param.root):
        yield (*path, "root"), "root must be an absolute path", None
    for field in ("default", "example"):
        value = getattr(param, field)
        if value is not None:
            try:
                check_value(name, param, value)
            except errors.UsageError as error:
                yield (*path, field), f"{field}: {error.message}", error.hint


def _exit_flaws(entry: Entry) -> Iterator[Flaw]:
    meaning: dict[int, str] = {}
    for field in ("success_exit", "rate_limited_exit", "temporary_failure_exit"):
        for index, status in enumerate(getattr(entry, field)):
            if status in meaning:
                yield (field, index), f"exit status {status} already stands in {meaning[status]}", None
            meaning[status] = field


def find_flaws(entry: Entry) -> Iterator[Flaw]:
    """What is wrong with an entry: (path of fields, message, hint). One without flaws always renders."""
    if not ENTRY_NAME.match(entry.name):
        yield (), f"not a name of a command: {entry.name[:80]!r}", "small letters, digits, '-', '_' and '.', up to 64"
    for name, param in entry.params.items():
        yield from _param_flaws(name, param)
    yield from _argv_flaws(entry, ("argv",), entry.argv)
    yield from _argv_flaws(entry, ("converged_when",), entry.converged_when)
    if entry.verify is not None:
        yield from _argv_flaws(entry, ("verify", "argv"), entry.verify.argv)
    if entry.category == "convergent" and not entry.converged_when:
        yield (
            ("category",),
            "a convergent command needs converged_when",
            "a command whose exit status 0 says that the effect already stands; without one it is append_only",
        )
    if entry.category != "convergent" and entry.converged_when:
        yield (
            ("converged_when",),
            f"converged_when has no meaning for a command that is {entry.category}",
            "make it convergent, or use verify for what must hold afterwards",
        )
    yield from _template_flaws(entry, ("summary",), entry.summary, secret=False, identity=False)
    if entry.subject is not None:
        yield from _template_flaws(entry, ("subject",), entry.subject, secret=False, identity=False)
    if entry.cwd is not None:
        yield from _template_flaws(entry, ("cwd",), entry.cwd, secret=False, identity=False)
        kind, word = entry.cwd[0] if entry.cwd else ("text", "")
        absolute = word.startswith("/") if kind == "text" else entry.params.get(word, Param("path")).type == "path"
        if not absolute:
            yield ("cwd",), "cwd must be an absolute path", None
    for name, template in entry.env:
        yield from _template_flaws(entry, ("env", name), template, secret=True, identity=True)
        if not NAME_PATTERN.match(name) or name in RESERVED_NAMES:
            yield ("env", name), f"environment variable {name!r} cannot be set", None
        if {"id"} & {kind for kind, _ in template} and secret_names(entry) & set(names_in(template)):
            yield ("env", name), "{operation_id} cannot stand beside a secret", None
    if entry.stdin is not None:
        yield from _template_flaws(entry, ("stdin",), entry.stdin, secret=True, identity=False)
        files = [name for name in names_in(entry.stdin) if name in entry.params and entry.params[name].type == "file"]
        if files and len(entry.stdin) > 1:
            yield ("stdin",), f"the file {{{files[0]}}} must be the whole standard input", None
    if entry.become_user is not None and not USER_NAME.match(entry.become_user):
        yield ("become_user",), f"not a user name: {entry.become_user!r}", None
    yield from _exit_flaws(entry)
