"""A real OpenSSH sshd on a loopback port, with throw-away keys, its own configuration and its own accounts.

CUT is `kill_sessions`, FREEZE is `freeze_sessions`. Processes are found by descent from the server's keeper, and
signalled by pid; never by name.
"""

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.accounts import Account, installed_shells, make_accounts, own_account, write_databases
from tests.support.counter import Counter
from tests.support.process import Process, descendants, kill_below, read_process, send, wait_gone
from tests.support.tools import missing, require_root, require_tool

ROOT = Path(__file__).resolve().parents[2]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

DEFAULTS = {
    "MaxStartups": "300",
    "MaxSessions": "100",
    "UsePAM": "no",
    "StrictModes": "no",
    "PermitRootLogin": "yes",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "PrintMotd": "no",
    "PrintLastLog": "no",
    "UseDNS": "no",
    "LogLevel": "VERBOSE",
    "Subsystem": "sftp internal-sftp",
}


class SshdError(Exception):
    """The server did not come up; the text is its log."""


class Sshd:
    """One server; to be used as a context manager.

    `users` are short names: of login shells (`bash`, `ash`, …), a shell and a word (`bash.noisy`), or any word (then
    /bin/sh); by default one for each login shell that is installed. Beside them is whoever runs the tests. `options`
    are sshd_config keywords that win over the defaults; a list gives a keyword several times. `sudoers` is the text of
    /etc/sudoers inside (root only). `limited` says in words what this system cannot offer, and is empty as root.
    """

    def __init__(
        self,
        *,
        users: Sequence[str] | None = None,
        options: Mapping[str, str | Sequence[str]] | None = None,
        sudoers: str | None = None,
    ) -> None:
        self.sshd = require_tool("sshd")
        require_tool("ssh-keygen")
        self.base = Path(tempfile.mkdtemp(prefix="sshop-sshd-"))
        self.base.chmod(0o711)
        self.options = dict(options or {})
        self.sudoers = sudoers
        self.names = list(installed_shells() if users is None else users)
        self.limited = "" if os.geteuid() == 0 else "without root all accounts share one uid"
        self.port = 0
        self.pid = 0
        self.accounts: dict[str, Account] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self.log_path = self.base / "sshd.log"
        self.config_path = self.base / "sshd_config"
        self.ssh_config_path = self.base / "ssh_config"
        self.known_hosts_path = self.base / "known_hosts"
        self.client_key_path = self.base / "client_key"
        self.host_key_path = self.base / "host_key"
        self.authorized_keys_path = self.base / "keys" / "authorized_keys"
        self.boot_id_path = self.base / "boot_id"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What a test asks.

    @property
    def host_key_public(self) -> str:
        """The host key as `ssh-ed25519 AAAA…`."""
        return " ".join(self.host_key_path.with_suffix(".pub").read_text().split()[:2])

    @property
    def user(self) -> str:
        """The account to take where any will do."""
        return next(iter(self.accounts))

    def require_user(self, short: str) -> str:
        """The name of the account with that short name; ends the calling test where this system cannot have it."""
        name = f"u-{short}"
        if name not in self.accounts:
            missing(f"no account {name} here: {self.limited or 'its login shell is not installed'}")
        return name

    def home(self, user: str | None = None) -> Path:
        return self.accounts[user or self.user].home

    def counter(self, user: str | None = None, name: str = "count") -> Counter:
        """A counter in the user's home."""
        return Counter(self.home(user) / name)

    def write_ssh_config(self, port: int | None = None, *, name: str | None = None, extra: str = "") -> Path:
        """An OpenSSH client configuration with one alias for each account; for a relay's port, say.

        `extra` are lines for every alias, and win over what stands here.
        """
        port = port or self.port
        entry = f"[127.0.0.1]:{port} {self.host_key_public}\n"
        known = self.known_hosts_path.read_text() if self.known_hosts_path.exists() else ""
        if entry not in known:
            self.known_hosts_path.write_text(known + entry)
        common = (
            f"  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {self.client_key_path}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts_path}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n"
        )
        if extra:
            common = "".join(f"  {line.strip()}\n" for line in extra.splitlines()) + common
        text = "".join(f"Host {a.alias}\n  User {a.name}\n{common}\n" for a in self.accounts.values())
        path = (
            self.ssh_config_path if name is None and port == self.port else self.base / (name or f"ssh_config.{port}")
        )
        path.write_text(text)
        return path

    def ssh(
        self, user: str, command: str, *, data: bytes = b"", timeout: float = 30
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command line by the plain ssh program, to look at the host or as the naive peer."""
        argv = [require_tool("ssh"), "-F", str(self.ssh_config_path), self.accounts[user].alias, command]
        return subprocess.run(argv, input=data, capture_output=True, timeout=timeout, check=False)

    def authorize(self, line: str) -> None:
        """Add a line to everybody's authorized_keys; `reset` takes it away again."""
        with self.authorized_keys_path.open("a") as file:
            file.write(line.rstrip("\n") + "\n")

    # What a test does to it.

    def sessions(self) -> list[Process]:
        """The server's processes for its connections, the listening one left out."""
        return [p for p in descendants(self.pid) if p.name.startswith("sshd") and p.state != "Z"]

    def commands(self) -> list[Process]:
        """Everything that runs on this host that is no sshd: shells, guards, commands, detached ones too."""
        assert self._keeper is not None
        return [p for p in descendants(self._keeper.pid) if not p.name.startswith("sshd") and p.state != "Z"]

    def kill_sessions(self) -> list[int]:
        """CUT: SIGKILL the processes of all connections; returns when they are gone. Commands are not touched."""
        found = self.sessions()
        sent = send(found, signal.SIGKILL)
        wait_gone(found)
        return sent

    def freeze_sessions(self) -> list[int]:
        """FREEZE: stop the processes of all connections."""
        return send(self.sessions(), signal.SIGSTOP)

    def thaw_sessions(self) -> list[int]:
        return send(self.sessions(), signal.SIGCONT)

    def end_sessions(self) -> None:
        """Kill whatever runs but the listening server."""
        assert self._keeper is not None
        for _ in range(100):
            rest = [p for p in descendants(self._keeper.pid) if p.pid != self.pid and p.state != "Z"]
            if not rest:
                return
            send(rest, signal.SIGKILL)
            time.sleep(0.002)

    def reboot(self) -> None:
        """Nothing that ran runs any more, and the boot identity is another; the server itself stays (root only)."""
        require_root()
        self.end_sessions()
        self.boot_id_path.write_text(f"{uuid.uuid4()}\n")

    def reset(self) -> None:
        """As new: nothing runs, homes are empty, only the one key may log in."""
        self.end_sessions()
        for account in self.accounts.values():
            account.make_home()
        self._write_authorized_keys()

    def stop(self) -> None:
        self._end_keeper()
        shutil.rmtree(self.base, ignore_errors=True)

    # How it comes up.

    def _start(self) -> None:
        for path in (self.host_key_path, self.client_key_path):
            argv = [require_tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "sshop-test", "-f", str(path)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        accounts = [*make_accounts(self.base, self.names), own_account(self.base)]
        self._adopt(accounts)
        binds = write_databases(self.base / "etc", accounts, self.sudoers)
        if os.geteuid() == 0:
            self.boot_id_path.write_text(BOOT_ID.read_text())
            binds[str(BOOT_ID)] = str(self.boot_id_path)
        try:
            self._listen(binds)
        except SshdError:
            if os.geteuid() == 0:
                raise
            # no user namespace for us: then there is only our own account, with the real passwd
            self.limited = "without root and user namespaces there is one account and its own login shell"
            me = own_account(self.base)
            self._adopt([me])
            self._listen(None, f"SetEnv HOME={me.home}")
        self.write_ssh_config()

    def _adopt(self, accounts: Sequence[Account]) -> None:
        self.accounts = {account.name: account for account in accounts}
        self.authorized_keys_path.parent.mkdir(exist_ok=True)
        for account in accounts:
            account.home.parent.mkdir(exist_ok=True)
            account.make_home()
        self._write_authorized_keys()

    def _write_authorized_keys(self) -> None:
        self.authorized_keys_path.write_text(self.client_key_path.with_suffix(".pub").read_text())
        self.authorized_keys_path.chmod(0o644)

    def _write_config(self, extra: str) -> None:
        lines = [extra]
        for keyword, value in self.options.items():
            lines += [f"{keyword} {each}" for each in ([value] if isinstance(value, str) else value)]
        given = {keyword.lower() for keyword in self.options}
        lines += [f"{keyword} {value}" for keyword, value in DEFAULTS.items() if keyword.lower() not in given]
        if "authorizedkeysfile" not in given:
            lines.append(f"AuthorizedKeysFile {self.authorized_keys_path}")
        lines += [
            f"ListenAddress 127.0.0.1:{self.port}",
            f"HostKey {self.host_key_path}",
            f"PidFile {self.base / 'sshd.pid'}",
        ]
        self.config_path.write_text("\n".join(line for line in lines if line) + "\n")

    def _listen(self, binds: Mapping[str, str] | None, extra: str = "") -> None:
        for _ in range(10):
            self.port = free_port()
            self._write_config(extra)
            self.log_path.write_text("")
            spec = {
                "argv": [self.sshd, "-D", "-f", str(self.config_path), "-E", str(self.log_path)],
                "binds": binds,
            }
            log_file = self.log_path.open("ab")
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.support.keeper", json.dumps(spec)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
            )
            log_file.close()
            assert self._keeper.stdout is not None
            self.pid = int(self._keeper.stdout.readline() or 0)
            if self._wait_listening():
                return
            log = self.log_path.read_text(errors="replace")
            self._end_keeper()
            if "Cannot bind" not in log:
                raise SshdError(log)
        raise SshdError(self.log_path.read_text(errors="replace"))

    def _end_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.close()
        try:
            keeper.wait(10)
        except subprocess.TimeoutExpired:
            kill_below(keeper.pid)
            keeper.kill()
            keeper.wait()
        keeper.stdout.close()

    def _wait_listening(self) -> bool:
        end = time.monotonic() + 10
        while self.pid and time.monotonic() < end:
            if re.search(r"^Server listening on", self.log_path.read_text(errors="replace"), re.MULTILINE):
                return True
            now = read_process(self.pid)
            if now is None or now.state == "Z":
                return False
            time.sleep(0.005)
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_name() -> str:
    """The account that runs the tests."""
    return pwd.getpwuid(os.getuid()).pw_name
