"""Which git commit is checked out where the policies stand, read by hand: no child process is started for it."""

from __future__ import annotations

import re
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
_MARK = "gitdir:"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _git_folder(folder: Path) -> Path | None:
    """The git folder of the work tree that holds `folder`; a file `.git` names it (worktrees, submodules)."""
    here = folder.resolve()
    for parent in (here, *here.parents):
        found = parent / ".git"
        if found.is_dir():
            return found
        words = _read(found)
        if words.startswith(_MARK):
            return parent / words[len(_MARK) :].strip()
    return None


def _packed(common: Path, name: str) -> str:
    for line in _read(common / "packed-refs").splitlines():
        value, _, ref = line.partition(" ")
        if ref == name:
            return value
    return ""


def find_commit(folder: str) -> str | None:
    """The commit that HEAD names; None outside git, before the first commit, and where refs are kept as a reftable."""
    git = _git_folder(Path(folder))
    if git is None:
        return None
    common = git / _read(git / "commondir")
    value = _read(git / "HEAD")
    for _ in range(5):
        if _HASH.match(value):
            return value
        if not value.startswith("ref:"):
            return None
        name = value[len("ref:") :].strip()
        if not name.startswith("refs/") or ".." in name.split("/"):
            return None
        value = _read(git / name) or _read(common / name) or _packed(common, name)
    return None
