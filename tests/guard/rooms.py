"""Private mount namespaces: full disks, hosts without a tool, other sudoers, another boot."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path


class Room:
    """A mount namespace kept by a sleeping process; `prefix` starts a program in it."""

    def __init__(self, script: str = "") -> None:
        self.holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-ec", f"{script}\necho ready\nexec sleep 3600"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError("the room could not be made")

    @property
    def prefix(self) -> list[str]:
        return ["nsenter", "-t", str(self.holder.pid), "-m", "--"]

    def path(self, path: Path) -> Path:
        """The same path as seen from outside."""
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def run(self, script: str) -> str:
        return subprocess.run([*self.prefix, "sh", "-ec", script], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        os.killpg(self.holder.pid, signal.SIGKILL)
        self.holder.wait()
        assert self.holder.stdout is not None
        self.holder.stdout.close()
