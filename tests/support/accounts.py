"""The accounts of a test's sshd: one for each login shell, with a home in the server's own folder.

As root they are real users with uids of their own, in a private mount namespace with its own /etc/passwd. Without root
they are names for the same uid, in a user namespace, so that login shells still differ. Where the kernel forbids that
too, there is the one account of whoever runs the tests.
"""

import os
import pwd
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.tools import find_tool

FIRST_UID = 23001

# what a user is called after `u-` -> the program behind it; busybox takes its applet from the name it is called by
LOGIN_SHELLS = {
    "bash": "bash",
    "dash": "dash",
    "fish": "fish",
    "mksh": "mksh",
    "tcsh": "tcsh",
    "yash": "yash",
    "zsh": "zsh",
    "ash": "busybox",
}


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    home: Path
    shell: str

    @property
    def alias(self) -> str:
        """Its name in the ssh configuration: `u-bash` is `t-bash`."""
        return f"t-{self.name.removeprefix('u-')}"

    def passwd_line(self) -> str:
        return f"{self.name}:x:{self.uid}:{self.gid}::{self.home}:{self.shell}\n"

    def make_home(self) -> None:
        """An empty home, whatever was there."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for entry in self.home.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        if os.geteuid() == 0:
            os.chown(self.home, self.uid, self.gid)
        self.home.chmod(0o700)


def installed_shells() -> list[str]:
    return [name for name, program in LOGIN_SHELLS.items() if find_tool(program)]


def make_accounts(base: Path, names: Iterable[str]) -> list[Account]:
    """One account for each short name, `u-NAME`: a login shell's name, or any other word (its shell is /bin/sh)."""
    as_root = os.geteuid() == 0
    accounts = []
    for index, name in enumerate(names):
        program = LOGIN_SHELLS.get(name.split(".")[0])
        shell = (find_tool(program) if program else None) or "/bin/sh"
        if name.split(".")[0] == "ash" and shell != "/bin/sh":
            link = base / "bin" / "ash"
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(shell)
            shell = str(link)
        uid = FIRST_UID + index if as_root else os.getuid()
        accounts.append(Account(f"u-{name}", uid, uid if as_root else os.getgid(), base / "home" / f"u-{name}", shell))
    return accounts


def own_account(base: Path) -> Account:
    """Whoever runs the tests, with a home that is not the real one."""
    me = pwd.getpwuid(os.getuid())
    return Account(me.pw_name, me.pw_uid, me.pw_gid, base / "home" / me.pw_name, me.pw_shell or "/bin/sh")


def write_databases(folder: Path, accounts: Sequence[Account], sudoers: str | None) -> dict[str, str]:
    """Copies of the system's account files with these accounts in them: real path -> path of the copy.

    The home of whoever runs the tests is moved as well, so that a login as oneself cannot touch the real one.
    """
    folder.mkdir(exist_ok=True)
    me = pwd.getpwuid(os.getuid()).pw_name
    moved = {a.name: a.passwd_line() for a in accounts if a.name == me}
    lines = [moved.get(line.split(":")[0], line) for line in Path("/etc/passwd").read_text().splitlines(keepends=True)]
    added = [a for a in accounts if a.name != me]
    texts = {
        "/etc/passwd": "".join(lines) + "".join(a.passwd_line() for a in added),
        "/etc/group": Path("/etc/group").read_text() + "".join(f"{a.name}:x:{a.gid}:\n" for a in added),
    }
    if os.geteuid() == 0:
        # `*`: no password is good, and the account is not locked
        texts["/etc/shadow"] = Path("/etc/shadow").read_text() + "".join(
            f"{a.name}:*:19000:0:99999:7:::\n" for a in added
        )
        if sudoers is not None:
            texts["/etc/sudoers"] = sudoers
    binds = {}
    for real, text in texts.items():
        copy = folder / Path(real).name
        copy.write_text(text)
        copy.chmod({"/etc/shadow": 0o600, "/etc/sudoers": 0o440}.get(real, 0o644))
        binds[real] = str(copy)
    return binds
