"""A command as a value: argv, environment, folder, standard input; its frames, its fingerprint, its redacted form.

Secrets enter a `Secret` at birth and leave it only towards the wire; neither ledger nor renderer ever sees them. Frames
are those of docs/PROTOCOL.md section 3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import shlex
from typing import Any

from sshop import errors
from sshop.core.value import Value

NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
ELEMENT_LIMIT = 131_000
FRAMES_LIMIT = 1_000_000
STDIN_LIMIT = 1 << 30
KEPT_STDIN = 65_536
# Names that a shell on the way would not hand on as they are, or that would change how the guard starts a command.
RESERVED_NAMES = frozenset(
    [
        "IFS",
        "PPID",
        "UID",
        "EUID",
        "GROUPS",
        "BASHOPTS",
        "SHELLOPTS",
        "BASH_ENV",
        "ENV",
        "OPERATION_ID",
        "OPTIND",
        "OPTARG",
        "RANDOM",
        "SECONDS",
        "LINENO",
        "_",
    ]
)


class Secret(Value):
    """A value that must not be shown: its `repr` and `str` say only that it is there."""

    value: bytes

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__


class Piece(Value):
    """A part of one argv element: plain text, the operation ID, or a hidden value that only its name stands for."""

    kind: str  # text | id | hidden
    text: bytes = b""
    name: str = ""
    value: Secret | None = None


Element = tuple[Piece, ...]


def text(value: str | bytes) -> Element:
    """An element of plain text."""
    return (Piece("text", value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")),)


class Stdin(Value):
    """Standard input: its length in bytes, and its SHA-256, or None where it was made from a secret."""

    length: int
    sha256: str | None
    data: Secret | None = None
    path: str | None = None


class Command(Value):
    """What is to run. Raises `UsageError` where something cannot be sent."""

    argv: tuple[Element, ...]
    cwd: bytes | None = None
    env: tuple[tuple[str, Element], ...] = ()
    secrets: tuple[tuple[str, Secret | None], ...] = ()
    become_user: str | None = None
    stdin: Stdin | None = None
    condition: tuple[Element, ...] = ()

    def __post_init__(self) -> None:
        if not self.argv:
            raise errors.UsageError("the command is empty")
        object.__setattr__(self, "env", tuple(sorted(self.env)))
        object.__setattr__(self, "secrets", tuple(sorted(self.secrets, key=lambda item: item[0])))
        for place, element in self.elements():
            size = len(place.removeprefix("variable")) if place.startswith("variable ") else 0  # with `NAME=`
            for piece in element:
                body = piece.value.value if piece.value else piece.text
                size += len(body)
                if b"\0" in body:
                    raise errors.UsageError(f"{place} holds a NUL byte", hint="no command can receive one")
            if size > ELEMENT_LIMIT:
                raise errors.UsageError(
                    f"{place} is {size:,} bytes long, more than the {ELEMENT_LIMIT:,} that a command can receive",
                    hint="pass it on standard input (--stdin FILE)",
                )
        names = [name for name, _ in self.env] + [name for name, _ in self.secrets]
        for name in names:
            if not NAME_PATTERN.match(name) or name in RESERVED_NAMES:
                raise errors.UsageError(f"environment variable {name!r} cannot be set")
            if names.count(name) > 1:
                raise errors.UsageError(f"environment variable {name!r} is set twice")
        for _, secret in self.secrets:
            if secret is not None and (b"\0" in secret.value or len(secret.value) > ELEMENT_LIMIT):
                raise errors.UsageError("a secret holds a NUL byte or is too long")
        if self.stdin is not None and self.stdin.length > STDIN_LIMIT:
            raise errors.UsageError(f"standard input is longer than {STDIN_LIMIT:,} bytes")
        if self.become_user is not None and not re.match(r"[a-z_][a-z0-9_.-]{0,31}\Z", self.become_user):
            raise errors.UsageError(f"not a user name: {self.become_user!r}")
        if len(plain_frames(self)) > FRAMES_LIMIT:
            raise errors.UsageError(f"the command is longer than {FRAMES_LIMIT:,} bytes in all")

    def elements(self) -> list[tuple[str, Element]]:
        """All elements with what they are called in messages."""
        places = [(f"argument {index}", element) for index, element in enumerate(self.argv)]
        places += [(f"variable {name}", element) for name, element in self.env]
        places += [(f"condition argument {index}", element) for index, element in enumerate(self.condition)]
        if self.cwd is not None:
            places.append(("the working folder", text(self.cwd)))
        return places

    @property
    def complete(self) -> bool:
        """Whether all secret and hidden values are at hand, so that it can be sent."""
        return all(secret is not None for _, secret in self.secrets) and all(
            piece.kind != "hidden" or piece.value is not None for _, element in self.elements() for piece in element
        )


def _text_lines(first: bytes, body: bytes) -> list[bytes]:
    head, *more = body.split(b"\n")
    return [first + head, *(b"+" + line for line in more)]


def _element_lines(letter: bytes, element: Element, start: bytes = b"", *, values: bool) -> list[bytes]:
    lines: list[bytes] = []
    begun = False
    for piece in element:
        if not begun:
            if piece.kind == "text":
                lines += _text_lines(letter + b" " + start, piece.text)
            else:
                lines.append(letter + b" " + start)
            begun = True
            if piece.kind == "text":
                continue
        match piece.kind:
            case "text":
                lines += _text_lines(b"l ", piece.text)
            case "id":
                lines.append(b"i")
            case _:
                lines.append(b"h " + piece.name.encode())
                if values and piece.value is not None:
                    lines += [b"." + line for line in piece.value.value.split(b"\n")]
    if not begun:
        lines.append(letter + b" " + start)
    return lines


def _frame_lines(command: Command, *, values: bool) -> list[bytes]:
    lines: list[bytes] = []
    for element in command.argv:
        lines += _element_lines(b"a", element, values=values)
    if command.cwd is not None:
        lines += _text_lines(b"d ", command.cwd)
    for name, element in command.env:
        lines += _element_lines(b"e", element, name.encode() + b"=", values=values)
    lines += [b"s " + name.encode() for name, _ in command.secrets]
    if command.become_user is not None:
        lines.append(b"u " + command.become_user.encode())
    if command.stdin is not None:
        lines.append(b"z %d %s" % (command.stdin.length, (command.stdin.sha256 or "secret").encode()))
    return lines


def plain_frames(command: Command) -> bytes:
    """The plain frames in wire form (docs/PROTOCOL.md section 3): what the fingerprint is made of."""
    return b"".join(line + b"\n" for line in _frame_lines(command, values=False))


def wire_frames(command: Command) -> bytes:
    """The plain frames with their hidden values, and the condition: what the head of a request carries."""
    lines = _frame_lines(command, values=True)
    for element in command.condition:
        lines += _element_lines(b"c", element, values=True)
    return b"".join(line + b"\n" for line in lines)


def secret_frames(command: Command) -> bytes:
    """The `x` lines of the rest of a request."""
    lines: list[bytes] = []
    for name, secret in command.secrets:
        assert secret is not None
        lines.append(b"x " + name.encode())
        lines += [b"." + line for line in secret.value.split(b"\n")]
    return b"".join(line + b"\n" for line in lines)


def fingerprint(command: Command) -> str:
    """SHA-256 of the plain frames, in hexadecimal."""
    return hashlib.sha256(plain_frames(command)).hexdigest()


def has_secret_part(command: Command) -> bool:
    hidden = any(piece.kind == "hidden" for _, element in command.elements() for piece in element)
    return bool(command.secrets) or hidden or (command.stdin is not None and command.stdin.sha256 is None)


def secret_fingerprint(command: Command, key: bytes) -> str | None:
    """HMAC-SHA-256 over all secret values under a key of the ledger; None where there are none."""
    if not has_secret_part(command):
        return None
    digest = hmac.new(key, digestmod=hashlib.sha256)

    def add(name: bytes, value: bytes) -> None:
        digest.update(b"%d:%s%d:%s" % (len(name), name, len(value), value))

    for name, secret in command.secrets:
        add(name.encode(), secret.value if secret else b"")
    for place, element in command.elements():
        for piece in element:
            if piece.kind == "hidden" and piece.value is not None:
                add(f"{place} {piece.name}".encode(), piece.value.value)
    if command.stdin is not None and command.stdin.sha256 is None and command.stdin.data is not None:
        add(b"stdin", command.stdin.data.value)
    return digest.hexdigest()


def _piece_display(piece: Piece) -> str:
    match piece.kind:
        case "text":
            return piece.text.decode("utf-8", "backslashreplace")
        case "id":
            return "{operation_id}"
        case _:
            return f"<{piece.name}>"


def display(command: Command) -> str:
    """One line for people, free of secrets: variables, then quoted words."""
    words = [f"{name}={shlex.quote(''.join(map(_piece_display, element)))}" for name, element in command.env]
    words += [f"{name}=<secret>" for name, _ in command.secrets]
    words += [shlex.quote("".join(map(_piece_display, element))) for element in command.argv]
    return " ".join(words)


def _bytes_to_json(value: bytes) -> Any:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes_from_json(value: Any) -> bytes:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value.encode("utf-8")


def _element_to_json(element: Element) -> list[Any]:
    return [{piece.kind: _bytes_to_json(piece.text) if piece.kind == "text" else piece.name} for piece in element]


def _element_from_json(value: list[Any]) -> Element:
    pieces = []
    for item in value:
        ((kind, content),) = item.items()
        pieces.append(Piece("text", _bytes_from_json(content)) if kind == "text" else Piece(kind, name=content))
    return tuple(pieces)


def to_json(command: Command) -> dict[str, Any]:
    """A JSON value without any secret, from which `from_json` makes the command again but for secret values."""
    stdin = command.stdin
    return {
        "argv": [_element_to_json(element) for element in command.argv],
        "cwd": None if command.cwd is None else _bytes_to_json(command.cwd),
        "env": {name: _element_to_json(element) for name, element in command.env},
        "secrets": [name for name, _ in command.secrets],
        "become_user": command.become_user,
        "stdin": None if stdin is None else _stdin_to_json(stdin),
        "condition": [_element_to_json(element) for element in command.condition],
    }


def _stdin_to_json(stdin: Stdin) -> dict[str, Any]:
    """A short text of the catalogue's own is kept, so that the operation can be continued from the ledger alone."""
    kept = stdin.data is not None and stdin.sha256 is not None and stdin.path is None and stdin.length <= KEPT_STDIN
    return {
        "length": stdin.length,
        "sha256": stdin.sha256,
        "path": stdin.path,
        "text": _bytes_to_json(stdin.data.value) if kept and stdin.data is not None else None,
    }


def _stdin_from_json(value: dict[str, Any]) -> Stdin:
    text_ = value["text"]
    data = None if text_ is None else Secret(_bytes_from_json(text_))
    return Stdin(value["length"], value["sha256"], data, value["path"])


def from_json(value: dict[str, Any]) -> Command:
    """The command of `to_json`; secret values are absent, so that `complete` tells whether it can be sent."""
    stdin = value["stdin"]
    return Command(
        argv=tuple(_element_from_json(element) for element in value["argv"]),
        cwd=None if value["cwd"] is None else _bytes_from_json(value["cwd"]),
        env=tuple((name, _element_from_json(element)) for name, element in value["env"].items()),
        secrets=tuple((name, None) for name in value["secrets"]),
        become_user=value["become_user"],
        stdin=None if stdin is None else _stdin_from_json(stdin),
        condition=tuple(_element_from_json(element) for element in value["condition"]),
    )
