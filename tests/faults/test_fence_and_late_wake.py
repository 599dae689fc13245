"""A fenced operation never runs, also when its request arrives after the fence; a runner that was stopped and wakes
late sends nothing.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from sshop.conversation import Conversation
from sshop.core.operation import DispatchState, State
from tests.support.program import Inside, Program, finish
from tests.support.relay import Relay
from tests.support.sshd import Sshd

# Stops itself at the step that is named, as an overloaded or suspended machine would, and then goes on as the program.
STOPPING = """
import os, signal, sys
from sshop.conversation import Conversation
from sshop.logbook import Logbook
step = sys.argv.pop(1)
def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
if step == "before dispatched":
    dispatch = Logbook.dispatch
    def stopping(*arguments):
        stop()
        return dispatch(*arguments)
    Logbook.dispatch = stopping
else:
    go = Conversation.go
    async def stopping(talk):
        if talk._request.verb == "run":
            stop()
        await go(talk)
    Conversation.go = stopping
from sshop.cli.entry import main
sys.exit(main())
"""


def wait_stopped(pid: int) -> None:
    for _ in range(2000):
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return
        time.sleep(0.005)
    raise TimeoutError(pid)


def wait_silent(sshd: Sshd) -> None:
    for _ in range(1000):
        if not sshd.sessions() and not sshd.commands():
            return
        time.sleep(0.01)
    raise AssertionError(sshd.commands())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, relay: Relay) -> list[str]:
    """The first `go` of a run is held on the line; what is held has its nonce here."""
    original, first = Conversation.go, []

    async def go(talk: Conversation) -> None:
        if talk._request.verb == "run" and not first:
            first.append(talk._request.nonce)
            relay.hold()
        await original(talk)

    monkeypatch.setattr(Conversation, "go", go)
    return first


@pytest.fixture
def inside(sshd: Sshd, relay: Relay, tmp_path: Path):
    made = Inside(tmp_path, sshd.write_ssh_config(relay.port))
    yield made
    made.close()


async def test_a_delayed_request_runs_where_nobody_fenced_it(sshd: Sshd, relay: Relay, inside: Inside, held: list[str]):
    """Without which the next test would show nothing."""
    counter = sshd.counter()
    host = sshd.accounts[sshd.user].alias
    lost = await inside.run(host, "add", f"path={counter.path}", recover="none")
    assert lost.code == 5
    assert counter.count == 0
    relay.release()
    counter.wait_for(1)
    found = await inside.replay(lost.operation.operation_id)
    assert found.code == 0
    assert found.operation.replayed
    assert counter.count == 1


async def test_a_fenced_operation_never_runs_though_its_request_arrives_after_the_fence(
    sshd: Sshd, relay: Relay, inside: Inside, held: list[str]
):
    counter = sshd.counter()
    host = sshd.accounts[sshd.user].alias
    words = ("add", f"path={counter.path}")
    lost = await inside.run(host, *words, recover="none")
    name = lost.operation.operation_id
    assert lost.operation.state == State.UNKNOWN
    fenced = await inside.fence(name)
    assert fenced.operation.state == State.CANCELLED
    relay.release()
    wait_silent(sshd)
    assert counter.count == 0
    marker = next(sshd.home().glob(f".sshop/m-*/markers/{name}+1")).read_text()
    assert "\nfenced " in marker
    assert "claimed" not in marker
    for again in (await inside.replay(name), await inside.run(host, *words, op=name)):
        assert again.code == 13
        assert again.operation.state == State.CANCELLED
    assert counter.count == 0
    fresh = await inside.run(host, *words)
    assert fresh.code == 0
    assert counter.count == 1
    inside.verify()


@pytest.fixture
def program(sshd: Sshd, tmp_path: Path) -> Program:
    return Program(tmp_path, sshd.ssh_config_path)


@pytest.mark.parametrize("step", ["before dispatched", "before go"])
def test_a_runner_stopped_before_go_and_woken_after_a_fence_does_nothing(sshd: Sshd, program: Program, step: str):
    counter = sshd.counter()
    host = sshd.accounts[sshd.user].alias
    runner = program.start(
        step, "run", host, "add", f"path={counter.path}", "--op", "stopped-1", "--json", script=STOPPING
    )
    wait_stopped(runner.pid)
    fence = program("fence", "stopped-1", "--json")
    assert fence.code == 0, fence.text
    assert fence.json["state"] == "cancelled"
    os.kill(runner.pid, signal.SIGCONT)
    done = finish(runner)
    assert done.code == 13, done
    assert done.json["state"] == "cancelled"
    wait_silent(sshd)
    assert counter.count == 0
    shown = program("show", "stopped-1", "--json").json
    types = [event["type"] for event in shown["events"]]
    if step == "before dispatched":
        assert "attempt.dispatched" not in types
        assert shown["attempts"][0]["dispatch_state"] == DispatchState.NOT_SENT
    else:
        assert shown["attempts"][0]["response"] == "fenced"
    assert program("ledger", "verify").code == 0
    fresh = program("run", host, "add", f"path={counter.path}", "--json")
    assert fresh.code == 0, fresh.text
    assert counter.count == 1


def test_a_runner_stopped_before_go_and_woken_after_another_took_over_does_nothing(sshd: Sshd, program: Program):
    """To others it lives, and so they wait or are refused; once it is taken for dead, it must not act."""
    counter = sshd.counter()
    host = sshd.accounts[sshd.user].alias
    words = ("run", host, "add", f"path={counter.path}", "--op", "stopped-2", "--json")
    runner = program.start("before dispatched", *words, script=STOPPING)
    wait_stopped(runner.pid)
    waiting = program(*words, "--wait", "0")
    assert waiting.code in (6, 8), waiting
    refused = program("replay", "stopped-2", "--json")
    assert refused.code == 12, refused
    assert counter.count == 0
    os.kill(runner.pid, signal.SIGCONT)
    done = finish(runner)
    assert done.code == 0, done
    assert counter.count == 1
