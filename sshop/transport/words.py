"""The words of OpenSSH's files: a host argument, a configuration line, a pattern list."""

from __future__ import annotations

import re
from fnmatch import translate

from sshop.core.value import Value
from sshop.errors import UsageError

# ssh(1) refuses the same: these words may reach a ProxyCommand or `Match exec`, and so a shell
BAD_IN_HOST = re.compile(r"[\s'\"`$\\;&<>|(){},/\x00-\x20\x7f]")
_BAD_IN_USER = re.compile(r"[\s'\"`;&<>|(){}]|\\\Z|[\x00-\x1f\x7f]")
LONGEST_NAME = 255  # of a host in the DNS, and more than any account's


class HostWord(Value):
    """A host argument taken apart; what was not said is None."""

    name: str
    user: str | None = None
    port: int | None = None


def parse_host(text: str) -> HostWord:
    """`alias`, `[user@]host[:port]`, an IPv6 address alone or in brackets.

    Raises `UsageError`.
    """
    user, at, rest = text.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", rest)
    if bracketed:
        name, port = bracketed[1], bracketed[2]
    elif rest.count(":") == 1:
        name, port = rest.split(":")
    else:
        name, port = rest, None
    if not name or len(name) > LONGEST_NAME or name.startswith("-") or BAD_IN_HOST.search(name):
        raise UsageError(f"not a host: {text[:200]!r}", hint="an alias, or [user@]host[:port]")
    if at and (not user or len(user) > LONGEST_NAME or user.startswith("-") or _BAD_IN_USER.search(user)):
        raise UsageError(f"not a user name: {text[:200]!r}")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"not a port: {text[:200]!r}", hint="a number from 1 to 65535")
    return HostWord(name, user or None, int(port) if port else None)


def split_words(line: str) -> list[str]:
    """The words of a configuration line: quotes, backslashes, and a comment at the end."""
    words: list[str] = []
    at = 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
            continue
        if line[at] == "#":
            break
        word = ""
        quote = ""
        while at < len(line) and (quote or line[at] not in " \t"):
            character = line[at]
            if character == "\\" and line[at + 1 : at + 2] in ("'", '"', "\\", "" if quote else " "):
                at += 1
                word += line[at : at + 1]
            elif character == quote:
                quote = ""
            elif not quote and character in "'\"":
                quote = character
            else:
                word += character
            at += 1
        if quote:
            raise ValueError("a quote is not closed")
        words.append(word)
    return words


def matches(patterns: str, text: str, *, fold: bool = False) -> bool:
    """Whether a comma-separated pattern list takes `text`: one pattern matches, and none with `!` before it."""
    found = False
    for each in patterns.split(","):
        negated = each.startswith("!")
        pattern = each[1:] if negated else each
        if fold:
            pattern, text = pattern.lower(), text.lower()
        if _pattern(pattern).match(text):
            if negated:
                return False
            found = True
    return found


def _pattern(pattern: str) -> re.Pattern[str]:
    # only * and ? are special here: brackets stand for themselves
    return re.compile(translate(pattern.replace("[", "[[]")))
