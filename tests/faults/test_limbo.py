"""The three faults of LIMBO, as rows: an answer is lost, a request is processed after a check said that it was not, a
request is delivered again later. Beside each row the same through a loop that runs `ssh` until it says 0.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sshop.conversation import Conversation
from sshop.core.operation import State
from sshop.transport.channel import GuardChannel
from tests.support.program import Ended, Inside
from tests.support.relay import Relay
from tests.support.sshd import Sshd
from tests.support.tools import require_tool

THEN = "sleep 0.3; echo done"


class Room:
    """An account, a faulty line to it, and the two ways to ask for one more byte."""

    def __init__(self, sshd: Sshd, relay: Relay, folder: Path) -> None:
        self.sshd, self.relay = sshd, relay
        self.config = sshd.write_ssh_config(relay.port)
        self.user = sshd.user
        self.host = sshd.accounts[self.user].alias
        self.counter = sshd.counter(self.user)
        self.inside = Inside(folder, self.config)

    async def sshop(self) -> Ended:
        return await self.inside.run(self.host, "add", f"path={self.counter.path}", f"then={THEN}", tries=4)

    def naive(self, *, patience: float = 10.0, after_failure: Callable[[], None] = lambda: None, tries: int = 3) -> int:
        """How often it took until `ssh` said 0."""
        argv = [require_tool("ssh"), "-F", str(self.config), self.host, f"{self.counter.shell}; {THEN}"]
        for number in range(1, tries + 1):
            try:
                done = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False
                )
            except subprocess.TimeoutExpired:
                done = None
            if done is not None and done.returncode == 0:
                return number
            after_failure()
        raise AssertionError("it never said 0")

    def settle(self) -> None:
        """Whatever was delayed has been processed."""
        for _ in range(1000):
            if not self.sshd.sessions() and not self.sshd.commands():
                return
            subprocess.run(["sleep", "0.01"], check=True)
        raise AssertionError(self.sshd.commands())

    def check(self, ended: Ended) -> None:
        """One effect, known as such, once everything that was on its way has arrived."""
        self.settle()
        assert ended.code == 0
        assert ended.operation.state == State.SUCCEEDED
        assert ended.answer.stdout == b"done\n"
        assert self.counter.count == 1
        self.inside.verify()
        self.inside.close()


@pytest.fixture
def room(sshd: Sshd, relay: Relay, tmp_path: Path) -> Room:
    return Room(sshd, relay, tmp_path)


# -- the answer is lost ------------------------------------------------------------------------------------------------


async def test_answer_lost_one_effect(room: Room):
    room.relay.act_when(lambda: room.counter.count == 1)
    ended = await room.sshop()
    assert room.relay.fired.is_set()
    assert ended.operation.replayed
    room.check(ended)


def test_answer_lost_through_a_retry_loop_two_effects(room: Room):
    room.relay.act_when(lambda: room.counter.count == 1)
    assert room.naive() == 2
    room.settle()
    assert room.counter.count == 2


# -- processing is delayed past a check --------------------------------------------------------------------------------


def slow_once(room: Room) -> Path:
    """The host takes its time with the next command, until the file that is returned is there."""
    home = room.sshd.home(room.user)
    (home / ".ssh").mkdir(exist_ok=True)
    rc = home / ".ssh" / "rc"
    rc.write_text(f"if mkdir {home}/taken 2>/dev/null; then while ! [ -e {home}/now ]; do sleep 0.02; done; fi\n")
    home.chmod(0o777)
    return home / "now"


async def test_processing_delayed_before_the_request_one_effect(room: Room):
    await room.inside.run(room.host, "add", f"path={room.sshd.home(room.user)}/other")
    late = slow_once(room)
    ended = await room.sshop()
    assert room.counter.count == 1
    assert [attempt.dispatch_state for attempt in ended.operation.attempts] == ["not_sent", "response_received"]
    late.touch()
    room.check(ended)


async def test_processing_delayed_after_go_one_effect(room: Room, monkeypatch: pytest.MonkeyPatch):
    """The worst moment: the runner has said `go`, looks, finds nothing, and acts again; then `go` arrives."""
    room.inside.limits = room.inside.limits.__class__(dead_after=1.0)
    original = Conversation.go
    held: list[str] = []

    async def go(talk: Conversation) -> None:
        if talk._request.verb == "run" and not held:
            held.append(talk._request.nonce)
            room.relay.hold()
        await original(talk)

    monkeypatch.setattr(Conversation, "go", go)
    ended = await room.sshop()
    assert room.counter.count == 1
    assert [attempt.dispatch_state for attempt in ended.operation.attempts] == ["sent_no_response", "response_received"]
    assert ended.operation.attempts[1].retry_decision == "destination_idempotency_confirmed"
    room.relay.release()
    room.check(ended)


def test_processing_delayed_through_a_retry_loop_two_effects(room: Room):
    """The loop even looks before it acts again."""
    late = slow_once(room)

    def look() -> None:
        assert room.counter.count == 0

    assert room.naive(patience=1.0, after_failure=look) == 2
    assert room.counter.count == 1
    late.touch()
    room.counter.wait_for(2)
    room.settle()
    assert room.counter.count == 2


# -- the request is delivered again later ------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the ack", "after the ack"])
async def test_request_delivered_again_one_effect(room: Room, monkeypatch: pytest.MonkeyPatch, when: str):
    """To the byte, nonce included, and three times."""
    original = GuardChannel.send
    sent: list[bytes] = []

    async def send(channel: GuardChannel, data: bytes) -> None:
        sent.append(data)
        await original(channel, data)

    async def no_ack(_: Conversation) -> bool:
        return False

    with monkeypatch.context() as patch:
        if when == "before the ack":
            patch.setattr(Conversation, "acknowledge", no_ack)
        await room.inside.run(room.host, "add", f"path={room.sshd.home(room.user)}/other")
        sent.clear()
        patch.setattr(GuardChannel, "send", send)
        ended = await room.sshop()
    guard = next(room.sshd.home(room.user).glob(".sshop/guard/*"))
    request = b"".join(sent).removesuffix(b"ack\n")
    for _ in range(3):
        again = room.sshd.ssh(room.user, f"/bin/sh ~/.sshop/guard/{guard.name}", data=request)
        assert b" own=0 " in again.stdout
        assert b"done\n" in again.stdout
    room.check(ended)


async def test_request_made_again_by_an_agent_that_lost_its_ledger_one_effect(room: Room, tmp_path: Path):
    ended = await room.sshop()
    other = Inside(tmp_path / "other", room.config)
    again = await other.run(
        room.host, "add", f"path={room.counter.path}", f"then={THEN}", op=ended.operation.operation_id
    )
    assert again.code == 0
    assert again.operation.replayed
    assert again.result == ended.result
    other.close()
    room.check(ended)


def test_request_delivered_again_through_a_retry_loop_two_effects(room: Room):
    """A queue whose own receipt was lost hands the job out once more."""
    assert room.naive() == 1
    assert room.naive() == 1
    room.settle()
    assert room.counter.count == 2
