"""One typed parameter of a catalogue entry, and which values it takes."""

from __future__ import annotations

import re

from sshop import errors
from sshop.core.value import Value

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
    if value != "/" and any(part in ("", ".", "..") for part in value[1:].split("/")):
        return "must not hold '.', '..' or a double slash, or end in a slash: one thing has one name"
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
