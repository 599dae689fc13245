"""What is counted and not timed, by strace: rows 3 and 12 of the goals. A test holds both to their floors.

`python -m tests.bench.bench_counts [--json]`.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.ground import ground, tell
from tests.guard.wire import Request, Store, mint
from tests.support.strace import require_trace

_FORK = re.compile(r"\b(?:fork|vfork|clone|clone3)\((?!.*CLONE_THREAD)")
_EXEC = re.compile(r"(?:\bexecve\(|<\.\.\. execve resumed>).* = 0$")
_SYNC = re.compile(r"\b(?:fsync|fdatasync|syncfs|sync)\(")
_CALLS = "trace=fork,vfork,clone,clone3,execve,fsync,fdatasync,syncfs,sync,write"


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-counts-") as place:
        guard = of_guard(Path(place) / "guard")
        (Path(place) / "run").mkdir()
        with ground(Path(place) / "run") as bench:
            bench.call(bench.run())
            started = of_start(bench.run(), bench.environ, Path(place))
    return {"child processes at start": {"count": started}, "guard": guard}


def of_start(argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> int:
    """How many child processes a program starts; threads are none."""
    require_trace()
    trace = folder / "start.trace"
    subprocess.run(
        ["strace", "-f", "-qq", "-e", _CALLS, "-o", str(trace), *argv],
        env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    return len(_FORK.findall(trace.read_text(errors="replace")))


def of_guard(folder: Path, shell: str = "dash") -> dict[str, int]:
    """Forks, execs and syncs of a guarded `true`, from the guard's start up to the end of its answer: claim, index
    entry, its own digest, the command, the record of its exit.
    """
    require_trace()
    store = Store(folder / ".sshop", shell)
    assert store.ask(Request(op=mint(), argv=[b"true"]), ack=True).result["status"] == "0"
    trace = folder / "guard.trace"
    store.prefix = ["strace", "-f", "-qq", "-s", "80", "-e", _CALLS, "-o", os.fspath(trace)]
    request = Request(op=mint(), argv=[b"true"])
    assert store.ask(request, ack=True).result["status"] == "0"
    told, end, _ = trace.read_text(errors="replace").partition(f'"sshop1 {request.nonce} end\\n"')
    assert end, "the guard did not end its answer in one write"
    lines = told.splitlines()
    return {
        name: sum(1 for line in lines if pattern.search(line))
        for name, pattern in (("forks", _FORK), ("execs", _EXEC), ("syncs", _SYNC))
    }


if __name__ == "__main__":
    tell(measure)
