"""Texts with placeholders, taken apart once when a policy is compiled; a run only fills what stands in their place."""

from __future__ import annotations

import re

from sshop import errors
from sshop.core.entry import Template

ENTRY_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
PARAM_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\Z")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def parse_template(source: str) -> Template:
    """The parts of a text with placeholders; `{{` and `}}` stand for braces.

    Raises `UsageError`.
    """
    parts: list[tuple[str, str]] = []
    literal = ""
    position = 0
    for match in _PLACEHOLDER.finditer(source):
        literal += source[position : match.start()]
        position = match.end()
        word = match.group(0)
        if word in ("{{", "}}"):
            literal += word[0]
            continue
        name = match.group(1)
        if name is None:
            raise errors.UsageError(f"a single {word!r}", hint="write {{ and }} for braces, {name} for a parameter")
        if literal:
            parts.append(("text", literal))
            literal = ""
        base, dot, attribute = name.partition(".")
        if name == "operation_id":
            parts.append(("id", ""))
        elif PARAM_NAME.match(base) and attribute == "sha256":
            parts.append(("digest", base))
        elif PARAM_NAME.match(base) and not dot:
            parts.append(("param", base))
        else:
            raise errors.UsageError(
                f"not a placeholder: {word!r}", hint="write {{ and }} for braces, {name} for a parameter"
            )
    literal += source[position:]
    if literal:
        parts.append(("text", literal))
    return tuple(parts)


def show_template(template: Template) -> str:
    """The text that `parse_template` makes this template of."""
    words = {"param": "{%s}", "digest": "{%s.sha256}"}
    return "".join(
        value.replace("{", "{{").replace("}", "}}")
        if kind == "text"
        else "{operation_id}"
        if kind == "id"
        else words[kind] % value
        for kind, value in template
    )
