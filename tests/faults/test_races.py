"""Many at once, with one ID and with many: real processes, released by one pipe.

All of a test's callers have the same parent, hence the same session.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sshop.core.operation import Operation
from sshop.ledger.sqlite import SqliteLedger
from tests.guard import wire
from tests.support.counter import Counter
from tests.support.program import Done, Program, finish, write_policies
from tests.support.sample import WHOLE
from tests.support.sshd import Sshd
from tests.support.tools import find_tool

# Everything that a run needs is imported before the release, so that all begin at once.
AT_ONCE = """
import sys
from sshop import replay, runner
from sshop.cli import acting, commands, entry
from sshop.ledger import sqlite
from sshop.transport import ssh
sys.stdin.buffer.read(1)
sys.exit(entry.main(sys.argv[1:]))
"""


def rounds(whole: int, sampled: int) -> range:
    return range(whole if os.environ.get(WHOLE) else sampled)


class Crowd:
    """Programs with ledgers of their own, or one for all, that call an entry on one account."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self.folder, self.config = folder, sshd.ssh_config_path
        self.alias = sshd.accounts[sshd.user].alias
        self.policies = write_policies(folder / "policies")

    def program(self, ledger: str) -> Program:
        return Program(self.folder, self.config, policies=self.policies, ledger=self.folder / f"{ledger}.sqlite")

    def words(self, count: Counter, *more: str, then: str = "echo $OPERATION_ID") -> tuple[str, ...]:
        return ("run", self.alias, "add", f"path={count.path}", f"then={then}", "--json", *more)


def at_once(
    calls: Sequence[tuple[Program, tuple[str, ...]]],
    timeout: float = 240,
    meanwhile: Callable[[list[subprocess.Popen]], None] = lambda _: None,
) -> list[Done]:
    gate, opener = os.pipe()
    started = [program.start(*words, script=AT_ONCE, stdin=gate) for program, words in calls]
    os.close(gate)
    os.close(opener)
    meanwhile(started)
    return [finish(process, timeout) for process in started]


def of_ledger(program: Program, operation_id: str) -> Operation:
    ledger = SqliteLedger.open(program.ledger)
    try:
        found = ledger.verify()
        assert found.ok, found.fault
        operation = ledger.operation(operation_id)
        assert operation is not None
        return operation
    finally:
        ledger.close()


@pytest.fixture
def crowd(sshd: Sshd, tmp_path: Path) -> Crowd:
    return Crowd(sshd, tmp_path)


def test_fifty_at_once_with_one_id_have_one_effect_and_one_answer(crowd: Crowd, sshd: Sshd) -> None:
    count = sshd.counter()
    shared = crowd.program("shared")
    programs = [shared] * 25 + [crowd.program(f"own{index}") for index in range(25)]
    done = at_once(
        [(program, crowd.words(count, "--op", "op-one", then="sleep 0.5; echo done")) for program in programs]
    )
    assert collections.Counter(each.code for each in done) == {0: 50}, [each.text for each in done if each.code][:3]
    assert count.count == 1
    answers = {
        json.dumps([a[key] for key in ("state", "exit_status", "stdout", "stdout_sha256", "record_id")])
        for a in (each.json for each in done)
    }
    assert len(answers) == 1, answers
    assert sorted(each.json["replayed"] for each in done) == [False] + [True] * 49
    for program in {id(program): program for program in programs}.values():
        of_ledger(program, "op-one")
    assert len(of_ledger(shared, "op-one").attempts) == 1


def test_fifty_fresh_ids_that_mean_it_have_fifty_effects(crowd: Crowd, sshd: Sshd) -> None:
    count = sshd.counter()
    program = crowd.program("shared")
    done = at_once([(program, crowd.words(count, "--new"))] * 50)
    assert collections.Counter(each.code for each in done) == {0: 50}, [each.text for each in done if each.code][:3]
    assert count.count == 50
    assert len({each.json["operation_id"] for each in done}) == 50
    assert all(each.json["stdout"] == each.json["operation_id"] + "\n" for each in done)


