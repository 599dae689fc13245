"""`become`: a real sudo with its own sudoers and accounts in a private mount, and stub programs (case 062)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guard.rooms import Room
from tests.guard.test_claim import leader, start
from tests.guard.wire import Request, Store, mint
from tests.support.counter import Counter
from tests.support.tools import require_root, require_tool

AGENT, TARGET = 23501, 23502
WIDE = "agent ALL=(target) NOPASSWD: ALL"
MakeHost = Callable[..., Store]


@pytest.fixture
def host(open_path: Path, room: Callable[..., Room]) -> MakeHost:
    """A host with the accounts agent and target, whose sudoers hold the given lines; the guard runs as agent."""
    require_root()
    require_tool("sudo")

    def make(rules: str, shell: str = "dash") -> Store:
        etc = open_path / "etc"
        etc.mkdir()
        accounts = (("root", 0), ("agent", AGENT), ("target", TARGET))
        (etc / "passwd").write_text("".join(f"{n}:x:{u}:{u}::/:/bin/sh\n" for n, u in accounts))
        (etc / "group").write_text("".join(f"{n}:x:{u}:\n" for n, u in accounts))
        (etc / "shadow").write_text("".join(f"{n}:*:19000:0:99999:7:::\n" for n, u in accounts))
        (etc / "sudoers").write_text(f"root ALL=(ALL) ALL\nDefaults secure_path=/usr/bin:/bin\n{rules}\n")
        (etc / "sudoers").chmod(0o440)
        here = room(
            "".join(f"mount --bind {etc}/{name} /etc/{name}; " for name in ("passwd", "group", "shadow", "sudoers"))
        )
        home = open_path / "home"
        home.mkdir()
        ids = ["--reuid", str(AGENT), "--regid", str(AGENT), "--clear-groups"]
        store = Store(home / ".sshop", shell, [*here.prefix, "setpriv", *ids])
        for path in [home, *home.rglob("*")]:
            os.lchown(path, AGENT, AGENT)
        store.env["HOME"] = str(home)
        store.room = here  # type: ignore[attr-defined]
        return store

    return make


def test_the_command_runs_as_the_other_user_with_all_it_was_given(host, shell):
    store = host(WIDE, shell)
    request = Request(
        op=mint(),
        argv=[
            b"/bin/sh",
            b"-c",
            b'id -u; pwd; printf "%s|%s|%s|%s|" "$FOO" "$TOKEN" "$OPERATION_ID" "$1"; cat; exit 3',
            b"x",
            b"\xff'\n",
        ],
        env={"FOO": b"a'b\nc \xfe\\n", "UID": b"7"},
        secret={"TOKEN": b"S3CR3T\n\n\x81"},
        cwd=b"/usr",
        stdin=b"in\0put",
        user="target",
    )
    answer = store.ask(request, ack=True)
    assert answer.result["status"] == "3", (answer.lines, answer.err)
    wanted = (
        f"{TARGET}\n/usr\n".encode() + b"a'b\nc \xfe\\n|S3CR3T\n\n\x81|" + request.op.encode() + b"|\xff'\n|in\0put"
    )
    assert answer.out == wanted
    assert " user=target ;\n" in store.text(request.op)
    assert store.marker(request.op).stat().st_uid == AGENT
    for path in store.root.rglob("*"):
        if path.is_file() and path.suffix != ".out":
            assert b"S3CR3T" not in path.read_bytes()
    assert list((store.base / "spool").iterdir()) == []
    assert store.ask(request).result["own"] == "0"


def test_where_sudo_refuses_nothing_is_claimed(host, open_path):
    counter = Counter(open_path / "count")
    store = host("")
    request = Request(op=mint(), argv=[part.encode() for part in counter.argv()], user="target")
    answer = store.ask(request)
    assert answer.refusal == "no_become"
    assert answer.get("no")["claim"] == "none"
    assert "sudo" in answer.get("no")["msg"]
    assert not store.marker(request.op).exists()
    assert counter.count == 0


def test_a_narrow_rule_is_enough_for_a_plain_command(host, open_path):
    store = host("agent ALL=(target) NOPASSWD: /usr/bin/id -u")
    answer = store.ask(Request(op=mint(), argv=[b"/usr/bin/id", b"-u"], user="target"))
    assert answer.result["status"] == "0", answer.lines
    assert answer.out == f"{TARGET}\n".encode()
    assert store.ask(Request(op=mint(), argv=[b"/usr/bin/id", b"-g"], user="target")).refusal == "no_become"
    assert (
        store.ask(Request(op=mint(), argv=[b"/usr/bin/id", b"-u"], user="target", env={"A": b"1"})).refusal
        == "no_become"
    )


def test_a_folder_that_the_other_user_cannot_enter_is_refused_before_the_claim(host, open_path):
    (open_path / "closed").mkdir(mode=0o700)
    store = host(WIDE)
    request = Request(op=mint(), argv=[b"true"], user="target", cwd=os.fsencode(open_path / "closed"))
    answer = store.ask(request)
    assert answer.refusal == "no_cwd"
    assert not store.marker(request.op).exists()


def test_a_folder_that_only_the_other_user_can_enter_is_good(host, open_path):
    (open_path / "own").mkdir(mode=0o700)
    os.chown(open_path / "own", TARGET, TARGET)
    answer = host(WIDE).ask(Request(op=mint(), argv=[b"pwd"], user="target", cwd=os.fsencode(open_path / "own")))
    assert answer.out == os.fsencode(open_path / "own") + b"\n"


def test_the_condition_is_asked_as_the_other_user(host, open_path):
    store = host(WIDE)
    answer = store.ask(
        Request(
            op=mint(),
            argv=[b"/bin/sh", b"-c", b"id -u >" + os.fsencode(open_path) + b"/flag"],
            condition=[b"/bin/sh", b"-c", f"[ $(id -u) = {TARGET} ] && [ -e {open_path}/flag ]".encode()],
            category="convergent",
            user="target",
        )
    )
    assert (answer.result["before"], answer.result["status"], answer.result["after"]) == ("1", "0", "0")
    assert (open_path / "flag").read_text() == f"{TARGET}\n"


@pytest.mark.parametrize("defaults", ["", "Defaults use_pty\n", "Defaults log_output\n"], ids=["plain", "pty", "log"])
def test_the_limit_reaches_the_other_users_group(host, open_path, defaults):
    counter = Counter(open_path / "count")
    store = host(defaults + WIDE)
    request = Request(
        op=mint(),
        argv=[b"/bin/sh", b"-c", b"(sleep 3; " + counter.shell.encode() + b") & sleep 60"],
        user="target",
        control=[b"L 1"],
    )
    begun = time.monotonic()
    answer = store.ask(request)
    assert answer.result["killed"] == "timeout", answer.lines
    assert answer.result["limit"] == "enforced"
    assert time.monotonic() - begun < 8
    time.sleep(3)
    assert counter.count == 0


def test_where_signals_are_refused_it_says_so_and_stays_running(host, open_path):
    store = host("agent ALL=(target) NOPASSWD: /usr/bin/sleep 3")
    op = mint()
    channel = start(store, Request(op=op, argv=[b"/usr/bin/sleep", b"3"], user="target", control=[b"L 1"]))
    channel.read("started")
    time.sleep(1.7)
    assert store.ask(Request("inquire", op, control=[b"P 0"])).words[1] == "running"
    channel.read("end")
    answer = channel.close()
    assert answer.result["limit"] == "not_enforced"
    assert answer.result["status"] == "0"
    assert store.ask(Request("inquire", op)).result["limit"] == "not_enforced"


def test_cancel_reaches_the_other_users_group(host, open_path):
    store = host(WIDE)
    op = mint()
    channel = start(store, Request(op=op, argv=[b"/bin/sh", b"-c", b"sleep 60; sleep 60"], user="target"))
    channel.read("started")
    leader(store, op)
    time.sleep(0.3)
    answer = store.ask(Request("cancel", op))
    assert answer.result["killed"] == "cancel", answer.lines
    channel.read("end")
    channel.close()


def test_the_other_users_command_is_alive_when_the_supervisor_is_gone(host, open_path):
    store = host(WIDE)
    op = mint()
    channel = start(store, Request(op=op, argv=[b"sleep", b"2"], user="target"))
    channel.read("started")
    leader(store, op)
    time.sleep(0.3)
    guard = int(store.text(op).split(" sup=")[1].split(":")[0])
    os.kill(guard, signal.SIGKILL)
    channel.close()
    assert store.ask(Request("inquire", op, control=[b"P 0"])).words[1] == "running"
    assert store.ask(Request("inquire", op)).get("state")["op"] == "interrupted"


def test_a_command_that_proc_hides_is_alive_too(host, open_path, shell):
    """hidepid: the account sees no process of another user, and none of root's."""
    store = host(WIDE, shell)
    store.room.run("mount -t proc -o hidepid=invisible proc /proc")
    op = mint()
    channel = start(store, Request(op=op, argv=[b"sleep", b"2"], user="target"))
    channel.read("started")
    leader(store, op)
    time.sleep(0.3)
    os.kill(int(store.text(op).split(" sup=")[1].split(":")[0]), signal.SIGKILL)
    channel.close()
    assert store.ask(Request("inquire", op, control=[b"P 0"])).words[1] == "running"
    time.sleep(2)
    assert store.ask(Request("inquire", op)).get("state")["op"] == "interrupted"


STUBS = {
    "waits for a password": ("exec sleep 60 </dev/null", "no_become"),
    "reads all of its input": (
        'cat >/dev/null; while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done; shift; exec "$@" </dev/null',
        None,
    ),
    "wants a terminal": ('echo "sudo: a terminal is required to read the password" >&2; exit 1', "no_become"),
}


@pytest.mark.parametrize("stub", STUBS)
def test_a_strange_sudo_harms_nothing(store, tmp_path, stub):
    """Case 062."""
    counter = Counter(tmp_path / "count")
    script, code = STUBS[stub]
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "sudo").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "stub" / "sudo").chmod(0o755)
    store.env["PATH"] = f"{tmp_path}/stub:{store.env['PATH']}"
    request = Request(
        op=mint(), argv=[part.encode() for part in counter.argv("exit 1")], user="target", control=[b"L 1"]
    )
    answer = store.ask(request)
    assert counter.count == 0
    if code is not None:
        assert answer.refusal == code
        assert not store.marker(request.op).exists()
    assert answer.words[-1] == "end"
    assert store.ask(Request(op=mint(), argv=[b"true"]), ack=True).words[-1] == "acked"
