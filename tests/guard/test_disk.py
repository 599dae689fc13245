"""What the disk may do to a store: full, read-only, noexec, of another owner, without links; in private mounts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guard.rooms import Room
from tests.guard.wire import SHELLS, Request, Store, mint
from tests.support.counter import Counter
from tests.support.tools import require_root

MakeRoom = Callable[..., Room]


class Tiny(Store):
    """A store on a file system of its own, mounted in a room; the guard itself stands on it too."""

    def __init__(self, tmp_path: Path, room: Room, shell: str) -> None:
        super().__init__(tmp_path / "home" / ".sshop", shell, room.prefix)
        self.room = room

    @property
    def base(self) -> Path:
        [base] = list(self.room.path(self.root).glob("m-*"))
        return base


@pytest.fixture
def tiny(tmp_path: Path, shell: str, room: MakeRoom) -> Callable[[str], Tiny]:
    def make(options: str) -> Tiny:
        home = tmp_path / "home"
        home.mkdir()
        Store(home / ".sshop", shell)
        kept = tmp_path / "kept"
        os.rename(home, kept)
        home.mkdir()
        made = room(f"mount -t tmpfs -o {options} tmpfs {home}; cp -a {kept}/. {home}")
        return Tiny(tmp_path, made, shell)

    return make


def fill(store: Tiny, *, inodes: bool = False) -> None:
    home = store.room.path(store.root.parent)
    try:
        for number in range(100_000):
            with open(home / f"fill-{number}", "wb") as file:
                if not inodes:
                    for size in (65536, 4096, 512, 1):
                        try:
                            while True:
                                file.write(b"x" * size)
                                file.flush()
                        except OSError:
                            continue
                    return
    except OSError:
        return


def drain(store: Tiny) -> None:
    for path in store.room.path(store.root.parent).glob("fill-*"):
        path.unlink()


@pytest.mark.parametrize("what", ["bytes", "inodes"])
@pytest.mark.parametrize("met", [False, True], ids=["a new host", "a known host"])
def test_a_full_disk_claims_nothing_and_afterwards_it_runs_once(tiny, tmp_path, what, met):
    """Case 034."""
    counter = Counter(tmp_path / "count")
    store = tiny("size=1m,nr_inodes=100")
    if met:
        assert store.ask(Request("fence", mint())).words[-2] == "fenced"
    fill(store, inodes=what == "inodes")
    request = Request(op=mint(), argv=[part.encode() for part in counter.argv("exit 3")])
    answer = store.ask(request)
    assert answer.refusal == "no_space", answer.lines
    assert "space" in answer.get("no")["msg"]
    assert answer.get("no")["claim"] == "none"
    assert counter.count == 0
    drain(store)
    assert store.ask(request).result["status"] == "3"
    assert counter.count == 1


def test_a_disk_that_fills_up_while_it_runs_loses_no_exit(tiny, tmp_path):
    """The record was padded into its block when there was room."""
    counter = Counter(tmp_path / "count")
    store = tiny("size=1m,nr_inodes=100")
    op = mint()
    script = f"{counter.shell}; head -c 5000000 /dev/zero >{store.root.parent}/fill-1 2>/dev/null; exit 9"
    answer = store.ask(Request(op=op, argv=[b"/bin/sh", b"-c", script.encode()]))
    assert answer.result["status"] == "9"
    assert "\nexited status=9 " in store.text(op)
    drain(store)
    assert store.ask(Request("inquire", op)).result["status"] == "9"
    assert counter.count == 1


def test_reading_goes_on_while_the_disk_is_full(tiny):
    store = tiny("size=1m,nr_inodes=100")
    store.ask(Request("fence", mint()))
    fill(store)
    answer = store.ask(Request(op=mint(), argv=[b"/bin/sh", b"-c", b"echo hi; exit 1"], category="read_only"))
    assert (answer.result["status"], answer.out) == ("1", b"hi\n")
    answer = store.ask(Request("probe", mint(), argv=[b"/bin/sh", b"-c", b"cat; exit 1"], stdin=b"in"))
    assert (answer.result["status"], answer.out) == ("1", b"in")


def test_a_store_may_stand_where_nothing_can_be_executed(tiny, tmp_path):
    """Case 039."""
    counter = Counter(tmp_path / "count")
    store = tiny("size=4m,noexec")
    answer = store.ask(Request(op=mint(), argv=[part.encode() for part in counter.argv("exit 3")]))
    assert answer.result["status"] == "3"
    assert counter.count == 1


@pytest.mark.parametrize("met", [False, True], ids=["a new host", "a known host"])
def test_a_read_only_file_system_is_named_and_nothing_runs(tiny, tmp_path, met):
    """Case 037."""
    counter = Counter(tmp_path / "count")
    store = tiny("size=4m")
    op = mint()
    if met:
        store.ask(Request(op=op, argv=[b"/bin/sh", b"-c", b"echo kept; exit 6"]))
    store.room.run(f"mount -o remount,ro {store.root.parent}")
    answer = store.ask(Request(op=mint(), argv=[part.encode() for part in counter.argv()]))
    assert answer.refusal == "no_store"
    assert str(store.root) in answer.get("no")["msg"]
    assert met or "Read-only" in answer.get("no")["msg"]
    assert counter.count == 0
    if met:
        kept = store.ask(Request("inquire", op, inline=100))
        assert (kept.result["status"], kept.out) == ("6", b"kept\n")
    reading = store.ask(Request(op=mint(), argv=[b"/bin/sh", b"-c", b"exit 2"], category="read_only"))
    assert reading.result["status"] == "2"


def run_as_nobody(store: Store) -> None:
    require_root()
    store.prefix = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def give_to_nobody(path: Path) -> None:
    for found in [path, *path.rglob("*")]:
        os.lchown(found, 65534, 65534)


def test_a_folder_that_cannot_be_written_is_named(shell, open_path):
    """Case 037, as an ordinary user."""
    counter = Counter(open_path / "count")
    store = Store(open_path / ".sshop", shell)
    run_as_nobody(store)
    give_to_nobody(store.root)
    store.root.chmod(0o555)
    answer = store.ask(Request(op=mint(), argv=[part.encode() for part in counter.argv()]))
    assert answer.refusal == "no_store"
    assert str(store.root) in answer.get("no")["msg"]
    assert "ermission denied" in answer.get("no")["msg"]
    assert counter.count == 0


@pytest.mark.parametrize("fault", ["owner", "link", "file", "root link", "mode"])
def test_a_store_that_others_could_touch_is_refused(store, tmp_path, fault):
    counter = Counter(tmp_path / "count")
    if fault != "mode":
        store.ask(Request("fence", mint()))
    if fault == "owner":
        require_root()
        os.chown(store.base / "index", 65534, 65534)
    elif fault == "link":
        (store.base / "markers").rename(tmp_path / "elsewhere")
        (store.base / "markers").symlink_to(tmp_path / "elsewhere")
    elif fault == "file":
        (store.base / "outputs").rmdir()
        (store.base / "outputs").write_text("")
    elif fault == "root link":
        store.root.rename(tmp_path / "elsewhere")
        store.root.symlink_to(tmp_path / "elsewhere")
    else:
        store.root.chmod(0o770)
    answer = store.ask(Request(op=mint(), argv=[part.encode() for part in counter.argv()]))
    assert answer.refusal == "bad_store", answer.lines
    assert counter.count == 0


STUBBED = [shell for shell in SHELLS if shell != "busybox"]  # which has its own utilities within

LN_STUBS = {
    "no hard links": ('echo "ln: failed to create hard link: Operation not permitted" >&2; exit 1', "no_links"),
    "lies about success": ("exit 0", "no_store"),
    "lies about failure": ('/run/real-ln "$@"; echo "ln: failed: Input/output error" >&2; exit 1', None),
    "too many links": ('echo "ln: failed to create hard link: Too many links" >&2; exit 1', "no_links"),
}


@pytest.mark.parametrize("shell", STUBBED, indirect=True)
@pytest.mark.parametrize("stub", LN_STUBS)
def test_who_owns_the_claim_is_read_and_not_believed(tmp_path, shell, room, stub):
    """`ln` may succeed and report failure (NFS), or the reverse."""
    counter = Counter(tmp_path / "count")
    script, code = LN_STUBS[stub]
    (tmp_path / "ln").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ln").chmod(0o755)
    ready = Store(tmp_path / ".sshop", shell)
    ready.ask(Request("fence", mint()))
    here = room(f"mount -t tmpfs tmpfs /run; cp /usr/bin/ln /run/real-ln; mount --bind {tmp_path}/ln /usr/bin/ln")
    store = Store(tmp_path / ".sshop", shell, here.prefix)
    op = mint()
    answer = store.ask(Request(op=op, argv=[part.encode() for part in counter.argv("exit 3")]))
    if code is None:
        assert answer.result["status"] == "3"
        assert counter.count == 1
    else:
        assert answer.refusal == code, answer.lines
        assert counter.count == 0
        assert not ready.marker(op).exists()
        assert (
            ready.ask(Request(op=mint(), argv=[part.encode() for part in counter.argv("exit 3")])).result["own"] == "1"
        )


SYNC_STUBS = {
    "knows no files": ('[ $# = 0 ] || { echo "sync: invalid option" >&2; exit 1; }', "all_synced"),
    "ignores arguments": ('[ $# = 0 ] || echo "sync: ignoring all arguments" >&2', "all_synced"),
    "fails": ("exit 1", "unsynced"),
}


@pytest.mark.parametrize("shell", STUBBED, indirect=True)
@pytest.mark.parametrize("stub", SYNC_STUBS)
def test_the_answer_names_the_grade_that_was_reached(tmp_path, shell, room, stub):
    counter = Counter(tmp_path / "count")
    script, grade = SYNC_STUBS[stub]
    (tmp_path / "sync").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "sync").chmod(0o755)
    here = room(f"mount --bind {tmp_path}/sync /usr/bin/sync")
    store = Store(tmp_path / ".sshop", shell, here.prefix)
    op = mint()
    answer = store.ask(Request(op=op, argv=[part.encode() for part in counter.argv("exit 3")]))
    assert answer.get("claimed")["sync"] == grade
    assert answer.result["sync"] == grade
    assert store.ask(Request("inquire", op)).result["sync"] == grade
    weak = store.ask(Request(op=mint(), argv=[part.encode() for part in counter.argv()], control=[b"Y file_synced"]))
    assert weak.refusal == "weak_grade"
    assert counter.count == 1


@pytest.mark.parametrize("shell", STUBBED, indirect=True)
def test_a_disk_that_fails_to_sync_starts_nothing(tmp_path, shell, room):
    counter = Counter(tmp_path / "count")
    ready = Store(tmp_path / ".sshop", shell)
    ready.ask(Request("fence", mint()))
    (tmp_path / "sync").write_text('#!/bin/sh\necho "sync: error syncing: Input/output error" >&2\nexit 1\n')
    (tmp_path / "sync").chmod(0o755)
    store = Store(tmp_path / ".sshop", shell, room(f"mount --bind {tmp_path}/sync /usr/bin/sync").prefix)
    op = mint()
    answer = store.ask(Request(op=op, argv=[part.encode() for part in counter.argv()]))
    assert answer.refusal == "no_store"
    assert answer.get("no")["claim"].startswith("rec_")
    assert ready.ask(Request("inquire", op)).get("state")["op"] == "never_started"
    assert counter.count == 0


def test_the_shells_are_those_of_the_issue():
    assert list(SHELLS) == ["dash", "bash", "busybox", "mksh", "zsh", "yash"]