@pytest.mark.parametrize("ledgers", ["one ledger", "a ledger each"])
def test_eight_fresh_ids_have_one_effect_and_seven_are_told_the_twin(crowd: Crowd, sshd: Sshd, ledgers: str) -> None:
    """Where a ledger stands between them it tells; else the host's index does. The one runs until all have asked."""

    def release(started: list[subprocess.Popen]) -> None:
        end = time.monotonic() + 120
        while sum(process.poll() is None for process in started) > 1 and time.monotonic() < end:
            time.sleep(0.05)
        count.release()

    count = sshd.counter()
    programs = [crowd.program("shared" if ledgers == "one ledger" else f"own{index}") for index in range(8)]
    done = at_once([(program, crowd.words(count, then=count.hold)) for program in programs], meanwhile=release)
    assert sorted(each.code for each in done) == [0] + [11] * 7, [each.text for each in done]
    assert count.count == 1
    [winner] = [each.json["operation_id"] for each in done if each.code == 0]
    for each in done:
        if each.code == 11:
            told = each.json
            assert told["error"]["code"].endswith("unresolved_twin")
            assert winner in json.dumps([told["error"], told["next"]]), told


def test_015_two_ledgers_with_one_id_at_the_same_instant(crowd: Crowd, sshd: Sshd) -> None:
    for number in rounds(50, 3):
        count = sshd.counter(name=f"count{number}")
        name = f"op-{number}"
        words = crowd.words(count, "--op", name)
        one, other, late = (crowd.program(f"{ledger}{number}") for ledger in ("one", "other", "late"))
        done = at_once([(one, words), (other, words)])
        assert [each.code for each in done] == [0, 0], [each.text for each in done]
        assert done[0].json["record_id"] == done[1].json["record_id"]
        after = late(*words)  # all local state is lost
        assert (after.code, after.json["replayed"], after.json["stdout"]) == (0, True, f"{name}\n")
        assert count.count == 1


def test_114_two_replays_at_the_same_instant_make_one_attempt(crowd: Crowd, sshd: Sshd) -> None:
    for number in rounds(20, 3):
        count = sshd.counter(name=f"count{number}")
        program, name = crowd.program(f"ledger{number}"), f"op-{number}"
        lose_before_go(program, crowd.words(count, "--op", name))
        done = at_once([(program, ("replay", name, "--json"))] * 2)
        assert sorted(each.code for each in done) in ([0, 12], [0, 0]), [each.text for each in done]
        assert count.count == 1
        first, second = of_ledger(program, name).attempts
        assert second.retry_of_attempt_id == first.attempt_id
        for each in done:
            if each.code == 12:
                [row] = each.json["operations"]
                assert row["action"] == "refused"
                assert name in row["why"]


def lose_before_go(program: Program, words: Sequence[str]) -> None:
    """An operation that was dispatched and never arrived: its runner died between the two."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.killed", "after", "attempt.dispatched", *words],
        env=program.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL


SHELLS = [name for name, path in wire.SHELLS.items() if find_tool(Path(path).name)]


@pytest.mark.parametrize("shell", SHELLS)
def test_026_fifty_guards_at_once_with_one_id(tmp_path: Path, shell: str) -> None:
    store = shell_store(tmp_path, shell)
    for number in rounds(100 if shell == "dash" else 10, 1):
        count = Counter(tmp_path / f"count{number}")
        channels = []
        for _ in range(50):
            request = wire.Request(op=f"op-{number}", argv=[b"/bin/sh", b"-c", f"{count.shell}; echo hi".encode()])
            channel = store.open(request)
            channel.send(request.head())
            channels.append(channel)
        for channel in channels:
            assert channel.read(until="hello") == "hello"
        for channel in channels:
            channel.send(b"go %d\n" % channel.request.head().count(b"\n"))
        answers = [channel.close() for channel in channels]
        assert count.count == 1
        assert sorted(answer.result["own"] for answer in answers) == ["0"] * 49 + ["1"]
        assert len({(a.result["rec"], a.result["status"], a.out) for a in answers}) == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_028_a_second_attempt_is_answered_in_every_shell(tmp_path: Path, shell: str) -> None:
    store, count = shell_store(tmp_path, shell), Counter(tmp_path / "count")
    argv = [b"/bin/sh", b"-c", f"{count.shell}; exit 4".encode()]
    first = store.ask(wire.Request(op="op-a", argv=argv))
    second = store.ask(wire.Request(op="op-a", argv=argv))
    assert (first.result["own"], second.result["own"]) == ("1", "0")
    assert first.result["status"] == second.result["status"] == "4"
    assert count.count == 1


def shell_store(folder: Path, shell: str) -> wire.Store:
    store = wire.Store(folder / "home" / ".sshop", shell, prefix=["timeout", "60"])
    link = folder / "sh"
    link.symlink_to(store.shell)
    store.shell = str(link)
    return store
