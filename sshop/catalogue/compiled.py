"""The compiled policy: a file of the user's cache folder that a run reads without pydantic or yaml.

It is keyed by the digest of all policy files, by the version of sshop and by the state of the modules that compile, so
that a stale one is never found. It is JSON, so that reading one runs nothing. Entries are decoded when they are asked
for: line 1 is the header, line 2 the rules, then one line for each entry. A file that is not whole, not ours or
writable by others counts as missing; one that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sshop
from sshop.core import entry as entries
from sshop.core.entry import Entry
from sshop.core.policy import Host, Policy
from sshop.core.value import fields_of, said_of

FORMAT = 1
KEEP = 16
_COMPILERS = ("build.py", "schema.py", "document.py", "compiled.py")
_JUDGES = ("entry.py", "flaws.py", "rules.py", "policy.py")
_LAZY = ("entries", "rules", "hosts", "digest", "commit", "folder")


class LazyEntries(Mapping[str, Entry]):
    """Entries by name, each decoded the first time it is asked for."""

    def __init__(self, content: bytes, start: int, index: dict[str, list[int]]) -> None:
        self._content = content
        self._start = start
        self._index = index
        self._made: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        made = self._made.get(name)
        if made is None:
            offset, length = self._index[name]
            start = self._start + offset
            made = self._made[name] = entries.from_json(json.loads(self._content[start : start + length]))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


class LazyRules(Sequence[Any]):
    """Rules in their order, decoded when the first raw command is sorted."""

    def __init__(self, content: bytes, start: int, end: int) -> None:
        self._content, self._start, self._end = content, start, end
        self._made: tuple[Any, ...] | None = None

    def _all(self) -> tuple[Any, ...]:
        if self._made is None:
            from sshop.core.rules import Rule

            self._made = tuple(
                Rule(**{field: entries.frozen(content) for field, content in rule.items()})
                for rule in json.loads(self._content[self._start : self._end])
            )
        return self._made

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())


def key(digest: str) -> str:
    """What a compiled policy of these files is called, for the sshop that is running."""
    here = Path(__file__).parent
    core = here.parent / "core"
    states = []
    for path in [here / name for name in _COMPILERS] + [core / name for name in _JUDGES]:
        with contextlib.suppress(OSError):
            found = path.stat()
            states.append(f"{found.st_size:x}.{found.st_mtime_ns:x}")

    made = hashlib.sha256("\n".join([str(FORMAT), sshop.__version__, digest, *states]).encode())
    return made.hexdigest()[:40]


def encode(policy: Policy) -> bytes:
    """The bytes of a compiled policy."""
    lines: list[bytes] = []
    index: dict[str, list[int]] = {}
    position = 0
    for name, made in policy.entries.items():
        line = _json(entries.to_json(made))
        index[name] = [position, len(line)]
        position += len(line) + 1
        lines.append(line)
    rules = _json([said_of(rule) for rule in policy.rules])
    fields = {name: content for name, content in said_of(policy).items() if name not in _LAZY}
    header = _json(
        {
            "format": FORMAT,
            "digest": policy.digest,
            "bytes": position,
            "fields": fields,
            "hosts": [list(fields_of(host).values()) for host in policy.hosts.values()],
            "index": index,
        }
    )
    return b"\n".join([header, rules, *lines, b""])


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode(content: bytes, digest: str) -> Policy | None:
    """The policy of `encode`, without commit and folder; None where the bytes are not whole or of another policy."""
    first = content.find(b"\n")
    second = content.find(b"\n", first + 1)
    if first < 0 or second < 0:
        return None
    try:
        header = json.loads(content[:first])
        if header["format"] != FORMAT or header["digest"] != digest or header["bytes"] != len(content) - second - 1:
            return None
        fields = {name: entries.frozen(value) for name, value in header["fields"].items()}
        hosts = {row[0]: Host(*(entries.frozen(cell) for cell in row)) for row in header["hosts"]}
        return Policy(
            entries=LazyEntries(content, second + 1, header["index"]),
            rules=LazyRules(content, first + 1, second),
            hosts=hosts,
            digest=digest,
            **fields,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def load(cache: str, digest: str) -> Policy | None:
    """The compiled policy of this digest, where the cache folder has a whole one that only we could write."""
    try:
        descriptor = os.open(Path(cache, f"policy-{key(digest)}.json"), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        content = os.read(descriptor, found.st_size)  # one that is cut short is not whole, and passed over
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return decode(content, digest)


def store(cache: str, policy: Policy) -> bool:
    """Write the compiled policy aside and rename it; whether that worked."""
    folder = Path(cache)
    aside = folder / f"policy-{key(policy.digest)}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode(policy))
        aside.replace(aside.with_suffix(".json"))
        _forget_old(folder)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        return False
    return True


def _forget_old(folder: Path) -> None:
    ours = sorted(folder.glob("policy-*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in ours[KEEP:]:
        with contextlib.suppress(OSError):
            path.unlink()
