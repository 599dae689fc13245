"""Runs as a process of its own: the keeper of one sshd.

Started with a JSON description as its argument; it answers one line on standard output when sshd listens, and then
waits for its standard input to end. Whatever is started below it stays below it, because orphans come to it; when the
input ends (the test is done, or was killed) everything below is killed and the keeper leaves. The mount namespace goes
with the last of them.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.process import kill_below

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    result = libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), None)
    check(result, f"mount {source} on {target}")


def enter_namespace(binds: dict[str, str]) -> None:
    """A private mount namespace in which these files stand for the real ones; a user namespace too without root."""
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(CLONE_NEWNS | (0 if uid == 0 else CLONE_NEWUSER)), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    if uid == 0:
        mount("sshop-run", "/run", "tmpfs", 0)
        Path("/run/sshd").mkdir(mode=0o755)
        Path("/run/lock").mkdir(mode=0o1777)
    for real, ours in binds.items():
        mount(ours, real, None, MS_BIND)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> int:
    spec = json.loads(sys.argv[1])
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    if spec["binds"] is not None:
        enter_namespace(spec["binds"])

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    server = subprocess.Popen(spec["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=tie)
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    try:
        while os.read(0, 1):
            pass
    finally:
        kill_below(os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main())
