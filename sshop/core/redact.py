"""What looks like a secret in a raw command is hidden at birth: the command gets it, nothing that is kept does.

A raw command should not carry a secret at all (a catalogue entry takes one by reference); this is the net under those
who do it all the same. It finds `--password=…`, `--token …`, `NAME_TOKEN=…`, `-p…` of the database clients, the
password in `user:password@host`, and authorization headers, in words and inside shell text. A hidden part enters the
fingerprint by its name in the plain part, and by its value in the secret part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sshop.core.command import ELEMENT_LIMIT, Element, Piece, Secret

_WORDS = [
    "password",
    "passwd",
    "passphrase",
    "pass",
    "pwd",
    "token",
    "secret",
    "api[-_]?key",
    "apikey",
    "access[-_]?key",
    "private[-_]?key",
    "secret[-_]?key",
    "auth[-_]?key",
    "credential",
    "credentials",
    "bearer",
]
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"';&|<>()`]+)+"""
_STICKY_P = frozenset(["mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "mariadb-admin", "sshpass"])


def _patterns(extra: Iterable[str]) -> tuple[re.Pattern[str], re.Pattern[str], list[re.Pattern[str]]]:
    words = "|".join([*_WORDS, *map(re.escape, extra)])
    # every repetition has an end: an argument of 128 KiB must not be searched anew from each of its characters
    name = rf"(?:[A-Za-z0-9]{{1,128}}[-_.]){{0,12}}(?:{words})(?:[-_.][A-Za-z0-9]{{1,128}}){{0,12}}"
    programs = "|".join(map(re.escape, sorted(_STICKY_P)))
    option = re.compile(rf"--?{name}\Z", re.IGNORECASE)
    whole = re.compile(rf"(?:--?)?(?P<name>{name})[=:](?P<value>.+)\Z", re.IGNORECASE | re.DOTALL)
    inside = [
        re.compile(rf"(?<![A-Za-z0-9])(?:--?)?(?P<name>{name})=(?P<value>{_VALUE})", re.IGNORECASE),
        re.compile(rf"(?<![A-Za-z0-9])--?(?P<name>{name})\s+(?P<value>(?!-){_VALUE})", re.IGNORECASE),
        re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]{0,256}:(?P<value>[^\s/@]{1,8192})@"),
        re.compile(r"(?<![\w/])[\w.-]{1,256}:(?P<value>[^\s/@:]{1,8192})@[\w.-]"),
        re.compile(r"authorization:\s*(?:(?:basic|bearer|token)\s+)?(?P<value>[^\s'\"]+)", re.IGNORECASE),
        re.compile(rf"\b(?:{programs})\b[^;&|\n]{{0,2048}}?\s-p(?P<value>[^\s'\";&|]+)"),
    ]
    return option, whole, inside


def _cut(word: str, spans: list[tuple[int, int, str]], used: dict[str, int]) -> Element:
    pieces: list[Piece] = []
    position = 0
    for start, end, name in spans:
        if start > position:
            pieces.append(Piece("text", word[position:start].encode("utf-8", "surrogateescape")))
        count = used[name] = used.get(name, 0) + 1
        value = Secret(word[start:end].encode("utf-8", "surrogateescape"))
        pieces.append(Piece("hidden", name=name if count == 1 else f"{name}_{count}", value=value))
        position = end
    if position < len(word) or not pieces:
        pieces.append(Piece("text", word[position:].encode("utf-8", "surrogateescape")))
    return tuple(pieces)


def _name(raw: str | None) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9]+", "_", raw or "password").strip("_").lower()[:40]
    return cleaned if cleaned and not cleaned[0].isdigit() else "secret_" + cleaned


def _spans(word: str, inside: list[re.Pattern[str]]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for pattern in inside:
        for match in pattern.finditer(word):
            start, end = match.span("value")
            if not any(start < other_end and other_start < end for other_start, other_end, _ in found):
                found.append((start, end, _name(match.groupdict().get("name"))))
    return sorted(found)


def hide(words: Sequence[str], extra: Iterable[str] = ()) -> tuple[Element, ...]:
    """The elements of a raw argv, with what looks like a secret in hidden pieces. `extra` are further names."""
    option, whole, inside = _patterns(extra)
    used: dict[str, int] = {}
    elements: list[Element] = []
    sticky = bool(words) and words[0].rsplit("/", 1)[-1] in _STICKY_P
    awaited: str | None = None
    for word in words:
        if len(word) > ELEMENT_LIMIT:  # it will be refused for that
            elements.append((Piece("text", word.encode("utf-8", "surrogateescape")),))
            continue
        match = whole.match(word)
        if awaited is not None and not word.startswith("-"):
            spans = [(0, len(word), awaited)] if word else []
        elif match is not None:
            spans = [(match.start("value"), len(word), _name(match.group("name")))]
        elif sticky and word.startswith("-p") and len(word) > len("-p"):
            spans = [(2, len(word), "password")]
        else:
            spans = _spans(word, inside)
        awaited = _name(word) if option.match(word) else None
        elements.append(_cut(word, spans, used))
    return tuple(elements)
