"""Kill everywhere: every process of a command, at every system call it makes.

`enumerate_kills` runs the command once under strace and counts. `run_with_kill` runs it again and kills one process at
one of those calls, by the tracer beside this module: two programs that know nothing of each other must agree on the
numbers, and `Tally` fails where what was tried is not what was counted.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tools import find_tool, missing, require_tool

TRACER = Path(__file__).with_name("tracer.py")

_LINE = re.compile(r"(\d+) +\[ *\d+\] (.*)")
_FORKS = ("clone", "clone3", "fork", "vfork")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>.* = (\d+)")
_RETURNED = re.compile(r"(\w+)\(.* = (\d+)(?: .*)?$")
_PROGRAM = re.compile(r'execve\("([^"]*)".*(?: = 0|<unfinished \.\.\.>)$')


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The `index`-th system call (from 1) of one process, which is not executed any more.

    `process` is its place in the tree of forks (`0`, `0.1`, …); `program` is what it had executed last by then.
    """

    process: str
    index: int
    syscall: str
    program: str

    def __str__(self) -> str:
        return f"{self.process}:{self.index}:{self.program}:{self.syscall}"


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """How a run ended, once everything that came from it was gone.

    `killed` is false where the process never made that many calls; `returncode` is the command's own, negative for a
    signal.
    """

    point: KillPoint | None
    killed: bool
    returncode: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    counts: Mapping[str, int]


@dataclass
class Tally:
    """Holds what was tried against what was counted."""

    counted: Sequence[KillPoint]
    tried: list[KillPoint] = field(default_factory=list)
    not_reached: list[KillPoint] = field(default_factory=list)

    def add(self, run: CompletedRun) -> None:
        assert run.point is not None
        self.tried.append(run.point)
        if not run.killed:
            self.not_reached.append(run.point)

    def check(self, *, allowed_not_reached: int = 0) -> None:
        """AssertionError unless each counted point was tried once and killed, but for the few that are allowed.

        A process that waits for another may make a call more or less from run to run: how many points that may
        concern is the test's to say.
        """
        if sorted(map(str, self.tried)) != sorted(map(str, self.counted)):
            msg = f"{len(self.counted)} points were counted, {len(self.tried)} tried"
            raise AssertionError(msg)
        if len(self.not_reached) > allowed_not_reached:
            names = ", ".join(map(str, self.not_reached))
            msg = f"{len(self.not_reached)} of {len(self.counted)} points were never reached: {names}"
            raise AssertionError(msg)


def enumerate_kills(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes = b"",
    *,
    cwd: str | os.PathLike[str] | None = None,
    limit_s: float = 60.0,
) -> list[KillPoint]:
    """Every system call of every process that the command starts, counted by one undisturbed run under strace.

    It includes processes that live on detached: the trace ends when the last one is gone.
    """
    require_trace()
    with tempfile.TemporaryDirectory(prefix="sshop-strace-") as folder:
        trace = Path(folder, "trace")
        # the same memory layout each time, so that the same calls to the allocator's end follow
        command = [require_tool("setarch"), "-R", require_tool("strace"), "-f", "-n", "-qq", "-e", "signal=none"]
        with subprocess.Popen(
            [*command, "-o", str(trace), "--", *_resolved(argv, env)],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            child.communicate(stdin, timeout=limit_s)
        return list(read_trace(trace.read_text(errors="replace")))


def read_trace(text: str) -> Iterator[KillPoint]:
    """The kill points of a trace that `strace -f -n` wrote."""
    paths: dict[str, str] = {}
    children: dict[str, int] = {}
    counts: dict[str, int] = {}
    programs: dict[str, str] = {}
    parents: dict[str, str] = {}
    lines = [match.groups() for line in text.splitlines() if (match := _LINE.match(line))]
    for pid, call in lines:  # who forked whom, in the order of each parent's forks
        found = _RESUMED.match(call) or _RETURNED.match(call)
        if found and found[1] in _FORKS:
            parents[found[2]] = pid
    for parent in parents.values():
        children.setdefault(parent, 0)
    places: dict[str, int] = {}
    for child, parent in parents.items():
        children[parent] += 1
        places[child] = children[parent]
    paths[lines[0][0]] = "0"

    def path_of(pid: str) -> str:
        """A child may fork before the fork that made it returns in its parent: parents are looked up, not awaited."""
        if pid not in paths:
            paths[pid] = f"{path_of(parents[pid])}.{places[pid]}"
        return paths[pid]

    started = False
    for pid, call in lines:
        if call.startswith("<..."):
            continue
        name = call.split("(")[0]
        path = path_of(pid)
        if pid not in programs:
            programs[pid] = programs.get(parents.get(pid, ""), "")
        if started:
            counts[path] = counts.get(path, 0) + 1
            yield KillPoint(path, counts[path], name, programs[pid])
        if program := _PROGRAM.match(call):
            programs[pid] = os.path.basename(program[1])
            started = True


def run_with_kill(
    point: KillPoint | None,
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes = b"",
    *,
    cwd: str | os.PathLike[str] | None = None,
    whole_tree: bool = False,
    limit_s: float = 60.0,
) -> CompletedRun:
    """Run the command and SIGKILL one process as it enters that call; with `whole_tree` everything that runs then.

    Returns when all processes that came from it are gone, detached ones too. Without a point nothing is killed, and
    `counts` has every process's number of calls, as this module's tracer counts them.
    """
    with tempfile.TemporaryDirectory(prefix="sshop-kill-") as folder:
        report = Path(folder, "report")
        spec = {
            "argv": _resolved(argv, env),
            "env": dict(env),
            "cwd": os.fspath(cwd) if cwd is not None else None,
            "process": point.process if point else None,
            "index": point.index if point else 0,
            "whole_tree": whole_tree,
            "limit_s": limit_s,
            "report": str(report),
        }
        description = Path(folder, "spec")
        description.write_text(json.dumps(spec))
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(TRACER), str(description)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            stdout, stderr = child.communicate(stdin, timeout=limit_s + 10)
        if not report.exists():
            msg = f"the tracer failed: {stderr.decode(errors='replace')}"
            raise RuntimeError(msg)
        told = json.loads(report.read_text())
    return CompletedRun(point, told["killed"], told["returncode"], stdout, stderr, told["timed_out"], told["counts"])


def require_trace() -> None:
    """Skip, or fail where tools are required, unless processes can be traced here."""
    strace = require_tool("strace")
    if subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode != 0:
        missing("strace may not trace here")


def _resolved(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    program = argv[0] if "/" in argv[0] else find_tool(argv[0])
    if program is None:
        raise FileNotFoundError(argv[0])
    return [program, *argv[1:]]
