"""Field cases of groups B and J, and 081: second attempts and duplicates, and who may be tried again."""

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sshop.attempt import Trial
from sshop.bootstrap import SystemClock
from sshop.core.operation import DispatchState, State
from sshop.core.value import replace
from sshop.ports import Limits
from tests.support.counter import Counter
from tests.support.process import send
from tests.support.program import Inside, Program, finish
from tests.support.relay import Relay
from tests.support.sample import WHOLE
from tests.support.sshd import Sshd


@pytest.fixture
def program(sshd: Sshd, tmp_path: Path) -> Program:
    return Program(tmp_path, sshd.ssh_config_path)


@pytest.fixture
def inside(sshd: Sshd, relay: Relay, tmp_path: Path) -> Iterator[Inside]:
    made = Inside(tmp_path, sshd.write_ssh_config(relay.port), limits=Limits(dead_after=2.0))
    yield made
    made.close()


def host_of(sshd: Sshd) -> str:
    return sshd.accounts[sshd.user].alias


def marker_of(sshd: Sshd, operation_id: str) -> Path | None:
    return next(sshd.home().glob(f".sshop/m-*/markers/{operation_id}+1"), None)


# -- 014 ---------------------------------------------------------------------------------------------------------------


async def test_a_cut_before_the_request_may_be_tried_again(sshd: Sshd, relay: Relay, inside: Inside):
    """Case 014 (a): a destructive command that fails with 4; the line goes before anything could act."""
    counter = sshd.counter()
    relay.arm(at=1500, direction="up", action="rst")
    ended = await inside.run(host_of(sshd), "wipe", f"path={counter.path}", "then=exit 4", tries=3)
    assert relay.fired.is_set()
    assert ended.code == 1
    assert ended.json["exit_status"] == 4
    assert [attempt.dispatch_state for attempt in ended.operation.attempts] == ["not_sent", "response_received"]
    assert ended.operation.attempts[1].retry_reason == "connection_not_established"
    assert ended.operation.attempts[1].retry_decision == "nothing_dispatched"
    assert counter.count == 1


@pytest.mark.parametrize("recover", ["none", "auto"])
async def test_a_cut_when_the_claim_appears_is_unknown_and_never_run_again(
    sshd: Sshd, relay: Relay, inside: Inside, recover: str
):
    """Case 014 (b)."""
    counter = sshd.counter()
    relay.act_when(lambda: marker_of(sshd, "case-14") is not None)
    words = ("wipe", f"path={counter.path}", "then=sleep 0.3; exit 4")
    ended = await inside.run(host_of(sshd), *words, op="case-14", tries=3, recover=recover)
    assert relay.fired.is_set()
    if recover == "none":
        assert ended.code == 5
        assert ended.operation.state == State.UNKNOWN
        ended = await inside.look("case-14", wait_s=None)
    assert ended.operation.state == State.FAILED
    assert ended.operation.result is not None
    assert ended.operation.result.status == 4
    assert len(ended.operation.attempts) == 1
    assert counter.count == 1


async def test_a_cut_after_the_result_is_on_disk_is_found_by_looking(
    sshd: Sshd, relay: Relay, inside: Inside, monkeypatch: pytest.MonkeyPatch
):
    """Case 014 (c): the bytes of the result never reach the client."""
    counter = sshd.counter()
    see, held = Trial._see, []

    def seeing(trial: Trial, batch: list) -> None:
        see(trial, batch)
        if not held and any(frame.word == "started" for frame in batch):
            held.append(True)
            relay.hold()
            relay.act_when(lambda: b"\noutput " in (marker_of(sshd, "case-14") or Path("/dev/null")).read_bytes())

    monkeypatch.setattr(Trial, "_see", seeing)
    words = ("wipe", f"path={counter.path}", "then=sleep 0.2; echo out; exit 4")
    ended = await inside.run(host_of(sshd), *words, op="case-14", tries=3)
    assert held
    assert relay.fired.is_set()
    assert ended.code == 1
    assert ended.json["exit_status"] == 4
    assert ended.answer.stdout == b"out\n"
    assert ended.json["replayed"] is True
    assert len(ended.operation.attempts) == 1
    assert counter.count == 1


# -- 016 ---------------------------------------------------------------------------------------------------------------


