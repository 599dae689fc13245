"""A host of its own for commands that change one: the machine's folders under overlays, in a private mount namespace.

What runs there is gone when it ends; `/run` begins empty. As a program it reads a step a line, as JSON, and answers
each with a line; it must be started in namespaces of its own, which `PrivateHost` does.
"""

import base64
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BASE = Path("/tmp/private-host")  # seen by nobody outside: what is mounted there is in the namespace alone
CHANGES = BASE / "u"  # what was written, below the folders' own names
FOLDERS = ("/etc", "/usr", "/var", "/home", "/root", "/srv", "/opt", "/mnt")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGENT = "agent"  # the account that is logged in to; sudo lets it be anybody


class PrivateHost:
    """One host, to be used as a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, what: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise RuntimeError(self._process.stderr.read().decode(errors="replace"))
        return json.loads(line)

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        """Run one program to its end: status, stdout, stderr (bytes). A step has argv, and may have env, cwd, stdin,
        user.
        """
        result = self._ask({**step, "stdin": base64.b64encode(step.get("stdin") or b"").decode()})
        return {**result, **{name: base64.b64decode(result[name]) for name in ("stdout", "stderr")}}

    def shell(self, text: str) -> str:
        """What a shell text of root's prints, with the agent's home; it must succeed."""
        done = self.step({"argv": ["/bin/sh", "-c", text], "env": {"HOME": f"/home/{AGENT}"}})
        assert done["status"] == 0, (text, done)
        return done["stdout"].decode()

    def serve(self, sshd: str, config: str, host_key: str, *, environ: dict[str, str] | None = None) -> None:
        """Make the agent's account and start sshd; commands that sudo starts get `environ` too."""
        self._ask({"do": "serve", "sshd": sshd, "config": config, "host_key": host_key, "environ": environ or {}})

    def settle(self) -> None:
        """What runs now belongs to the host, and survives `kill`."""
        self._ask({"do": "settle"})

    def kill(self) -> None:
        """SIGKILL guards, commands and logins, wherever they are in their work."""
        self._ask({"do": "kill"})


def run(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of these steps on a host of their own."""
    with PrivateHost() as host:
        return [host.step(step) for step in steps]


def possible() -> bool:
    """Whether this machine lets us have one: root, namespaces, overlays."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    try:
        return run([{"argv": ["touch", "/etc/private-host-was-here"]}])[0]["status"] == 0
    except (RuntimeError, OSError):
        return False


# What follows runs inside, as process 1.


def _cover() -> None:
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    BASE.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(BASE)], check=True)
    for folder in FOLDERS:
        if not Path(folder).is_dir():
            continue
        upper, work = Path(f"{CHANGES}{folder}"), Path(f"{BASE}/w{folder}")
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        shutil.copystat(folder, upper)
        os.chown(upper, Path(folder).stat().st_uid, Path(folder).stat().st_gid)
        options = f"lowerdir={folder},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, folder], check=True)


def _step(step: dict[str, Any]) -> dict[str, Any]:
    user = step.get("user") or "root"
    home = pwd.getpwnam(user).pw_dir
    environ = {"PATH": PATH, "HOME": home, "USER": user, "LANG": "C.UTF-8", **step.get("env", {})}
    done = subprocess.run(
        step["argv"],
        input=base64.b64decode(step["stdin"]),
        env=environ,
        cwd=step.get("cwd") or home,
        user=None if user == "root" else user,
        group=None if user == "root" else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user == "root" else [],
        capture_output=True,
        timeout=250,
        check=False,
    )
    return {
        "status": done.returncode,
        "stdout": base64.b64encode(done.stdout).decode(),
        "stderr": base64.b64encode(done.stderr).decode(),
    }


def _append(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


def _write(path: str, text: str, mode: int) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    Path(path).chmod(mode)
    return path


def _serve(spec: dict[str, Any]) -> int:
    _append("/etc/passwd", f"{AGENT}:x:22999:22999::/home/{AGENT}:/bin/sh")
    _append("/etc/group", f"{AGENT}:x:22999:")
    _append("/etc/shadow", f"{AGENT}:*:19000:0:99999:7:::")
    home = Path("/home", AGENT)
    home.mkdir(mode=0o700)
    os.chown(home, 22999, 22999)
    environ = "".join(f"{name}={value}\n" for name, value in spec["environ"].items())
    _write("/etc/agent-environment", environ, 0o644)
    rules = f"{AGENT} ALL=(ALL) NOPASSWD: ALL\nDefaults:{AGENT} env_file=/etc/agent-environment, !lecture\n"
    _write("/etc/sudoers.d/agent", rules, 0o440)
    Path("/run/sshd").mkdir(mode=0o755)
    key = _write(f"{BASE}/host_key", spec["host_key"], 0o600)
    config = _write(f"{BASE}/sshd_config", f"{spec['config']}HostKey {key}\nPidFile none\n", 0o600)
    server = subprocess.Popen(
        [spec["sshd"], "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert server.stderr is not None
    line = b" "
    while line and not line.startswith(b"Server listening"):
        line = server.stderr.readline()
    os.set_blocking(server.stderr.fileno(), False)
    if not line:
        raise RuntimeError("sshd did not come up")
    return server.pid


def _processes() -> dict[int, tuple[str, int]]:
    """State and parent of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "stat").read_text().rpartition(") ")[2].split()
                found[int(entry.name)] = (words[0], int(words[1]))
    return found


def _doomed(settled: set[int], sshd: int) -> set[int]:
    """Guards, commands and logins: what descends from something that belongs to the host (a database, say) is left."""
    alive = {pid: parent for pid, (state, parent) in _processes().items() if state not in "ZX"}
    found = set()
    for pid in alive.keys() - settled:
        above = alive[pid]
        while above not in settled and above in alive:
            above = alive[above]
        if above in (0, 1, sshd):
            found.add(pid)
    return found


def _kill(settled: set[int], sshd: int) -> None:
    """All at once, in effect: nobody sees another go, and whoever logs in meanwhile waits."""
    os.kill(sshd, signal.SIGSTOP)
    stopped: set[int] = set()
    while doomed := _doomed(settled, sshd) - stopped:
        _send(doomed, signal.SIGSTOP)
        stopped |= doomed
    _send(stopped, signal.SIGKILL)
    while _doomed(settled, sshd):
        time.sleep(0.002)
    os.kill(sshd, signal.SIGCONT)


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _main() -> None:
    _cover()
    os.environ["PATH"] = PATH
    settled, sshd = {1}, 0
    for line in sys.stdin:
        asked = json.loads(line)
        _reap()
        answer: dict[str, Any] = {}
        match asked.get("do"):
            case "serve":
                sshd = _serve(asked)
                settled.add(sshd)
            case "settle":
                settled |= set(_processes())
            case "kill":
                _kill(settled, sshd)
            case _:
                answer = _step(asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
