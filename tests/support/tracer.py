"""Runs as a process of its own: runs a command and kills one of its processes at one system call.

A process is named by its place in the tree of forks: `0` is the command, `0.2` its second child, `0.2.1` the first
child of that. A position is the number of system calls that this process entered, the command's own counted from
after its first exec. strace cannot say this: its `when=` counts for each process anew, so that an injection meant for
one process hits its children too.

Started with a JSON description as its argument, it writes a JSON report to the descriptor named there when every
process that came from the command is gone (orphans come to it).
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import types
from pathlib import Path

PTRACE_CONT, PTRACE_SYSCALL = 7, 24
PTRACE_GETEVENTMSG, PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_LISTEN = 0x4201, 0x4206, 0x4207, 0x4208
PTRACE_GET_SYSCALL_INFO = 0x420E
SYSCALL_ENTRY = 1
EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10  # SYSGOOD, FORK, VFORK, CLONE, EXEC
WALL = 0x40000000
ADDR_NO_RANDOMIZE = 0x0040000
PR_SET_CHILD_SUBREAPER = 36
GROUP_STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
info = ctypes.create_string_buffer(128)


class Tracer:
    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.target = spec["process"]
        self.index = spec["index"]
        self.counting = self.target is None
        self.paths: dict[int, str] = {}
        self.children: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.early: dict[int, int] = {}
        self.alive: set[int] = set()
        self.root = 0
        self.begun = False
        self.killed = False
        self.timed_out = False
        self.status: int | None = None

    def run(self) -> dict:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGALRM, self.expire)
        self.start()
        signal.setitimer(signal.ITIMER_REAL, self.spec["limit_s"])
        while True:
            try:
                pid, status = os.waitpid(-1, WALL)
            except ChildProcessError:
                break
            if os.WIFSTOPPED(status):
                self.stopped(pid, status)
            else:
                self.alive.discard(pid)
                if pid == self.root:
                    self.status = os.waitstatus_to_exitcode(status)
        return {
            "killed": self.killed,
            "timed_out": self.timed_out,
            "returncode": self.status,
            "counts": self.counts,
        }

    def start(self) -> None:
        gate, opener = os.pipe()
        self.root = os.fork()
        if self.root == 0:
            os.read(gate, 1)
            os.close(gate)
            libc.personality(ADDR_NO_RANDOMIZE)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if self.spec["cwd"]:
                os.chdir(self.spec["cwd"])
            os.execve(self.spec["argv"][0], self.spec["argv"], self.spec["env"])
        os.close(gate)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(null, descriptor)
        if libc.ptrace(PTRACE_SEIZE, self.root, None, OPTIONS) != 0:
            os.kill(self.root, signal.SIGKILL)
            raise OSError(ctypes.get_errno(), "ptrace")
        self.paths[self.root] = "0"
        self.counts["0"] = 0
        self.alive.add(self.root)
        os.write(opener, b"g")
        os.close(opener)

    def resume(self, pid: int, number: int = 0) -> None:
        path = self.paths.get(pid)
        counted = (self.counting or (path == self.target and not self.killed)) and self.begun
        libc.ptrace(PTRACE_SYSCALL if counted else PTRACE_CONT, pid, None, number)

    def stopped(self, pid: int, status: int) -> None:
        if pid not in self.paths:
            # a child may stop before its parent's fork is reported: its name is not known yet
            self.early[pid] = status
            return
        number, event = os.WSTOPSIG(status), status >> 16
        if number == signal.SIGTRAP | 0x80:
            self.syscall(pid)
        elif event in (EVENT_FORK, EVENT_VFORK, EVENT_CLONE):
            self.forked(pid)
        elif event == EVENT_EXEC:
            self.begun = True
            self.resume(pid)
        elif event == EVENT_STOP and number in GROUP_STOPS:
            libc.ptrace(PTRACE_LISTEN, pid, None, None)
        elif event:
            self.resume(pid)
        else:
            self.resume(pid, number)

    def forked(self, pid: int) -> None:
        message = ctypes.c_ulong()
        libc.ptrace(PTRACE_GETEVENTMSG, pid, None, ctypes.addressof(message))
        child, parent = message.value, self.paths[pid]
        self.children[parent] = self.children.get(parent, 0) + 1
        path = f"{parent}.{self.children[parent]}"
        self.paths[child] = path
        self.counts[path] = 0
        self.alive.add(child)
        self.resume(pid)
        if child in self.early:
            self.stopped(child, self.early.pop(child))

    def syscall(self, pid: int) -> None:
        libc.ptrace(PTRACE_GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
        if info.raw[0] == SYSCALL_ENTRY:
            path = self.paths[pid]
            self.counts[path] += 1
            if path == self.target and self.counts[path] == self.index and not self.killed:
                self.killed = True
                # killed on entry: this call is not executed any more
                for victim in [pid, *(self.alive - {pid})] if self.spec["whole_tree"] else [pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                return
        self.resume(pid)

    def expire(self, _number: int, _frame: types.FrameType | None) -> None:
        self.timed_out = True
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        for pid in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_bytes())
    report = Tracer(spec).run()
    Path(spec["report"]).write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
