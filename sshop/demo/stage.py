"""Everything that the demo needs on the disk, below one temporary folder: nothing of the user's is read or written."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ALIAS = "demo-host"
USER = "demo"
COMMAND = "payment-noted"

# It sleeps before it acts: the line is cut while the command is at work, and the effect comes after.
_CATALOGUE = f"""\
commands:
  {COMMAND}:
    summary: Payment {{number}} is noted in the book
    category: append_only
    argv: [sh, -c, 'sleep 1; printf "payment %s\\n" "$1" >> "$2"; echo noted', sh, "{{number}}", "{{book}}"]
    timeout_s: 60
    params:
      number: {{type: integer, minimum: 1, maximum: 99999, example: 4711}}
      book: {{type: path, example: /tmp/book}}
"""


class Stage:
    """The folder, as a context manager; `keep` leaves it for whoever wants to see what went wrong."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="sshop-demo-"))
        self.home = self.base / "host-home"
        self.book = self.home / "book"
        self.keep = False
        self._ssh_config = self.base / "ssh_config"

    def __enter__(self) -> Self:
        (self.base / "my-home").mkdir(mode=0o700)
        self.home.mkdir(mode=0o700)
        catalogue = self.base / "policies" / "catalogue"
        catalogue.mkdir(parents=True)
        (catalogue / "demo.yaml").write_text(_CATALOGUE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(0 if self.keep else 50):
            shutil.rmtree(self.base, ignore_errors=True)  # a guard that has just ended may still write here
            if not self.base.exists():
                return
            time.sleep(0.02)

    @property
    def client_key(self) -> Path:
        return self.base / "client_key"

    def write_ssh_files(self, address: str, port: int, host_key: str) -> None:
        known_hosts = self.base / "known_hosts"
        known_hosts.write_text(f"[{address}]:{port} {host_key}\n")
        self._ssh_config.write_text(
            f"Host {ALIAS}\n  HostName {address}\n  Port {port}\n  User {USER}\n"
            f'  IdentityFile "{self.client_key}"\n  IdentitiesOnly yes\n  IdentityAgent none\n'
            f'  UserKnownHostsFile "{known_hosts}"\n  GlobalKnownHostsFile /dev/null\n'
        )

    def environ(self, outside: Mapping[str, str]) -> dict[str, str]:
        """The environment of the demo's own sshop: everything it keeps stands in the folder."""
        passed = {name: outside[name] for name in ("PATH", "LANG", "LC_ALL", "TERM") if name in outside}
        return passed | {
            "HOME": str(self.base / "my-home"),
            "SSHOP_LEDGER": str(self.base / "ledger.sqlite"),
            "SSHOP_POLICIES": str(self.base / "policies"),
            "SSHOP_SSH_CONFIG": str(self._ssh_config),
        }

    def at_work(self) -> bool:
        """Whether the host's own marker says that the command was started."""
        return any(b"\nstarted " in path.read_bytes() for path in self.home.glob(".sshop/*/markers/*"))

    def lines(self) -> list[str]:
        """The effect: the lines of the book."""
        return self.book.read_text().splitlines() if self.book.exists() else []
