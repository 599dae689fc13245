import os
from collections import Counter as Count
from pathlib import Path

import pytest

from tests.guard.shells import SHELLS
from tests.support.counter import Counter
from tests.support.sample import sample
from tests.support.strace import KillPoint, Tally, enumerate_kills, read_trace, require_trace, run_with_kill

ENV = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Reads its input, counts itself, forks a subshell and a program, and leaves a process behind."""
    require_trace()
    path = tmp_path / "script"
    path.write_text(
        f"read -r line\n"
        f"{Counter(tmp_path / 'count').shell}\n"
        "( read -r more; cat /dev/null )\n"
        f"( cat /dev/null; printf late >{tmp_path / 'late'} ) </dev/null >/dev/null 2>&1 &\n"
        'printf "%s" "$line"\n'
    )
    return path


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_strace_and_the_tracer_count_the_same_calls_of_the_same_processes(shell, tmp_path: Path) -> None:
    require_trace()
    path = tmp_path / "script"
    path.write_text("read -r line\n( cat /dev/null )\ncat /dev/null\nprintf '%s' \"$line\"\n")
    argv = [*shell.argv, str(path)]
    points = enumerate_kills(argv, ENV, b"hello\n")
    run = run_with_kill(None, argv, ENV, b"hello\n")
    assert run.stdout == b"hello"
    assert run.returncode == 0
    assert not run.killed
    assert Count(point.process for point in points) == run.counts
    assert {"0", "0.1"} <= set(run.counts)


def test_every_counted_call_can_be_the_last_one(script: Path, tmp_path: Path) -> None:
    argv = ["dash", str(script)]
    points = enumerate_kills(argv, ENV, b"hello\nmore\n")
    tally = Tally(points)
    for point in points:
        Counter(tmp_path / "count").path.unlink(missing_ok=True)
        run = run_with_kill(point, argv, ENV, b"hello\nmore\n")
        tally.add(run)
        assert Counter(tmp_path / "count").count <= 1
        if point.process == "0" and run.killed:
            assert run.returncode == -9
    # two processes run beside each other at the end, so that one waits now and then once more
    tally.check(allowed_not_reached=2)


def test_a_call_that_is_killed_is_not_executed(tmp_path: Path) -> None:
    require_trace()
    count = Counter(tmp_path / "count")
    argv = ["dash", "-c", count.shell]
    points = enumerate_kills(argv, ENV)
    assert count.count == 1
    [write] = [point for point in points if point.syscall == "write"]
    run = run_with_kill(write, argv, ENV)
    assert run.killed
    assert count.count == 1
    after = KillPoint("0", write.index + 1, "", "")
    run = run_with_kill(after, argv, ENV)
    assert run.killed
    assert count.count == 2


def test_the_other_processes_live_on_when_one_is_killed(script: Path, tmp_path: Path) -> None:
    argv = ["dash", str(script)]
    points = enumerate_kills(argv, ENV, b"hello\nmore\n")
    (tmp_path / "late").unlink()
    last = [point for point in points if point.process == "0"][-1]
    assert last.syscall == "exit_group"
    run = run_with_kill(last, argv, ENV, b"hello\nmore\n")
    assert (run.killed, run.returncode) == (True, -9)
    assert (tmp_path / "late").read_text() == "late"


def test_a_whole_tree_is_killed_at_once(script: Path, tmp_path: Path) -> None:
    argv = ["dash", str(script)]
    points = enumerate_kills(argv, ENV, b"hello\nmore\n")
    (tmp_path / "late").unlink()
    first_of_late = next(point for point in points if point.process == "0.2")
    run = run_with_kill(first_of_late, argv, ENV, b"hello\nmore\n", whole_tree=True)
    assert run.killed
    assert not (tmp_path / "late").exists()


def test_a_run_that_hangs_is_ended_and_says_so() -> None:
    require_trace()
    run = run_with_kill(None, ["sleep", "60"], ENV, limit_s=0.5)
    assert run.timed_out
    assert run.returncode == -9


def test_a_tally_refuses_a_point_that_was_left_out() -> None:
    points = [KillPoint("0", 1, "read", "sh"), KillPoint("0", 2, "write", "sh")]
    tally = Tally(points)
    with pytest.raises(AssertionError, match="2 points were counted, 0 tried"):
        tally.check()


def test_a_trace_is_read_with_its_processes_named_by_their_place() -> None:
    text = (
        '10 [  59] execve("/bin/sh", ["sh"], 0x7 /* 1 var */) = 0\n'
        "10 [  57] fork() = 11\n"
        "11 [   0] read(0,  <unfinished ...>\n"
        "10 [  57] vfork( <unfinished ...>\n"
        '12 [  59] execve("/bin/cat", ["cat"], 0x7 /* 1 var */) = 0\n'
        "10 [  57] <... vfork resumed>) = 12\n"
        '11 [   0] <... read resumed>"", 1) = 0\n'
        "10 [ 231] exit_group(0) = ?\n"
    )
    assert [str(point) for point in read_trace(text)] == [
        "0:1:sh:fork",
        "0.1:1:sh:read",
        "0:2:sh:vfork",
        "0.2:1:sh:execve",
        "0:3:sh:exit_group",
    ]


def test_a_child_may_fork_before_its_own_fork_returns_in_its_parent() -> None:
    text = (
        '10 [  59] execve("/bin/sh", ["sh"], []) = 0\n'
        "10 [  57] fork( <unfinished ...>\n"
        "11 [  57] fork( <unfinished ...>\n"
        "11 [  57] <... fork resumed>) = 12\n"
        "12 [ 231] exit_group(0) = ?\n"
        "10 [  57] <... fork resumed>) = 11\n"
        "11 [ 231] exit_group(0) = ?\n"
        "10 [ 231] exit_group(0) = ?\n"
    )
    assert [str(point) for point in read_trace(text)] == [
        "0:1:sh:fork",
        "0.1:1:sh:fork",
        "0.1.1:1:sh:exit_group",
        "0.1:2:sh:exit_group",
        "0:2:sh:exit_group",
    ]


def test_a_sample_is_the_same_for_one_seed_and_whole_where_asked(monkeypatch) -> None:
    monkeypatch.delenv("SSHOP_WHOLE", raising=False)
    monkeypatch.setenv("SSHOP_SEED", "1")
    first = sample(range(1000), 10)
    assert len(first) == 10
    assert first == sorted(first) == sample(range(1000), 10)
    assert first != sample(range(1000), 10, salt="other")
    monkeypatch.setenv("SSHOP_WHOLE", "1")
    assert len(sample(range(1000), 10)) == 1000
