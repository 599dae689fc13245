"""Every process of a guard at work killed at every system call: the guard itself, which is foreground and supervisor,
its helpers, and the command.

What may follow is what a runner would do: it looks, and asks again under the same ID. Whole in `make faults`, where the
number tried must be the number counted; a seeded sample in `make test`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard import wire
from tests.support.counter import Counter
from tests.support.sample import sample
from tests.support.strace import CompletedRun, KillPoint, Tally, enumerate_kills, run_with_kill

OP = "op-killed"
PARTS = 4
WITH_OUTPUT = "echo hi"
OUTPUT = b"hi\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What the guard is asked to run; `limit_s` brings in the watchdog, which outlives its guard by as much."""

    name: str
    category: str = "append_only"
    stdin: bytes | None = None
    limit_s: int | None = None
    condition: bool = False
    whole: int | None = None


CASES = {
    case.name: case
    for case in (
        Case("plain"),
        Case("stdin", stdin=b"in\nput\n", whole=200),
        Case("limit", limit_s=5, whole=100),
        Case("convergent", category="convergent", condition=True, whole=200),
    )
}


class Host:
    """A store of its own for each point, since the first claim of a store makes the store too."""

    def __init__(self, folder: Path, shell: str, case: Case) -> None:
        self.folder, self.shell, self.case = folder, shell, case
        self.count = Counter(folder / "count")
        self.store = self.fresh()

    def fresh(self) -> wire.Store:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        # an answer that never ends fails its test, and does not hang it
        self.store = wire.Store(self.folder / ".sshop", self.shell, prefix=["timeout", "30"])
        shell = self.folder / "sh"
        shell.symlink_to(self.store.shell)
        self.store.shell = str(shell)
        return self.store

    @property
    def argv(self) -> list[str]:
        return [self.store.shell, str(self.store.guard)]

    def names(self, folder: str) -> list[str]:
        """What stands in a folder of the store, where there is a store."""
        return sorted(path.name for path in self.store.root.glob(f"m-*/{folder}/*"))

    def request(self, op: str = OP, **changes: object) -> wire.Request:
        case = self.case
        read = 'read -r a; read -r b; test "$a$b" = input || exit 9; ' if case.stdin else ""
        request = wire.Request(
            op=op,
            argv=[b"/bin/sh", b"-c", f"{read}{self.count.shell}; {WITH_OUTPUT}".encode()],
            category=case.category,
            stdin=case.stdin,
            condition=[b"/bin/test", b"-s", os.fsencode(self.count.path)] if case.condition else [],
            control=[b"L %d" % case.limit_s] if case.limit_s else [],
        )
        return dataclasses.replace(request, **changes)

    def bytes_of(self, request: wire.Request) -> bytes:
        """The whole request at once, as it may arrive; the acknowledgement of its result too."""
        head = request.head()
        lines = head.count(b"\n")
        rest = b""
        if request.stdin is not None:
            rest = b"b %d\n" % len(request.stdin) + request.stdin
            lines += 1
        return head + rest + b"go %d\nack\n" % lines


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: a kill does not ask what lies under the file system, and a sync does."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sshop-guard-", dir=memory) as name:
        yield Path(name)


def test_every_point_that_was_counted_is_killed_in_dash(folder: Path, part: int) -> None:
    kill_all(folder, "dash", CASES["plain"], part=part, parts=PARTS, size=30)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "part" in metafunc.fixturenames:
        metafunc.parametrize("part", range(PARTS))


@pytest.mark.parametrize("name", ["stdin", "limit", "convergent"])
def test_a_sample_of_points_is_killed_in_every_case(folder: Path, name: str) -> None:
    kill_all(folder, "dash", CASES[name], size=25, allowed=0.1)


@pytest.mark.parametrize("shell", ["bash", "busybox", "mksh", "zsh", "yash"])
def test_a_sample_of_points_is_killed_in_every_shell(folder: Path, shell: str) -> None:
    if not os.path.exists(wire.SHELLS[shell]):
        pytest.skip(f"{shell} is not installed")
    kill_all(folder, shell, dataclasses.replace(CASES["plain"], whole=150), size=20, allowed=0.1)


def test_a_sample_of_points_ends_the_whole_tree_at_once(folder: Path) -> None:
    """As a machine without memory or power does, the boot identity left as it is."""
    kill_all(folder, "dash", dataclasses.replace(CASES["limit"], whole=200), size=25, allowed=0.1, whole_tree=True)


