"""Hosts that lack a utility (case 032), have a strange `date` (case 049), or little of anything."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import termios
from pathlib import Path

import pytest

from tests.guard.wire import Request, Store, mint
from tests.support.counter import Counter
from tests.support.tools import require_root, require_tool

UTILITIES = [
    "cat", "cp", "env", "head", "ln", "ls", "mkdir", "mv", "rm", "rmdir", "setsid", "sha256sum", "sleep", "sync",
    "tail", "tr", "uname", "wc", "true", "date", "stat", "sh", "printf",
]  # fmt: skip
WORKS_WITHOUT = [
    "cat",
    "cp",
    "env",
    "ls",
    "setsid",
    "sha256sum",
    "sync",
    "tail",
    "tr",
    "uname",
    "date",
    "stat",
    "sleep",
]
NEEDS = ["ln", "mkdir", "head", "wc"]


@pytest.fixture(params=["dash", "bash", "mksh", "zsh"])
def host(tmp_path: Path, request: pytest.FixtureRequest):
    """Makes a host whose /usr/bin holds just the given utilities. BusyBox has all of them within."""
    yield from make_hosts(tmp_path, request.param, with_dash=True)


@pytest.fixture
def yash_alone(tmp_path: Path):
    """The same with yash, and no other shell that the guard could hand over to."""
    yield from make_hosts(tmp_path, "yash", with_dash=False)


def make_hosts(tmp_path: Path, shell: str, *, with_dash: bool):
    require_root()
    require_tool(shell)

    def make(names: list[str]) -> Store:
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in [*names, "nsenter"]:
            shutil.copy2(shutil.which(name), tools / name)
        shutil.copy2("/usr/bin/dash", tools / "sh")
        if with_dash:
            shutil.copy2("/usr/bin/dash", tools / "dash")
        store = Store(tmp_path / ".sshop", shell)
        shutil.copy2(os.path.realpath(f"/usr/bin/{shell}"), tmp_path / "sh")
        mounts = f"mkdir -p {tmp_path}/none; " + "".join(
            f"[ ! -d {folder} ] || mount --bind {source} {folder}; "
            for folder, source in (
                ("/usr/sbin", f"{tmp_path}/none"),
                ("/usr/local/bin", f"{tmp_path}/none"),
                ("/usr/bin", str(tools)),
            )
        )
        # The holder sleeps in the shell itself, since nothing else is sure to be there.
        script = mounts.rstrip("; ") + "; printf 'ready\\n'; read -r _ </proc/self/fd/3"
        made = Bare(script)
        rooms.append(made)
        store.prefix = made.prefix
        store.sh = str(tmp_path / "sh")
        return store

    rooms: list[Bare] = []
    yield make
    for made in rooms:
        made.close()


class Bare:
    """A room in which nothing can be started but what was left there."""

    def __init__(self, script: str) -> None:
        self.read, self.write = os.pipe()
        self.holder = subprocess.Popen(
            [
                "unshare",
                "-m",
                "--propagation",
                "private",
                "sh",
                "-ec",
                script.replace("/proc/self/fd/3", f"/proc/self/fd/{self.read}"),
            ],
            stdout=subprocess.PIPE,
            pass_fds=[self.read],
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        self.prefix = ["nsenter", "-t", str(self.holder.pid), "-m", "--"]

    def close(self) -> None:
        os.close(self.write)
        os.close(self.read)
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


def ask(store: Store, counter: Counter, **request: object):
    """Counts by a builtin, since a bare host has nothing else."""
    argv = [b"/bin/sh", b"-c", f"printf x >>{counter.path}; echo $PATH; exit 3".encode()]
    return store.ask(Request(op=mint(), argv=argv, **request))  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", WORKS_WITHOUT)
def test_it_works_without(host, tmp_path, missing):
    counter = Counter(tmp_path / "count")
    store = host([name for name in UTILITIES if name != missing])
    answer = ask(store, counter)
    assert answer.result["status"] == "3", answer.lines
    assert answer.out == store.env["PATH"].encode() + b"\n"
    assert counter.count == 1
    if missing == "sync":
        assert answer.result["sync"] == "unsynced"
    if missing == "sha256sum":
        assert answer.get("hello")["digest"] == "none"


@pytest.mark.parametrize("missing", NEEDS)
def test_it_says_what_is_missing(host, tmp_path, missing):
    counter = Counter(tmp_path / "count")
    store = host([name for name in UTILITIES if name != missing])
    answer = ask(store, counter)
    assert answer.refusal == "no_tool"
    assert missing in answer.get("no")["msg"]
    assert answer.get("no")["claim"] == "none"
    assert counter.count == 0


def test_nothing_at_all_is_said_too(host, tmp_path):
    counter = Counter(tmp_path / "count")
    answer = ask(host([]), counter)
    assert answer.refusal == "no_tool"
    assert counter.count == 0


def test_an_empty_path_of_the_login_hurts_nobody(store, tmp_path):
    counter = Counter(tmp_path / "count")
    for path in ("", "/nonexistent"):
        store.env["PATH"] = path
        answer = store.ask(
            Request(op=mint(), argv=[part.encode() for part in counter.argv("echo $PATH; exit 3")], new=True)
        )
        assert answer.result["status"] == "3"
        assert answer.out == path.encode() + b"\n"
    assert counter.count == 2


def test_without_a_digest_the_frames_are_compared_whole(host, tmp_path):
    counter = Counter(tmp_path / "count")
    store = host([name for name in UTILITIES if name != "sha256sum"])
    argv = [b"/bin/sh", b"-c", f"printf x >>{counter.path}; exit 3".encode()]
    request = Request(op=mint(), argv=argv)
    assert store.ask(request).result["own"] == "1"
    assert store.ask(request).result["own"] == "0"
    liar = request.head().replace(b"exit 3", b"exit 4")
    channel = store.open(request)
    channel.send(liar)
    channel.read("hello")
    channel.send(b"go %d\n" % liar.count(b"\n"))
    channel.read("end")
    assert channel.close().refusal == "key_conflict"
    assert counter.count == 1


def test_without_setsid_the_limit_still_ends_the_command(host, tmp_path):
    store = host([name for name in UTILITIES if name != "setsid"])
    answer = store.ask(Request(op=mint(), argv=[b"/bin/sleep", b"30"], control=[b"L 1"]))
    assert answer.result["status"] == "143"
    assert answer.result["killed"] == "timeout"


@pytest.mark.parametrize("says", ["Thu Jan  1 00:00:00 UTC 1970", "4070908800", "garbage", "%N", "", "-1"])
def test_what_date_says_changes_nothing(store, tmp_path, room, says):
    """Case 049."""
    counter = Counter(tmp_path / "count")
    stub = tmp_path / "stub" / "date"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\necho '{says}'\n")
    stub.chmod(0o755)
    store.env["PATH"] = f"{stub.parent}:{store.env['PATH']}"
    store.prefix = room(f"mount --bind {stub} /usr/bin/date").prefix
    request = Request(op=mint(), argv=[part.encode() for part in counter.argv("exit 3")])
    answer = store.ask(request)
    assert answer.result["status"] == "3"
    assert int(answer.result["ms"]) >= 0
    assert store.ask(request).result["own"] == "0"
    assert counter.count == 1


def test_a_controlling_terminal_is_left_behind(store, tmp_path):
    """A terminal that goes away would take the command with it."""
    master, slave = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    op = mint()
    request = Request(op=op, argv=[b"/bin/sh", b"-c", b"ps -o tty= -p $$; sleep 0.5; exit 4"])
    channel = store.open(request, preexec_fn=take_terminal, start_new_session=False)
    head = request.head()
    channel.send(head)
    channel.read("hello")
    channel.send(b"go %d\n" % head.count(b"\n"))
    channel.read("started")
    os.close(slave)
    os.close(master)
    channel.read("end")
    answer = channel.close()
    assert answer.result["status"] == "4"
    assert answer.out.strip() == b"?"


def test_yash_alone_runs_what_it_can_hold_and_nothing_else(yash_alone, tmp_path):
    """It keeps text as characters: a byte that is none ends the reading of the request."""
    counter = Counter(tmp_path / "count")
    store = yash_alone([*UTILITIES, "["])  # its own are there only where the programs are
    assert ask(store, counter).result["status"] == "3"
    assert counter.count == 1
    answer = ask(store, counter, env={"A": b"\xff"})
    assert "claimed" not in answer.words
    assert counter.count == 1
