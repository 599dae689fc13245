"""A catalogue entry as a value: its typed parameters, and how values become one command.

A value replaces a placeholder inside one element: it never adds an element, never meets a shell, and a secret never
reaches an element at all. Nothing here reads a file or an environment: secrets and files come in through functions.
"""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sshop import errors
from sshop.core.command import Command, Element, Piece, Secret, Stdin
from sshop.core.value import Value, said_of

# What a template is made of: ("text", literal), ("param", name), ("digest", name of a file parameter), ("id", "").
Template = tuple[tuple[str, str], ...]

NOTHING: Mapping[str, Any] = types.MappingProxyType({})

LENGTH_LIMIT = 4096


class Param(Value):
    """One typed parameter. `type` is one of string, integer, enum, boolean, path, secret, file.

    A value of type secret is a reference (`env:NAME`, `file:PATH`, `stdin`), one of type file a path on this machine.
    """

    type: str
    about: str = ""
    pattern: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    values: tuple[str, ...] = ()
    root: str | None = None
    max_length: int = LENGTH_LIMIT
    allow_dash: bool = False
    multiline: bool = False
    when_true: str = "true"
    when_false: str = "false"
    default: str | None = None
    example: str | None = None

    def describe(self) -> str:
        """What it takes, for people."""
        match self.type:
            case "string":
                words = f"text matching {self.pattern}"
            case "integer":
                low, high = ("" if bound is None else str(bound) for bound in (self.minimum, self.maximum))
                words = f"integer {low}..{high}" if low or high else "integer"
            case "enum":
                words = "one of " + " ".join(self.values)
            case "boolean":
                words = "true or false"
            case "path":
                words = f"absolute path under {self.root}" if self.root else "absolute path"
            case "secret":
                words = "secret, by reference: env:NAME, file:PATH or stdin"
            case _:
                words = "a file on this machine"
        return words if self.default is None else f"{words}, default {self.default!r}"


class Verify(Value):
    """The result contract: a command whose exit status tells whether the effect stands."""

    argv: tuple[Template, ...]
    exit: int = 0
    timeout_s: int | None = None


class Entry(Value):
    """One command of the catalogue. `place` is the file and line that defines it."""

    name: str
    category: str
    argv: tuple[Template, ...]
    summary: Template = ()
    kind: str = ""
    subject: Template | None = None
    effects: tuple[str, ...] = ()
    params: Mapping[str, Param] = NOTHING
    converged_when: tuple[Template, ...] = ()
    verify: Verify | None = None
    timeout_s: int | None = None
    cwd: Template | None = None
    env: tuple[tuple[str, Template], ...] = ()
    stdin: Template | None = None
    become_user: str | None = None
    approval: str = "none"
    budget: int | None = None
    max_output: int | None = None
    success_exit: tuple[int, ...] = (0,)
    rate_limited_exit: tuple[int, ...] = ()
    temporary_failure_exit: tuple[int, ...] = ()
    place: str = ""


class Description(Value):
    """What an operation means to do, for people and for the ledger."""

    kind: str
    subject_ref: str | None
    summary: str


def near(word: str, known: Sequence[str]) -> str:
    """`did you mean …? `, or nothing."""
    import difflib

    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}? " if close else ""


def _check_string(param: Param, value: str) -> str | None:
    if re.fullmatch(param.pattern or "", value, re.ASCII) is None:
        return f"must match {param.pattern}"
    return None


def _check_integer(param: Param, value: str) -> str | None:
    if not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value) or value == "-0":
        return "must be a decimal integer without leading zeros"
    number = int(value)
    if param.minimum is not None and number < param.minimum:
        return f"must be at least {param.minimum}"
    if param.maximum is not None and number > param.maximum:
        return f"must be at most {param.maximum}"
    return None


def _check_path(param: Param, value: str) -> str | None:
    if not value.startswith("/"):
        return "must be an absolute path"
    if value.startswith("//") or any(part in (".", "..") for part in value.split("/")):
        return "must not hold '.', '..' or a double slash at its start"
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        return "must not hold control characters"
    if param.root is not None and not value.startswith(param.root.rstrip("/") + "/"):
        return f"must be under {param.root}"
    if param.pattern is not None:
        return _check_string(param, value)
    return None