def kill_all(
    folder: Path,
    shell: str,
    case: Case,
    *,
    size: int,
    part: int = 0,
    parts: int = 1,
    allowed: float = 0.02,
    whole_tree: bool = False,
) -> None:
    """A process reads its own place in /proc byte by byte, so that the counts of two runs differ by some digits: the
    share `allowed` of the points may not be reached, and then nothing was killed.
    """
    host = Host(folder / "home", shell, case)
    points = enumerate_kills(host.argv, host.store.env, host.bytes_of(host.request()))
    assert host.count.count == 1
    chosen = sample(points[part::parts], size, salt=f"{shell} {case.name} {part} {whole_tree}", whole=case.whole)
    tally = Tally(chosen)
    wrong = []
    for point in chosen:
        store = host.fresh()
        request = host.request()
        run = run_with_kill(point, host.argv, store.env, host.bytes_of(request), whole_tree=whole_tree, limit_s=30)
        tally.add(run)
        try:
            judge(host, request, run)
        except AssertionError as error:
            wrong.append(f"{point}: {error}")
    print(
        f"{shell} {case.name}: {len(points)} calls counted, {len(chosen)} tried, {len(tally.not_reached)} not reached"
    )
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong)
    tally.check(allowed_not_reached=max(2, int(len(chosen) * allowed)))


def judge(host: Host, request: wire.Request, run: CompletedRun) -> None:
    """What must hold whatever was killed, and what the later requests must find."""
    store, count = host.store, host.count
    assert not run.timed_out, "it hung"
    ran = count.count
    assert ran <= 1
    said = heard(request, run.stdout)

    looked = store.ask(wire.Request("inquire", OP))
    state = state_of(looked)
    if ran == 1:
        assert state in ("exited", "interrupted"), f"it ran, and the host says {state}"
    if state == "exited":
        proved(host, looked, run)
    else:
        assert state in ("absent", "never_started", "interrupted"), f"the host says {state}"
    for word, keys in said:
        if word == "no":
            assert ran == 0, f"it ran, and the answer was no {keys['code']}"
            if keys["claim"] == "none":
                assert state == "absent", f"no claim was said, and the host says {state}"
        if word in ("claimed", "started"):
            assert state != "absent", f"{word} was said, and the host says {state}"
        if word == "result":
            assert state == "exited", f"a result was said, and the host says {state}"

    generation = looked.get("hello")["gen"]
    following = max(1, int(generation) + (state == "never_started"))
    ground: tuple[object, ...] = (following, "first")
    if state == "interrupted" and host.case.category == "convergent":
        ground = (int(generation) + 1, "converges")
    nothing = state == "absent" and not (host.names("markers") or host.names("index"))
    again = store.ask(host.request(generation=ground), ack=True)
    if nothing:  # then nothing can be in anybody's way: half of all points lie before the claim
        assert (again.result["own"], again.out, count.count) == ("1", OUTPUT, 1), again.lines
        assert not host.names("spool"), f"left in the spool: {host.names('spool')}"
        return
    if state == "interrupted" and host.case.category != "convergent":
        assert again.refusal == "interrupted", again.lines
        assert count.count == ran
        # the twin's net holds on: the same request under another ID is shown the one to look at
        fresh = store.ask(host.request("op-fresh"))
        assert (fresh.refusal, fresh.get("no")["twin"]) == ("unresolved_twin", OP), fresh.lines
        assert count.count == ran
    else:
        result = again.result
        own = result["own"] == "1"
        assert own == (state != "exited"), f"{state}, then {result}"
        if own and result["changed"] != "0":
            assert (result["status"], again.out) == ("0", OUTPUT), again.lines
        if host.case.category == "convergent":
            assert count.count >= 1 or result["status"] not in ("0", "-")
        else:
            assert count.count == (1 if own else ran), f"{state}: {count.count} effects after {result}"
        done = count.count
        store.ask(wire.Request("ack", OP, control=[b"A " + result["rec"].encode()]))
        # nothing blocks what is meant anew
        fresh = store.ask(host.request("op-fresh"), ack=True)
        assert fresh.result["own"] == "1", fresh.lines
        if host.case.category != "convergent":
            assert count.count == done + 1
    other = store.ask(wire.Request(op="op-other", argv=[b"/bin/true"]), ack=True)
    assert other.result["status"] == "0", other.lines
    assert not host.names("spool"), f"left in the spool: {host.names('spool')}"


def proved(host: Host, answer: wire.Answer, run: CompletedRun) -> None:
    """An end that the host names is one that happened."""
    result = answer.result
    if result["status"] == "0":
        assert host.count.count == 1, f"exit status 0, and it did not run: {result}"
        assert answer.out == OUTPUT, f"its output is {answer.out!r}: {result}"
    elif result["changed"] == "0":
        assert host.count.count == 1, "the condition held, and it never ran"
    else:
        # the command itself was killed, by a signal that its status names
        assert result["status"] == "137", result
        assert run.killed


def state_of(answer: wire.Answer) -> str:
    words = answer.words
    if "result" in words:
        return "exited"
    if "state" in words:
        return answer.get("state")["op"]
    if "running" in words:
        return "running"
    raise AssertionError(f"no answer to a question: {answer.lines}, {answer.noise!r}")


def heard(request: wire.Request, data: bytes) -> list[tuple[str, dict[str, str]]]:
    """The framed lines of an answer that may be cut anywhere; its last line counts only when it is whole."""
    lines = data.split(b"\n")[:-1]
    return [frame for line in lines if (frame := wire.parse_line(line, request.nonce))]


def test_a_point_is_named_by_its_process() -> None:
    assert str(KillPoint("0.1", 3, "write", "ln")) == "0.1:3:ln:write"