async def test_an_old_id_is_remembered_and_many_markers_slow_nothing_down(sshd: Sshd, inside: Inside, tmp_path: Path):
    """Case 016: 200 other IDs (whole; else 20), then the first again from a ledger that never saw it; and the time of a
    run with 20,000 markers (whole; else 2,000) beside it.
    """
    whole = bool(os.environ.get(WHOLE))
    host, counter, others = host_of(sshd), sshd.counter(), sshd.counter(name="others")
    words = ("add", f"path={counter.path}", "then=echo first")
    first = await inside.run(host, *words, op="case-16")
    times = []
    for number in range(200 if whole else 20):
        begun = time.perf_counter()
        ended = await inside.run(host, "add", f"path={others.path}", op=f"other-{number}")
        times.append(time.perf_counter() - begun)
        assert ended.code == 0
    marker = marker_of(sshd, "case-16")
    assert marker is not None
    for number in range(20_000 if whole else 2_000):
        planted = marker.with_name(f"planted-{number}+1")
        planted.write_bytes(marker.read_bytes().replace(b"id=case-16 ", b"id=planted-%d " % number)[:4096])
        shutil.chown(planted, sshd.accounts[sshd.user].uid, sshd.accounts[sshd.user].gid)
    later = []
    for number in range(10):
        begun = time.perf_counter()
        await inside.run(host, "add", f"path={others.path}", op=f"later-{number}")
        later.append(time.perf_counter() - begun)
    print(f"a run among few: {statistics.median(times):.3f} s, among many: {statistics.median(later):.3f} s")
    # the median of ten on a machine that may be loaded; a scan of 20,000 markers by a shell would take many seconds
    assert statistics.median(later) < statistics.median(times) * 2
    other = Inside(tmp_path / "other", Path(inside.environ["SSHOP_SSH_CONFIG"]))
    again = await other.run(host, *words, op="case-16")
    other.close()
    assert again.code == 0
    assert again.operation.replayed
    assert again.result == first.result
    assert counter.count == 1


# -- 017, 018, 023 -----------------------------------------------------------------------------------------------------


def test_a_second_request_while_the_first_is_at_work(sshd: Sshd, program: Program, tmp_path: Path):
    """Case 017: an exit code of its own says so, from this ledger and from another; a third call gets the result."""
    counter = sshd.counter()
    words = ("run", host_of(sshd), "add", f"path={counter.path}", "then=sleep 3; exit 3", "--op", "case-17", "--json")
    first = program.start(*words)
    counter.wait_for(1)
    other = Program(tmp_path / "other", sshd.ssh_config_path)
    for second in (program(*words, "--wait", "0"), other(*words, "--wait", "0")):
        assert second.code == 6, second
        assert second.json["state"] == "open"
    done = finish(first)
    assert done.code == 1
    for third in (program(*words), other(*words)):
        assert third.code == 1, third
        assert third.json["exit_status"] == 3
        assert third.json["replayed"] is True
    assert counter.count == 1


def test_one_id_for_two_requests(sshd: Sshd, program: Program, tmp_path: Path):
    """Case 018: one byte is different. Told by this ledger, and by the host to another ledger."""
    counter, other_counter = sshd.counter(), sshd.counter(name="other")
    run = ("run", host_of(sshd), "add", f"path={counter.path}", "--op", "case-18", "--json")
    first = program(*run, "then=echo x")
    assert first.code == 0
    changed = ("run", host_of(sshd), "add", f"path={other_counter.path}", "then=echo x", "--op", "case-18", "--json")
    conflict = program(*changed)
    assert conflict.code == 7, conflict
    other = Program(tmp_path / "other", sshd.ssh_config_path)
    foreign = other(*changed)
    assert foreign.code == 7, foreign
    assert other_counter.count == 0
    again = program(*run, "then=echo x")
    assert again.code == 0
    assert again.json["stdout"] == "x\n"
    shown = program("show", "case-18", "--json").json
    assert shown["operation"]["state"] == "succeeded"
    refused = [event for event in shown["events"] if event["type"] == "retry.refused"]
    assert [event["body"]["refusal"] for event in refused] == ["key_conflict"]
    assert counter.count == 1


