"""The shells that a host may have as /bin/sh, and how to start each as one."""

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.tools import find_tool, require_tool


@dataclass(frozen=True, slots=True)
class Shell:
    """`argv` is what comes before a script's path; `called` is the name that its program must be called by."""

    name: str
    program: str
    options: tuple[str, ...] = ()
    called: str | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """How to start it; skips the calling test, or fails it, where it is not installed."""
        path = require_tool(self.program)
        return (str(_linked(path, self.called)) if self.called else path, *self.options)

    @property
    def installed(self) -> bool:
        return find_tool(self.program) is not None

    def bin_folder(self, folder: Path) -> Path:
        """A folder with this shell in it as `sh`, to be put first in PATH."""
        folder.mkdir(parents=True, exist_ok=True)
        first, *rest = self.argv
        script = folder / "sh"
        words = " ".join(rest)
        script.write_text(f'#!/bin/sh\nexec {first} {words} "$@"\n')
        script.chmod(0o755)
        return folder

    def __str__(self) -> str:
        return self.name


SHELLS = (
    Shell("dash", "dash"),
    Shell("bash", "bash"),
    Shell("bash-posix", "bash", ("--posix",)),
    Shell("busybox", "busybox", ("ash",)),
    Shell("mksh", "mksh"),
    # zsh and yash read the name they are called by: as `sh` they are POSIX shells, zsh also in word splitting
    Shell("zsh-as-sh", "zsh", called="sh"),
    Shell("yash-as-sh", "yash", called="sh"),
)


@functools.cache
def _linked(path: str, name: str) -> Path:
    """A lasting link of that name to a program, one for each of them and user."""
    folder = Path(tempfile.gettempdir(), f"sshop-shells-{os.getuid()}", Path(path).name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        msg = f"{folder} belongs to somebody else"
        raise PermissionError(msg)
    link = folder / name
    if not link.is_symlink():
        try:
            link.symlink_to(path)
        except FileExistsError:  # another worker was first
            pass
    return link