def check_value(name: str, param: Param, value: str) -> str:
    """The text that replaces the placeholder of this value (secret and file: the reference itself).

    Raises `UsageError` that says what the parameter takes.
    """
    fault: str | None = None
    if "\0" in value:
        fault = "holds a NUL byte, which no command can receive"
    elif param.type in ("secret", "file"):
        return value
    elif len(value) > param.max_length:
        fault = f"is {len(value):,} characters long, more than {param.max_length:,}"
    elif param.type == "enum":
        fault = None if value in param.values else "must be " + param.describe()
    elif param.type == "boolean":
        fault = None if value in ("true", "false") else "must be true or false"
    elif value.startswith("-") and not param.allow_dash:
        fault = "begins with '-', and could be read as an option"
    elif param.type == "string":
        fault = _check_string(param, value)
    elif param.type == "integer":
        fault = _check_integer(param, value)
    else:
        fault = _check_path(param, value)
    if fault is not None:
        shown = value if len(value) <= 80 else value[:77] + "…"
        raise errors.UsageError(f"parameter {name}: {shown!r} {fault}", hint=f"{name}: {param.describe()}")
    if param.type == "boolean":
        return param.when_true if value == "true" else param.when_false
    return value


def list_params(entry: Entry) -> str:
    """One line that names every parameter and what it takes."""
    listed = "; ".join(f"{name}: {param.describe()}" for name, param in entry.params.items())
    return f"parameters of {entry.name}: {listed}" if listed else f"{entry.name} takes no parameters"


