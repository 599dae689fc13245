"""Field cases of groups G and H: streams, lifetimes, and getting in."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sshop.core.operation import State
from tests.support.program import Inside, Program, finish
from tests.support.relay import Relay
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


async def test_a_background_process_does_not_hold_the_answer_back(sshd: Sshd, inside: Inside):
    """Case 065: it holds both outputs for a minute; the exit is known at once, to a second attempt too."""
    counter = sshd.counter()
    words = ("add", f"path={counter.path}", "then=sleep 60 & echo started; exit 3")
    begun = time.monotonic()
    first = await inside.run(host_of(sshd), *words, op="case-65")
    second = await inside.run(host_of(sshd), *words, op="case-65")
    assert time.monotonic() - begun < 5
    assert any(process.name == "sleep" for process in sshd.commands())
    for ended in (first, second):
        assert ended.code == 1
        assert ended.json["exit_status"] == 3
        assert ended.answer.stdout == b"started\n"
    assert first.operation.resolution == "the host recorded exit status 3; processes that it left behind still ran"
    assert second.json["replayed"] is True
    assert counter.count == 1


async def test_a_limit_ends_the_command_and_says_so(sshd: Sshd, inside: Inside):
    """Case 067: a limit of a second for a command that acts after three. It is ended on the host, which is recorded."""
    counter = sshd.counter()
    ended = await inside.run(host_of(sshd), "add-late", f"path={counter.path}", "seconds=3")
    assert ended.code == 1
    assert ended.operation.state == State.FAILED
    assert ended.json["timed_out"] is True
    assert ended.json["signal"] == "TERM"
    assert len(ended.operation.attempts) == 1
    await asyncio.sleep(3)
    assert counter.count == 0


def test_a_caller_who_stops_waiting_stops_nothing(sshd: Sshd, program: Program):
    """Case 067, the other way: the caller's time is over, not the command's. Running, and later its result."""
    counter = sshd.counter()
    script = f"sleep 2; {counter.shell}"
    words = ("run", host_of(sshd), "--op", "case-67", "--json", "--wait", "0.5", "--", "sh", "-c", script)
    first = program(*words)
    assert first.code == 6, first
    assert first.json["state"] == "open"
    assert first.json["exit_status"] is None
    assert first.json["next"]["action"] == "attach"
    assert counter.count == 0
    done = program("replay", "case-67", "--json")
    assert done.code == 0, done
    assert counter.count == 1


@pytest.mark.parametrize("limit", [None, 30_000_000])
def test_much_output_on_both_streams(sshd: Sshd, program: Program, limit: int | None):
    """Case 069: 20 MB on each, in turns. What comes is whole, or cut at the policy's limit and marked so; the host
    has all of it.
    """
    if limit is not None:
        (program.policies / "policy.yaml").write_text(f"max_output: {limit}\n")
    counter = sshd.counter()
    piece = "head -c 1000000 /dev/zero | tr '\\0' a"
    loop = f"n=0; while [ $n -lt 20 ]; do {piece}; {piece} >&2; n=$((n+1)); done; exit 6"
    words = ("run", host_of(sshd), "add", f"path={counter.path}", f"then={loop}", "--op", "case-69")
    done = program(*words)
    assert done.code == 1
    whole = 20_000_000
    assert len(done.stdout) == (1 << 20 if limit is None else whole)
    if limit is None:
        assert "output case-69" in done.text[1 << 20 :]
    again = program(*words, "--json").json
    assert again["exit_status"] == 6
    assert (again["stdout_bytes"], again["stderr_bytes"]) == (whole, whole)
    assert again["truncated"] is True
    assert len(again["stdout"]) < whole
    assert program("output", "case-69").stdout == b"a" * whole
    assert counter.count == 1


@pytest.mark.parametrize("stdin", ["terminal", "closed", "null", "loop"])
def test_standard_input_is_at_its_end_and_the_callers_is_not_touched(sshd: Sshd, program: Program, stdin: str):
    """Case 071: a command that reads all of its input, given none."""
    counter = sshd.counter()
    run = [sys.executable, "-m", "sshop.cli.entry", "run", host_of(sshd), "add", f"path={counter.path}"]
    run += ["then=cat; exit 2", "--new"]
    limits = {"env": program.environ, "capture_output": True, "timeout": 20}
    begun = time.monotonic()
    match stdin:
        case "terminal":
            master, slave = pty.openpty()
            os.write(master, b"for somebody else\n")
            done = subprocess.run(run, stdin=slave, check=False, **limits)
            assert os.read(slave, 100) == b"for somebody else\n"
            os.close(master)
            os.close(slave)
        case "closed":
            done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *run], check=False, **limits)
        case "null":
            done = subprocess.run(run, stdin=subprocess.DEVNULL, check=False, **limits)
        case _:
            loop = 'while read -r line; do echo "$line"; "$@"; done; exit 2'
            done = subprocess.run(["sh", "-c", loop, "sh", *run], input=b"1\n2\n", check=False, **limits)
            assert done.stdout == b"1\n2\n"
    assert time.monotonic() - begun < 10
    assert done.returncode == (2 if stdin == "loop" else 1), done
    assert b"2" in done.stderr
    assert counter.count == (2 if stdin == "loop" else 1)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_in_mid_run(sshd: Sshd, program: Program, number: signal.Signals, times: int):
    """Case 073: it leaves at once, says which operation is under way, and a later call gets the result."""
    counter = sshd.counter()
    words = ("run", host_of(sshd), "add", f"path={counter.path}", "then=sleep 2; echo done")
    runner = program.start(*words, "--op", "case-73")
    counter.wait_for(1)
    begun = time.monotonic()
    for _ in range(times):
        runner.send_signal(number)
        time.sleep(0.02)
    done = finish(runner)
    assert time.monotonic() - begun < 2
    assert done.code in (5, 6), done
    assert "case-73" in done.text
    assert "Traceback" not in done.text
    attempt = program("show", "case-73", "--json").json["attempts"][0]
    assert attempt["closed_at"] is not None
    assert attempt["dispatch_state"] == "sent_no_response"
    later = program(*words, "--op", "case-73", "--json")
    assert later.code == 0, later
    assert later.json["stdout"] == "done\n"
    assert counter.count == 1


async def test_more_operations_than_sessions_on_one_connection(tmp_path: Path):
    """Case 075: 12 at once where 10 are allowed, then many in a row. All run once, and no slot is lost."""
    with Sshd(users=["dash"], options={"MaxSessions": "10"}) as server, Relay(server.port) as relay:
        inside = Inside(tmp_path, server.write_ssh_config(relay.port))
        counter = server.counter()
        host = host_of(server)
        await inside.run(host, "add", f"path={server.home() / 'other'}")
        line = inside.line(host)
        runs = [
            inside.run(host, "add", f"path={counter.path}", "then=sleep 2", new=True, tries=8, line=line)
            for _ in range(12)
        ]
        ended = await asyncio.gather(*runs)
        assert [each.code for each in ended] == [0] * 12
        assert counter.count == 12
        refused = [each for each in ended if len(each.operation.attempts) > 1]
        assert len(refused) >= 2
        assert {each.operation.attempts[0].dispatch_state for each in refused} == {"not_sent"}
        assert {each.operation.attempts[1].retry_reason for each in refused} == {"rate_limited"}
        for _ in range(30):
            each = await inside.run(host, "add", f"path={counter.path}", new=True, line=line)
            assert each.code == 0
        await line.close()
        inside.close()
        assert counter.count == 42
        assert relay.connections == 2


def test_an_unknown_host_key_ends_the_program_with_what_to_do(sshd: Sshd, program: Program, tmp_path: Path):
    """Case 077, as the program says it; every kind of key and file is tried in test_transport_host_keys.py."""
    config = sshd.ssh_config_path.read_text().replace(str(sshd.known_hosts_path), str(tmp_path / "known_hosts"))
    (tmp_path / "config").write_text(config)
    counter = sshd.counter()
    stranger = program.with_environ(SSHOP_SSH_CONFIG=str(tmp_path / "config"))
    done = stranger("run", host_of(sshd), "add", f"path={counter.path}", "--json")
    assert done.code == 8, done.text
    assert done.json["error"]["code"] == "not_sent.host_key"
    assert "SHA256:" in done.json["error"]["message"]
    assert str(tmp_path / "known_hosts") in str(done.json["error"])
    assert not (tmp_path / "known_hosts").exists()
    assert counter.count == 0
