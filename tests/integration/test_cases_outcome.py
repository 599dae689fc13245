"""Field cases of group A: what does "it ended" mean?"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sshop.core.operation import DispatchState, State
from sshop.ports import Limits
from tests.support.program import Inside, Program
from tests.support.relay import Relay
from tests.support.ssh_client import rude_server
from tests.support.sshd import Sshd


@pytest.fixture
def program(sshd: Sshd, tmp_path: Path) -> Program:
    return Program(tmp_path, sshd.ssh_config_path)


@pytest.fixture
def inside(sshd: Sshd, tmp_path: Path) -> Iterator[Inside]:
    made = Inside(tmp_path, sshd.ssh_config_path)
    yield made
    made.close()


def host_of(sshd: Sshd) -> str:
    return sshd.accounts[sshd.user].alias


@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_a_lost_connection_is_no_exit_status(sshd: Sshd, program: Program, how: str):
    """Case 001: the connection ends, or falls silent, while a destructive command runs."""
    counter = sshd.counter()
    runner = program.start(
        "run", host_of(sshd), "wipe", f"path={counter.path}", "then=sleep 2; exit 0",
        "--recover", "none", "--dead-after", "1", "--op", "case-1", "--json",
    )  # fmt: skip
    counter.wait_for(1)
    begun = time.monotonic()
    if how == "cut":
        sshd.kill_sessions()
    else:
        sshd.freeze_sessions()
    stdout, stderr = runner.communicate(timeout=20)
    assert time.monotonic() - begun < 5
    assert runner.returncode == 5, stderr
    assert b'"exit_status": null' in stdout
    shown = program("show", "case-1", "--json").json
    assert shown["operation"]["state"] == "unknown"
    assert shown["attempts"][0]["dispatch_state"] == "sent_no_response"
    assert [event["body"] for event in shown["events"] if "status" in event["body"]] == []
    sshd.kill_sessions()
    found = program("reconcile", "case-1", "--wait", "10", "--json")
    assert found.code == 0, found.text
    assert found.json["operation"]["state"] == "succeeded"
    assert found.json["operation"]["exit_status"] == 0
    assert counter.count == 1


@pytest.mark.parametrize("status", [255, 254, 127, 126, 1])
async def test_any_exit_status_of_the_command_is_the_commands(sshd: Sshd, inside: Inside, status: int):
    """Case 002: 255 is what the ssh program says of its own failures, 127 and 126 what shells say of theirs."""
    counter = sshd.counter()
    ended = await inside.run(host_of(sshd), "add", f"path={counter.path}", f"then=echo done; exit {status}", tries=3)
    assert ended.code == 1
    assert ended.operation.state == State.FAILED
    assert ended.json["exit_status"] == status
    assert ended.answer.stdout == b"done\n"
    assert len(ended.operation.attempts) == 1
    assert counter.count == 1


async def test_a_limit_covers_the_opening_of_the_channel(sshd: Sshd, inside: Inside):
    """Case 006: the connection stands, and its server is frozen. The dead connection is dropped; a next call works."""
    counter = sshd.counter()
    host = host_of(sshd)
    inside.limits = Limits(channel=2.0, login=2.0)
    line = inside.line(host)
    await line.connect()
    await (
        await line.channel(install=True)
    ).close()  # sshd forks for the session after it has said that the login is good
    sshd.freeze_sessions()
    begun = time.monotonic()
    words = ("add", f"path={counter.path}")
    ended = await inside.run(host, *words, line=line, recover="none")
    assert time.monotonic() - begun < 3.5
    assert ended.code == 8
    assert ended.operation.latest is not None
    assert ended.operation.latest.dispatch_state == DispatchState.NOT_SENT
    again = await inside.run(host, *words, line=line, recover="none")
    assert again.code == 0
    assert again.operation.operation_id == ended.operation.operation_id
    await line.close()
    assert counter.count == 1


def test_a_forced_command_is_not_taken_for_ours(sshd: Sshd, relay: Relay, tmp_path: Path):
    """Case 009: the key runs something else, which says 0."""
    program = Program(tmp_path, sshd.write_ssh_config(relay.port))
    public = sshd.client_key_path.with_suffix(".pub").read_text()
    sshd.authorized_keys_path.write_text(f'command="echo maintenance; exit 0" {public}')
    counter = sshd.counter()
    done = program("run", host_of(sshd), "wipe", f"path={counter.path}", "then=exit 9", "--json")
    assert done.code == 8, done.text
    assert done.json["state"] == "open"
    assert done.json["exit_status"] is None
    assert done.json["error"]["code"] == "not_sent.guard"
    assert "maintenance" in done.json["error"]["message"]
    assert done.json["attempt"]["dispatch_state"] == "not_sent"
    assert relay.connections == 1
    assert counter.count == 0


CUTS_ITS_OWN_LINE = (
    "p=$$; while [ $p -gt 1 ]; do case $(cat /proc/$p/comm) in sshd*) kill -9 $p; break;; esac; "
    "p=$(sed 's/.*) . //; s/ .*//' /proc/$p/stat); done; sleep 0.2; printf x >>count; exit 0"
)


@pytest.mark.parametrize("recover", ["none", "auto"])
def test_a_command_that_cuts_its_own_line(sshd: Sshd, program: Program, recover: str):
    """Case 011: as a reboot or a restart of the network does. No second attempt, and the end is found."""
    begun = time.monotonic()
    done = program(
        "run", host_of(sshd), "--op", "case-11", "--recover", recover, "--json", "--", "sh", "-c", CUTS_ITS_OWN_LINE
    )
    assert time.monotonic() - begun < 10
    if recover == "none":
        assert done.code == 5, done
        assert done.json["state"] == "unknown"
        done = program("reconcile", "case-11", "--wait", "10")
    assert done.code == 0, done
    shown = program("show", "case-11", "--json").json
    assert len(shown["attempts"]) == 1
    assert shown["operation"]["state"] == "succeeded"
    assert shown["operation"]["exit_status"] == 0
    assert sshd.counter().count == 1


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"], ids=["no banner", "banner only"])
def test_a_port_that_says_nothing_ends_within_the_limit(sshd: Sshd, tmp_path: Path, words: bytes):
    """Case 013: the limit is the policy's, and nothing was sent."""
    with rude_server(words) as port:
        program = Program(tmp_path, sshd.write_ssh_config(port))
        (program.policies / "policy.yaml").write_text("limits: {handshake: 1.5}\nnot_sent_tries: 1\n")
        begun = time.monotonic()
        done = program("run", host_of(sshd), "add", "path=/nowhere", "--json")
        assert time.monotonic() - begun < 4
        assert done.code == 8, done.text
        assert done.json["error"]["code"] == "not_sent.timeout"
        assert done.json["attempt"]["dispatch_state"] == "not_sent"
