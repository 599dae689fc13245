"""What runs below a process of ours, read from /proc. Nothing here is found by name alone, but by descent."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    name: str
    state: str
    session: int
    started: int  # clock ticks since boot: with the pid, an identity


def read_process(pid: int) -> Process | None:
    """None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the name may hold spaces and brackets: it ends at the last one
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(rest[1]), name, rest[0], int(rest[3]), int(rest[19]))


def descendants(root: int) -> list[Process]:
    """Every living process below `root`, parents before children."""
    by_parent: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := read_process(int(entry))):
            by_parent.setdefault(found.parent, []).append(found)
    below: list[Process] = []
    queue = [root]
    while queue:
        children = by_parent.get(queue.pop(0), [])
        below += children
        queue += [child.pid for child in children]
    return below


def send(processes: Iterable[Process], number: int) -> list[int]:
    """Signal those that are still the same processes; which they were."""
    sent = []
    for process in processes:
        now = read_process(process.pid)
        if now is None or now.started != process.started:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            sent.append(process.pid)
    return sent


def kill_below(root: int) -> None:
    """SIGKILL everything below `root`, also what is forked meanwhile."""
    for _ in range(200):
        alive = [p for p in descendants(root) if p.state != "Z"]
        if not alive:
            return
        send(alive, signal.SIGKILL)
        time.sleep(0.005)


def wait_gone(processes: Iterable[Process], limit_s: float = 5.0) -> None:
    """Return when none of them runs any more (a zombie does not); TimeoutError after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    left = list(processes)
    while left:
        left = [p for p in left if (now := read_process(p.pid)) and now.started == p.started and now.state != "Z"]
        if left and time.monotonic() > end:
            msg = f"still there: {left}"
            raise TimeoutError(msg)
        time.sleep(0.002)
