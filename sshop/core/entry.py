"""A catalogue entry as a value, and how values of its parameters become one command.

A value replaces a placeholder inside one element: it never adds an element, never meets a shell, and a secret never
reaches an element at all. Nothing here reads a file or an environment: secrets and files come in through functions.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sshop import errors
from sshop.core.command import Command, Element, Piece, Secret, Stdin
from sshop.core.param import Param, check_value
from sshop.core.value import Value, said_of

# What a template is made of: ("text", literal), ("param", name), ("digest", name of a file parameter), ("id", "").
Template = tuple[tuple[str, str], ...]

NOTHING: Mapping[str, Any] = types.MappingProxyType({})


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


class Rendered(Value):
    """What an entry becomes: the command, and what `verify` runs as a probe (None where none is declared), which has no
    secrets and no standard input.
    """

    command: Command
    verify: Command | None


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
) -> Rendered:
    """Command and verify of these values.

    `read_secret` gets a secret's reference, `read_file` the path of a file parameter; each is called once for each
    parameter, so that both speak of the same bytes. Raises `UsageError`, and what the two functions raise.
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
    env = tuple((name, filled(template)) for name, template in entry.env if not hides(template))
    command = Command(
        argv=tuple(map(filled, entry.argv)),
        cwd=cwd,
        env=env,
        secrets=tuple((name, with_secrets(template)) for name, template in entry.env if hides(template)),
        become_user=entry.become_user,
        stdin=stdin,
        condition=tuple(map(filled, entry.converged_when)),
    )
    verify: Command | None = None
    if entry.verify is not None:
        verify = Command(argv=tuple(map(filled, entry.verify.argv)), cwd=cwd, env=env, become_user=entry.become_user)
    return Rendered(command, verify)


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
