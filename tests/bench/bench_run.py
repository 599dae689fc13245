"""Runs against peers that do the same work with fewer promises: rows 1, 2, 4, 5 and 7 of the goals.

`python -m tests.bench.bench_run [--json]`. One sshd, everything in turns.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.ground import KEX, REPOSITORY, Bench, ground, in_turns, installed_peers, ratio, summary, tell

ROUNDS = 30
SLOW_ROUNDS = 5


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-run-") as place, ground(Path(place)) as bench:
        found, against = quick(bench), slow(bench)
    return {**found, **against, "ratios": {**found["ratios"], **against["ratios"]}}


def quick(bench: Bench, rounds: int = ROUNDS) -> dict[str, Any]:
    """Rows 1, 2, 4 and 5."""
    with inside(bench) as ask, control_master(bench) as master:
        times = in_turns(
            {
                "ssh": lambda: bench.call(bench.ssh()),
                "sshop": lambda: bench.call(bench.run()),
                "inside cold": lambda: ask("cold"),
                "ssh master": lambda: bench.call(master),
                "inside warm": lambda: ask("warm"),
                "inside bare": lambda: ask("bare"),
            },
            rounds,
        )
    return {
        **summary(times),
        "ratios": {
            "1": ratio(times["sshop"], times["ssh"]),
            "2": ratio(times["inside cold"], times["ssh"]),
            "4": ratio(times["inside warm"], times["ssh master"]),
            "5": ratio(times["inside warm"], times["inside bare"]),
        },
    }


def slow(bench: Bench, rounds: int = SLOW_ROUNDS) -> dict[str, Any]:
    """Row 7: tools that take longer, each on a connection of its own."""
    binaries = installed_peers() / "bin"
    ansible = [
        *(str(binaries / "ansible"), "all", "-i", f"{bench.alias},", "-m", "ansible.builtin.shell", "-a", "true"),
        *("-e", "ansible_python_interpreter=/usr/bin/python3"),
    ]
    settings = {
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_SSH_ARGS": f"-F {bench.ssh_config} -o KexAlgorithms={KEX} -o ControlMaster=no",
        "ANSIBLE_LOCAL_TEMP": str(bench.folder / "ansible"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    fabric = [str(binaries / "fab"), "-S", bench.ssh_config, "-H", bench.alias, "--", "true"]
    times = in_turns(
        {
            "sshop again": lambda: bench.call(bench.run()),
            "fabric": lambda: bench.call(fabric),
            "ansible pipelining": lambda: bench.call(ansible, **settings),
            "ansible async": lambda: bench.call([*ansible, "-B", "60", "-P", "1"], **settings),
        },
        rounds,
        before=1,
    )
    ours = times["sshop again"]
    return {
        **summary(times),
        "ratios": {
            "7 pipelining": ratio(ours, times["ansible pipelining"]),
            "7 async": ratio(ours, times["ansible async"]),
            "7 fabric": ratio(ours, times["fabric"]),
        },
    }


@contextlib.contextmanager
def inside(bench: Bench) -> Iterator[Callable[[str], float]]:
    """Asks the process of `inside.py`."""
    argv = [bench.python, str(REPOSITORY / "tests" / "bench" / "inside.py"), bench.alias, "nothing"]
    with subprocess.Popen(
        argv, env=bench.environ, cwd=bench.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(word: str) -> float:
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield ask
        process.stdin.close()


@contextlib.contextmanager
def control_master(bench: Bench) -> Iterator[list[str]]:
    """The bare command through a connection of ssh's own that stands."""
    path = bench.folder / "master"
    bench.call(bench.ssh("-fN", "-M", "-S", str(path))[:-1])
    try:
        yield bench.ssh("-S", str(path))
    finally:
        bench.call(bench.ssh("-S", str(path), "-O", "exit")[:-1])


if __name__ == "__main__":
    tell(measure)
