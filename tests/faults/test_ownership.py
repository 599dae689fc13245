"""Whose an operation is: a living session's, nobody's, or under way in another process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sshop import reconcile
from sshop.core.events import Event
from sshop.core.operation import Operation
from sshop.ledger.sqlite import SqliteLedger
from tests.support.counter import Counter
from tests.support.program import Inside, Program, finish
from tests.support.sshd import Sshd

KILLED = "import runpy; runpy.run_module('tests.support.killed', run_name='__main__', alter_sys=True)"


class Desk:
    """One ledger, an append-only operation `op-a`, and sessions of several names; this process owns them all."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self.program = Program(folder, sshd.ssh_config_path)
        self.count = Counter(sshd.home() / "count")
        self.alias = sshd.accounts[sshd.user].alias

    def words(self, *more: str, then: str = ":") -> tuple[str, ...]:
        return ("run", self.alias, "add", f"path={self.count.path}", f"then={then}", "--op", "op-a", *more)

    def session(self, name: str) -> Program:
        return self.program.with_environ(SSHOP_SESSION=f"ses-{name}")

    def operation(self) -> Operation:
        ledger = SqliteLedger.open(self.program.ledger)
        try:
            return ledger.operation("op-a")
        finally:
            ledger.close()

    def events(self) -> list[Event]:
        ledger = SqliteLedger.open(self.program.ledger)
        try:
            assert ledger.verify().ok
            return list(ledger.events("op-a"))
        finally:
            ledger.close()

    def lose(self, program: Program, which: str = "attempt.dispatched") -> None:
        """The runner dies after that event; its session lives on, in this process."""
        process = program.start("after", which, *self.words(), script=KILLED)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL

    def lose_with_owner(self, program: Program, which: str = "attempt.dispatched") -> None:
        """The runner dies, and the process that it belonged to."""
        owner = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode != -9)"
        done = subprocess.run(
            [sys.executable, "-c", owner, "-m", "tests.support.killed", "after", which, *self.words()],
            env=program.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def desk(sshd: Sshd, tmp_path: Path) -> Desk:
    return Desk(sshd, tmp_path)


def test_what_a_living_session_owns_is_refused_to_another(desk: Desk) -> None:
    alice, bob = desk.session("alice"), desk.session("bob")
    desk.lose(alice)
    before = desk.events()
    for words in (desk.words("--json"), ("replay", "op-a", "--json")):
        refused = bob(*words)
        assert refused.code == 12, refused.text
        assert "ses-alice" in refused.stdout.decode()
    assert desk.count.count == 0
    assert [event.hash for event in desk.events()] == [event.hash for event in before]
    # to look is nobody's privilege
    assert bob("reconcile", "op-a").code == 5
    assert desk.operation().owner == "ses-alice"
    assert alice("replay", "op-a").code == 0
    assert desk.count.count == 1


@pytest.mark.parametrize("which", ["attempt.opened", "attempt.dispatched", "boundary.seen"])
@pytest.mark.parametrize("way", ["run", "replay"])
def test_what_a_dead_session_owned_is_taken_over_by_an_event(desk: Desk, way: str, which: str) -> None:
    desk.lose_with_owner(desk.session("alice"), which)
    before = desk.events()
    done = desk.session("bob")(*(desk.words() if way == "run" else ("replay", "op-a")))
    assert done.code == 0, done.text
    assert desk.count.count == 1
    after = desk.events()
    assert [event.hash for event in after[: len(before)]] == [event.hash for event in before]
    [change] = [event for event in after if event.type == "owner.changed"]
    assert (change.session_id, change.body.owner) == ("ses-bob", "ses-bob")
    assert desk.operation().owner == "ses-bob"
    assert all(attempt.closed_at for attempt in desk.operation().attempts)


def test_a_session_goes_on_in_another_process(desk: Desk) -> None:
    alice = desk.session("alice")
    desk.lose_with_owner(alice)
    assert alice("replay", "op-a").code == 0
    [change] = [event for event in desk.events() if event.type == "owner.changed"]
    assert "goes on" in change.body.why
    assert desk.session("bob")(*desk.words()).code == 0  # resolved: whoever asks is answered
    assert desk.count.count == 1


@pytest.mark.parametrize("session", ["alice", "bob"])
def test_a_second_call_attaches_and_gets_the_one_result(desk: Desk, session: str) -> None:
    alice, other = desk.session("alice"), desk.session(session)
    then = f"{desk.count.hold}; echo done; exit 3"
    first = alice.start(*desk.words("--json", then=then))
    desk.count.wait_for(1)
    waiting = other.start(*desk.words("--json", then=then))
    at_once = other(*desk.words("--json", "--wait", "0", then=then))
    assert at_once.code == 6, at_once.text
    assert at_once.json["next"]["action"] == "attach"
    refused = other("replay", "op-a", "--json")
    assert refused.code == 12, refused.text
    [row] = refused.json["operations"]
    assert (row["action"], row["next"]["command"]) == ("refused", "sshop reconcile op-a --wait 60")
    desk.count.release()
    looked = other(*row["next"]["command"].split()[1:])  # what it says can be run, and is right
    assert looked.code == 1, looked.text
    one, two = finish(first), finish(waiting)
    assert (one.code, two.code) == (1, 1), (one.text, two.text)
    assert (one.json["replayed"], two.json["replayed"]) == (False, True)
    for key in ("record_id", "exit_status", "stdout", "stdout_sha256", "state"):
        assert one.json[key] == two.json[key]
    assert one.json["stdout"] == "done\n"
    assert desk.count.count == 1
    assert len(desk.operation().attempts) == 1


def test_an_attached_call_goes_on_where_the_other_died(desk: Desk) -> None:
    alice = desk.session("alice")
    then = f"{desk.count.hold}; echo done"
    first = alice.start(*desk.words(then=then))
    desk.count.wait_for(1)
    waiting = alice.start(*desk.words("--json", then=then))
    time.sleep(1)
    first.kill()
    finish(first)
    desk.count.release()
    done = finish(waiting)
    assert (done.code, done.json["stdout"], done.json["replayed"]) == (0, "done\n", True), done.text
    assert desk.count.count == 1
    closed = [event for event in desk.events() if event.type == "attempt.closed"]
    assert closed[0].body.detail == "its process is gone"


def test_a_runner_that_sleeps_before_go_and_wakes_late_sends_nothing(desk: Desk) -> None:
    """It is fenced meanwhile; what it was about to do is not its to do any more."""
    sleeper = desk.session("alice").start("after", "store.met", *desk.words("--json"), script=STOPPED)
    wait_stopped(sleeper.pid)
    fenced = desk.session("alice")("fence", "op-a", "--json")
    assert desk.count.count == 0
    sleeper.send_signal(signal.SIGCONT)
    done = finish(sleeper)
    assert desk.count.count == 0
    assert done.code in (12, 13), (done.code, done.text, fenced)
    assert desk.operation().state == "cancelled", json.loads(done.stdout)


async def test_a_fence_that_read_the_ledger_too_early_cancels_nothing_that_ran_since(
    sshd: Sshd, tmp_path: Path
) -> None:
    inside = Inside(tmp_path, sshd.ssh_config_path)
    program = Program(tmp_path, sshd.ssh_config_path, policies=tmp_path / "policies")
    count = sshd.counter()
    words = ("run", sshd.accounts[sshd.user].alias, "add", f"path={count.path}")
    process = program.start("after", "attempt.opened", *words, script=KILLED)
    process.communicate(timeout=30)
    world = inside.world()
    [early] = world.ledger.operations()
    assert (early.state, early.dispatched) == ("open", False)
    assert program(*words).code == 0  # which goes on with that operation
    assert count.count == 1
    line = world.line(early.account, early.terms.root)
    answer = await reconcile.fence(world, line, early)
    await line.close()
    assert answer.operation.state == "succeeded"
    assert len(world.ledger.operations()) == 1
    inside.verify()
    inside.close()


# As `killed`, but stopped in place of killed.
STOPPED = """
import signal
signal.SIGKILL = signal.SIGSTOP
import runpy
runpy.run_module('tests.support.killed', run_name='__main__', alter_sys=True)
"""


def wait_stopped(pid: int) -> None:
    for _ in range(2000):
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return
        time.sleep(0.005)
    raise TimeoutError(pid)
