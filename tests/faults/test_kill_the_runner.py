"""The runner killed with SIGKILL at every event that it writes, `run` and `replay`: before, within and after the
transaction of each. What comes later under the same ID finishes, or stops and says why.
"""

from __future__ import annotations

import dataclasses
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sshop.core.events import Event
from sshop.core.operation import Category, Operation, State
from sshop.ledger.sqlite import SqliteLedger
from tests.support.counter import Counter
from tests.support.killed import MOMENTS
from tests.support.program import Done, Program
from tests.support.sample import sample
from tests.support.sshd import Sshd

ENTRIES = {"add": "append_only", "settle": "convergent", "wipe": "destructive", "see": "read_only"}


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    moment: str
    number: int
    type: str

    def __str__(self) -> str:
        return f"{self.moment} {self.number} ({self.type})"


class Desk:
    """One ledger, one effect, and the program that works on them."""

    def __init__(self, sshd: Sshd, folder: Path, entry: str, then: str = ":") -> None:
        folder.mkdir()
        self.program = Program(folder, sshd.ssh_config_path)
        self.op = f"op-{folder.name}"
        self.count = Counter(sshd.home() / f"count-{folder.name}")
        self.alias = sshd.accounts[sshd.user].alias
        then = then.replace("HOLD", self.count.hold)
        self.words = ("run", self.alias, entry, f"path={self.count.path}", f"then={then}", "--op", self.op)

    def run(self, *more: str) -> Done:
        return self.program(*self.words, *more)

    def replay(self) -> Done:
        return self.program("replay", self.op)

    def killed(self, moment: str, which: int | str, *words: str) -> bool:
        """Whether the program, told to die there, did."""
        process = subprocess.run(
            [sys.executable, "-m", "tests.support.killed", moment, str(which), *words],
            env=self.program.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return process.returncode == -signal.SIGKILL

    def events(self) -> list[Event]:
        if not self.program.ledger.exists():
            return []
        ledger = SqliteLedger.open(self.program.ledger)
        try:
            return list(ledger.events())
        finally:
            ledger.close()

    def operation(self) -> Operation | None:
        ledger = SqliteLedger.open(self.program.ledger)
        try:
            return ledger.operation(self.op)
        finally:
            ledger.close()

    def check_ledger(self) -> None:
        """The chain is whole, and the projections are what the events yield."""
        ledger = SqliteLedger.open(self.program.ledger)
        try:
            found = ledger.verify()
            assert found.ok, found.fault
            before = projections(self.program.ledger)
            ledger.rebuild()
            assert projections(self.program.ledger) == before
        finally:
            ledger.close()


def projections(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        found = {table: sorted(map(repr, connection.execute(f"SELECT * FROM {table}"))) for table in tables}
    connection.close()
    return found


class Desks:
    """A fresh one for each point; the host is the same."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self.sshd, self.folder, self.made = sshd, folder, 0

    def fresh(self, entry: str, then: str = ":") -> Desk:
        self.made += 1
        return Desk(self.sshd, self.folder / f"d{self.made}", entry, then)


@pytest.fixture
def desks(sshd: Sshd, tmp_path: Path) -> Desks:
    return Desks(sshd, tmp_path)


def points_of(events: list[Event], skip: int = 0) -> list[Point]:
    """Every event that the program wrote after the first `skip`, at each moment of its transaction."""
    return [Point(moment, number, event.type) for number, event in enumerate(events[skip:], 1) for moment in MOMENTS]


@pytest.mark.parametrize("later", ["run", "replay"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_run_is_killed_at_every_event(desks: Desks, entry: str, later: str) -> None:
    whole = desks.fresh(entry)
    assert whole.run().code == 0
    points = points_of(whole.events())
    types = [event.type for event in whole.events()]
    assert {"intent.created", "attempt.opened", "attempt.dispatched", "boundary.seen", "operation.resolved"} <= {*types}
    chosen = sample(points, 3, salt=f"{entry} {later}")
    tried = 0
    for point in chosen:
        desk = desks.fresh(entry)
        assert desk.killed(point.moment, point.number, *desk.words), f"{point} was never reached"
        tried += 1
        try:
            honest(desk)
            before = desk.events()
            finished(desk, entry, desk.run() if later == "run" or desk.operation() is None else desk.replay(), before)
        except AssertionError as error:
            raise AssertionError(f"killed {point}: {error}") from error
    assert tried == len(chosen)
    print(f"{entry}, then {later}: {len(points)} points of {len(types)} events counted, {tried} tried")


# Where `run` was killed decides what `replay` finds: nothing dispatched, no marker, or a result.
FOUND = {"nothing dispatched": "attempt.opened", "no marker": "attempt.dispatched", "a result": "boundary.seen"}


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("entry", ["add", "settle"])
def test_replay_is_killed_at_every_event(desks: Desks, entry: str, found: str) -> None:
    def prepared() -> Desk:
        desk = desks.fresh(entry)
        assert desk.killed("after", FOUND[found], *desk.words)
        return desk

    whole = prepared()
    skip = len(whole.events())
    assert whole.replay().code == 0
    points = points_of(whole.events(), skip)
    assert points
    chosen = sample(points, 2, salt=f"replay {entry} {found}")
    tried = 0
    for point in chosen:
        desk = prepared()
        assert desk.killed(point.moment, point.number, "replay", desk.op), f"{point} was never reached"
        tried += 1
        try:
            honest(desk)
            before = desk.events()
            finished(desk, entry, desk.replay(), before)
        except AssertionError as error:
            raise AssertionError(f"killed {point}: {error}") from error
    assert tried == len(chosen)
    print(f"replay of {entry} with {found}: {len(points)} points counted, {tried} tried")


def honest(desk: Desk) -> None:
    """What the ledger of a dead runner says holds on the host."""
    operation = desk.operation()
    effects = desk.count.count
    if operation is None:
        assert effects == 0, "it ran without an intent"
        return
    if operation.category != Category.READ_ONLY:
        assert effects <= 1
    evidence = [event for event in desk.events() if event.type in ("response.received", "remote_record.found")]
    if operation.resolved:
        assert evidence, f"{operation.state} without evidence"
        assert effects == 1, f"{operation.state} with {effects} effects"
    else:
        assert operation.state in (State.OPEN, State.UNKNOWN)
    if effects:
        assert any(event.type == "attempt.dispatched" for event in desk.events()), "it ran before it was dispatched"


def finished(desk: Desk, entry: str, done: Done, before: list[Event]) -> None:
    """The later call finished the operation, or stopped where a person must decide, and edited nothing."""
    operation = desk.operation()
    assert operation is not None
    effects = desk.count.count
    resolved_before = any(event.type == "operation.resolved" for event in before)
    if ENTRIES[entry] == Category.DESTRUCTIVE and not operation.resolved:
        assert (done.code, effects) == (5, 0), f"exit {done.code}, {effects} effects: {done.text}"
        assert operation.refusal == "approval_required"
    else:
        assert done.code == 0, f"exit {done.code}: {done.text}"
        assert operation.state == State.SUCCEEDED
        assert effects == 1 or (ENTRIES[entry] == Category.READ_ONLY and effects >= 1), f"{effects} effects"
    after = desk.events()
    assert [event.hash for event in after[: len(before)]] == [event.hash for event in before]
    for attempt in operation.attempts:
        assert attempt.closed_at is not None, f"{attempt.attempt_id} is open"
        if attempt.number > 1:
            assert None not in (attempt.retry_of_attempt_id, attempt.retry_reason, attempt.retry_decision)
    closed = [event.attempt_id for event in after if event.type == "attempt.closed"]
    assert sorted(closed) == sorted({*closed}), "an attempt was closed twice"
    assert resolved_before or operation.resolved or operation.refusal
    desk.check_ledger()
    again = desk.run()
    if operation.resolved:
        assert again.code == 0, again.text
        assert desk.count.count == effects, "asked again, it ran again"


def test_021_the_runner_is_killed_before_sending_after_the_claim_and_after_the_result(desks: Desks) -> None:
    desk = desks.fresh("add")
    assert desk.killed("after", "attempt.opened", *desk.words)
    assert desk.count.count == 0
    assert desk.run().code == 0
    assert desk.count.count == 1
    first, second = desk.operation().attempts
    assert (first.dispatch_state, second.retry_of_attempt_id) == ("not_sent", first.attempt_id)

    desk = desks.fresh("add", then="HOLD")
    assert desk.killed("after", "boundary.seen", *desk.words)
    assert desk.run("--wait", "0").code == 6
    desk.count.release()
    assert desk.run().code == 0
    assert desk.count.count == 1

    desk = desks.fresh("add", then="echo out; exit 3")
    assert desk.killed("before", "response.received", *desk.words)
    ended = desk.run("--json")
    assert (ended.code, ended.json["replayed"], ended.json["exit_status"]) == (1, True, 3)
    assert ended.json["stdout"] == "out\n"
    assert desk.count.count == 1
