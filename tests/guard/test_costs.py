"""Forks, execs and fsyncs of one run with empty output, from the guard's own exec to `end` (PERFORMANCE row 12)."""

from __future__ import annotations

import re
import subprocess
from collections import Counter as Count
from pathlib import Path

import pytest

from tests.guard.wire import Request, Store, mint
from tests.support.tools import require_tool

AIM = {"forks": 6, "execs": 8, "fsyncs": 6}
CALLS = "fork,vfork,clone,clone3,execve,execveat,fsync,fdatasync,sync,syncfs,write"
KINDS = {"fork": "forks", "vfork": "forks", "clone": "forks", "clone3": "forks", "execve": "execs", "execveat": "execs"}
LINE = re.compile(r"\d+ +(?:<\.\.\. )?(\w+)(.*)")


def count(store: Store, trace: Path, **request: object) -> dict[str, int]:
    require_tool("strace")
    store.prefix = ["strace", "-f", "-qq", "-s", "200", "-o", str(trace), "-e", f"trace={CALLS}", "-e", "signal=none"]
    answer = store.ask(Request(op=mint(), argv=[b"/usr/bin/true"], **request), ack=True, stderr=subprocess.DEVNULL)  # type: ignore[arg-type]
    assert answer.result["status"] == "0"
    found: Count[str] = Count()
    for line in trace.read_text().splitlines():
        call, rest = LINE.match(line).groups()  # type: ignore[union-attr]
        if call == "write" and re.search(r"sshop1 [0-9a-f]{32} end", rest):
            break
        kind = KINDS.get(call, "fsyncs" if "sync" in call else "")
        succeeded = re.search(r"\) += \d+$", rest)
        found[kind] += bool(kind and succeeded and not (kind == "forks" and succeeded.group().endswith("= 0")))
    return {kind: found[kind] for kind in AIM}


def test_a_run_costs_no_more_than_the_aim(store, tmp_path):
    store.ask(Request("fence", mint()))
    counted = count(store, tmp_path / "trace")
    handed_over = store.shell.endswith("yash")  # one exec, since yash cannot hold every byte
    assert counted["forks"] <= AIM["forks"], counted
    assert counted["execs"] <= AIM["execs"] + handed_over, counted
    assert counted["fsyncs"] <= AIM["fsyncs"], counted


def test_a_read_only_run_syncs_nothing(store, tmp_path):
    counted = count(store, tmp_path / "trace", category="read_only")
    assert counted["fsyncs"] == 0


@pytest.mark.parametrize("markers", [300])
def test_a_run_costs_the_same_among_many_markers(dash, tmp_path, markers):
    """Case 016: nothing lists the markers."""
    dash.ask(Request("fence", mint()))
    before = count(dash, tmp_path / "before")
    for number in range(markers):
        (dash.base / "markers" / f"{mint()}+{number % 3 + 1}").write_text("")
    assert count(dash, tmp_path / "after") == before