def parse_values(entry: Entry, words: Sequence[str]) -> dict[str, str]:
    """`key=value` words as a mapping.

    Raises `UsageError` for a word without `=` and for a parameter that is given twice.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise errors.UsageError(f"not key=value: {word!r}", hint=list_params(entry))
        if name in values:
            raise errors.UsageError(f"parameter {name!r} is given twice", hint=list_params(entry))
        values[name] = value
    return values


def bind(entry: Entry, values: Mapping[str, str]) -> dict[str, str]:
    """Every parameter's checked text, defaults filled in, in the order of the entry.

    Raises `UsageError` for what is unknown, missing or not of its type, and lists what exists.
    """
    for name in values:
        if name not in entry.params:
            raise errors.UsageError(
                f"{entry.name} has no parameter {name!r}", hint=near(name, list(entry.params)) + list_params(entry)
            )
    bound: dict[str, str] = {}
    missing: list[str] = []
    for name, param in entry.params.items():
        value = values.get(name, param.default)
        if value is None:
            missing.append(name)
        else:
            bound[name] = check_value(name, param, value)
    if missing:
        raise errors.UsageError(f"{entry.name} needs {', '.join(missing)}", hint=list_params(entry))
    return bound


def _fill(template: Template, bound: Mapping[str, str], digests: Mapping[str, str]) -> Element:
    """Text runs are joined, so that one request has one fingerprint however its template is cut."""
    pieces: list[Piece] = []
    literal = b""
    for kind, value in template:
        if kind == "id":
            if literal:
                pieces.append(Piece("text", literal))
            literal = b""
            pieces.append(Piece("id"))
        elif kind == "text":
            literal += value.encode()
        else:
            literal += (digests if kind == "digest" else bound)[value].encode("utf-8", "surrogateescape")
    if literal or not pieces:
        pieces.append(Piece("text", literal))
    return tuple(pieces)


def _plain(template: Template, bound: Mapping[str, str]) -> str:
    return "".join(value if kind == "text" else bound[value] for kind, value in template)


def describe(entry: Entry, values: Mapping[str, str]) -> Description:
    """Kind, subject and summary with the values in them.

    Raises `UsageError` as `bind` does.
    """
    bound = bind(entry, values)
    subject = None if entry.subject is None else _plain(entry.subject, bound)
    return Description(entry.kind or entry.name, subject, _plain(entry.summary, bound))


def names_in(template: Template) -> Iterator[str]:
    """The parameters whose values a template holds (not their digests)."""
    return (value for kind, value in template if kind == "param")


def secret_names(entry: Entry) -> frozenset[str]:
    """The parameters of type secret."""
    return frozenset(name for name, param in entry.params.items() if param.type == "secret")


def _no_secret(reference: str) -> bytes:
    raise errors.InputUnavailable(f"the secret {reference} is not at hand")


def _no_file(path: str) -> Stdin:
    raise errors.InputUnavailable(f"the file {path} is not at hand")


def render(
    entry: Entry,
    values: Mapping[str, str],
    read_secret: Callable[[str], bytes] = _no_secret,
    read_file: Callable[[str], Stdin] = _no_file,
) -> Command:
    """The command of these values.

    `read_secret` gets a secret's reference, `read_file` the path of a file parameter; each is called once for each
    parameter. Raises `UsageError`, and what the two functions raise.
    """
    bound = bind(entry, values)
    secrets = {name: read_secret(bound[name]) for name in entry.params if name in secret_names(entry)}
    for name, secret in secrets.items():
        if (b"\n" in secret or b"\r" in secret) and not entry.params[name].multiline:
            raise errors.UsageError(
                f"the secret {name} has more than one line", hint="its parameter says multiline: false"
            )
    files = {name: read_file(bound[name]) for name, param in entry.params.items() if param.type == "file"}
    digests = {name: stdin.sha256 or "" for name, stdin in files.items()}

    def filled(template: Template) -> Element:
        return _fill(template, bound, digests)

    def with_secrets(template: Template) -> Secret:
        parts = (
            value.encode()
            if kind == "text"
            else secrets[value]
            if value in secrets
            else digests[value].encode()
            if kind == "digest"
            else bound[value].encode("utf-8", "surrogateescape")
            for kind, value in template
        )
        return Secret(b"".join(parts))

    def hides(template: Template) -> bool:
        return any(name in secrets for name in names_in(template))

    stdin: Stdin | None = None
    if entry.stdin is not None:
        alone = next(names_in(entry.stdin), None)
        if alone in files:
            stdin = files[alone]
        else:
            data = with_secrets(entry.stdin)
            digest = None if hides(entry.stdin) else hashlib.sha256(data.value).hexdigest()
            stdin = Stdin(len(data.value), digest, data)
    cwd = None if entry.cwd is None else _plain(entry.cwd, bound).encode("utf-8", "surrogateescape")
    return Command(
        argv=tuple(map(filled, entry.argv)),
        cwd=cwd,
        env=tuple((name, filled(template)) for name, template in entry.env if not hides(template)),
        secrets=tuple((name, with_secrets(template)) for name, template in entry.env if hides(template)),
        become_user=entry.become_user,
        stdin=stdin,
        condition=tuple(map(filled, entry.converged_when)),
    )


def render_verify(
    entry: Entry, values: Mapping[str, str], read_file: Callable[[str], Stdin] = _no_file
) -> Command | None:
    """The command of `verify`, to be run as a probe: no secrets and no standard input; None where none is declared."""
    if entry.verify is None:
        return None
    bound = bind(entry, values)
    digests = {name: read_file(bound[name]).sha256 or "" for name, p in entry.params.items() if p.type == "file"}
    hidden = secret_names(entry)
    return Command(
        argv=tuple(_fill(template, bound, digests) for template in entry.verify.argv),
        cwd=None if entry.cwd is None else _plain(entry.cwd, bound).encode("utf-8", "surrogateescape"),
        env=tuple(
            (name, _fill(template, bound, digests))
            for name, template in entry.env
            if not hidden.intersection(names_in(template))
        ),
        become_user=entry.become_user,
    )


def frozen(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def to_json(entry: Entry) -> dict[str, Any]:
    """A JSON value from which `from_json` makes the same entry again."""
    value = said_of(entry)
    if entry.params:
        value["params"] = {name: said_of(param) for name, param in entry.params.items()}
    if entry.verify is not None:
        value["verify"] = said_of(entry.verify)
    return value


def from_json(value: dict[str, Any]) -> Entry:
    """The entry of `to_json`; it is not checked again."""
    fields = {name: frozen(content) for name, content in value.items()}
    if "params" in value:
        fields["params"] = {
            name: Param(**{field: frozen(content) for field, content in param.items()})
            for name, param in value["params"].items()
        }
    if "verify" in value:
        fields["verify"] = Verify(**{field: frozen(content) for field, content in value["verify"].items()})
    return Entry(**fields)