@pytest.mark.parametrize("status", [7, 0])
def test_a_stored_failure_is_a_result_like_any_other(sshd: Sshd, program: Program, status: int):
    """Case 023: the second call gives the same status and outputs, marked as a replay."""
    counter = sshd.counter()
    words = (
        "run", host_of(sshd), "add", f"path={counter.path}", f"then=echo out; echo err >&2; exit {status}",
        "--op", "case-23", "--json",
    )  # fmt: skip
    first, second = program(*words), program(*words)
    assert first.code == second.code == (1 if status else 0)
    assert first.json["replayed"] is False
    assert second.json["replayed"] is True
    for name in ("exit_status", "stdout", "stderr", "stdout_sha256", "record_id", "state"):
        assert first.json[name] == second.json[name], name
    assert second.json["exit_status"] == status
    assert (second.json["stdout"], second.json["stderr"]) == ("out\n", "err\n")
    assert counter.count == 1


# -- 094 ---------------------------------------------------------------------------------------------------------------

ENTRIES = {"see": "read_only", "settle": "convergent", "add": "append_only", "wipe": "destructive"}


@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_cut_after_the_claim_is_recovered_by_the_row_of_its_class(
    sshd: Sshd, relay: Relay, inside: Inside, entry: str
):
    """Case 094: the line is cut in mid-run, and the host goes on."""
    counter = sshd.counter()
    relay.act_when(lambda: counter.count == 1)
    ended = await inside.run(host_of(sshd), entry, f"path={counter.path}", "then=sleep 0.4", tries=3)
    assert ended.code == 0, ended.json
    assert ended.operation.category == ENTRIES[entry]
    if entry == "see":
        assert [attempt.retry_decision for attempt in ended.operation.attempts] == [None, "read_only"]
        assert counter.count == 2
    else:
        assert len(ended.operation.attempts) == 1
        assert ended.operation.replayed
        assert counter.count == 1


@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_run_that_died_on_the_host_is_recovered_by_the_row_of_its_class(
    sshd: Sshd, relay: Relay, inside: Inside, entry: str
):
    """Case 094, the harder half: command and supervisor die with the line, so that nobody can say how it ended."""
    counter = sshd.counter()

    def everything_dies() -> bool:
        if counter.count != 1:
            return False
        send(sshd.commands(), 9)
        return True

    relay.act_when(everything_dies)
    words = (entry, f"path={counter.path}", "then=sleep 0.4")
    ended = await inside.run(host_of(sshd), *words, op="case-94", tries=3)
    match entry:
        case "see":
            assert ended.code == 0
            assert counter.count == 2
        case "settle":
            # its condition holds already: the next generation finds that nothing has to run
            assert ended.code == 0, ended.json
            assert counter.count == 1
        case _:
            for again in (ended, await inside.run(host_of(sshd), *words, op="case-94"), await inside.replay("case-94")):
                assert again.code == 5, again.json
                assert again.operation.state == State.UNKNOWN
                assert again.operation.refusal == "unknown_without_deduplication"
                assert again.json["next"]["action"] == "decide"
            assert len(again.operation.attempts) == 1
            assert counter.count == 1
    inside.verify()


# -- 081 ---------------------------------------------------------------------------------------------------------------


class Asleep(SystemClock):
    """Sleeps not, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def test_a_batch_against_a_host_that_is_down(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Case 081: 20 operations with five tries each connect a hundred times, at growing intervals with jitter."""
    counter = Counter(sshd.home() / "count")
    with Relay(1) as relay:
        inside = Inside(tmp_path, sshd.write_ssh_config(relay.port))
        clocks: list[Asleep] = []
        world = inside.world

        def sleepless():
            clocks.append(Asleep())
            return replace(world(), clock=clocks[-1])

        monkeypatch.setattr(inside, "world", sleepless)
        for number in range(20):
            ended = await inside.run(
                host_of(sshd), "add", f"path={counter.path}", "then=:", op=f"case-81-{number}", new=True, tries=5
            )
            assert ended.code == 8
            assert ended.operation.state == State.OPEN
            assert {a.dispatch_state for a in ended.operation.attempts} == {DispatchState.NOT_SENT}
            assert len(ended.operation.attempts) == 5
        inside.close()
        assert relay.connections == 100
    rows = [clock.pauses for clock in clocks]
    assert all(len(row) == 4 for row in rows)
    for step, base in enumerate((0.5, 1.0, 2.0, 4.0)):
        column = [row[step] for row in rows]
        assert all(base * 0.5 <= pause < base * 1.5 for pause in column)
        assert len(set(column)) > 10
    assert max(map(sum, rows)) < 12
    assert counter.count == 0
