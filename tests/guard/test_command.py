"""What the command gets and what comes back: bytes, environment, descriptors, signals, statuses, streams."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guard.wire import Answer, Request, Store, mint
from tests.support.counter import Counter

ALL_BYTES = bytes(range(1, 256))
WORDS = [
    b"'", b'"', b"''\"'\"", b"$x", b"${x}", b"$(id)", b"`id`", b"&", b";", b"#", b"*", b"?", b"[a-z]", b"a\tb", b"a\nb",
    b"\n", b"a\n", b"a\rb", "zażółć".encode(), "🚀".encode(), b" lead", b"trail ", b"  ", b"", b"\\", b"\\n", b"a\\",
    b"%s%n%d", b"~", b"~root", b"!!", b"{a,b}", b"=x", b"\xff\xfe", b"--", b"-n", b"x" * 130_000, b"|", b"<>", b"(",
]  # fmt: skip
REPORT = """
import json, os, signal, sys
print(json.dumps({
    "argv": [os.fsencode(a).hex() for a in sys.argv[1:]],
    "env": {k.decode("latin-1"): v.hex() for k, v in os.environb.items()},
    "fds": {d: os.readlink(p) for d in os.listdir("/proc/self/fd") if os.path.exists(p := f"/proc/self/fd/{d}")},
    "ignored": [int(s) for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN],
    "blocked": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "umask": os.umask(0), "cwd": os.fsencode(os.getcwd()).hex(),
    "sid": os.getsid(0), "pgid": os.getpgid(0), "pid": os.getpid(),
    "stdin": sys.stdin.buffer.read().hex(),
}))
"""


def report(store: Store, *args: bytes, **request: object) -> dict:
    argv = [sys.executable.encode(), b"-I", b"-c", REPORT.encode(), *args]
    answer = store.ask(Request(op=mint(), argv=argv, new=True, **request))  # type: ignore[arg-type]
    assert answer.result["status"] == "0", (answer.err, answer.lines)
    return json.loads(answer.out)


def test_every_byte_survives_in_arguments_environment_folder_and_input(store, tmp_path):
    folder = os.fsencode(tmp_path) + b"/" + bytes(b for b in ALL_BYTES if b != ord("/"))[:200]
    os.mkdir(folder)
    seen = report(
        store,
        *WORDS,
        ALL_BYTES,
        *[bytes([b]) for b in ALL_BYTES],
        env={"PLAIN": ALL_BYTES},
        secret={"HIDDEN": ALL_BYTES[::-1]},
        cwd=folder,
        stdin=bytes(range(256)) * 40,
    )
    assert seen["argv"] == [w.hex() for w in [*WORDS, ALL_BYTES, *[bytes([b]) for b in ALL_BYTES]]]
    assert seen["env"]["PLAIN"] == ALL_BYTES.hex()
    assert seen["env"]["HIDDEN"] == ALL_BYTES[::-1].hex()
    assert seen["cwd"] == folder.hex()
    assert seen["stdin"] == (bytes(range(256)) * 40).hex()


@pytest.mark.parametrize("locale", ["C.UTF-8", "en_US.UTF-8"])
def test_the_login_locale_changes_no_byte_and_comes_back_to_the_command(store, locale):
    store.env |= {"LC_ALL": locale, "LANG": locale}
    seen = report(store, ALL_BYTES, env={"PLAIN": ALL_BYTES})
    assert seen["argv"] == [ALL_BYTES.hex()]
    assert seen["env"]["PLAIN"] == ALL_BYTES.hex()
    assert bytes.fromhex(seen["env"]["LC_ALL"]).decode() == locale


def test_output_may_hold_any_bytes(store):
    data = bytes(range(256)) * 300 + b"\nsshop1 " + b"0" * 32 + b" end\n"
    code = f"import sys,os; d=bytes.fromhex('{data[:2000].hex()}'); os.write(1,d); os.write(2,d[::-1])"
    answer = store.ask(Request(op=mint(), argv=[sys.executable.encode(), b"-c", code.encode()]))
    assert answer.out == data[:2000]
    assert answer.err == data[:2000][::-1]
    assert answer.result["outsha"] == hashlib.sha256(answer.out).hexdigest()
    assert answer.words[-1] == "end"


def test_the_command_gets_what_the_login_gave_and_nothing_of_the_guard(store):
    store.env |= {"id": "7", "PATH": "/usr/bin:/bin", "line": "x", "root": "r"}
    seen = report(store)
    env = {name: bytes.fromhex(value).decode() for name, value in seen["env"].items()}
    operation = env.pop("OPERATION_ID")
    assert operation.startswith("op_")
    for name in ("_", "PWD", "OLDPWD", "SHLVL", "LC_CTYPE", "BASH_EXECUTION_STRING", "ZSH_NAME"):
        env.pop(name, None)
    assert env == store.env
    assert seen["ignored"] in ([], [13, 25], [25, 13])  # Python ignores PIPE and XFSZ by itself
    assert seen["blocked"] == []
    assert seen["sid"] == seen["pgid"] == seen["pid"]
    assert seen["umask"] == 0o022
    fds = {fd: path for fd, path in seen["fds"].items() if int(fd) > 2 and "/proc/" not in path}
    inherited = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")
    }
    assert not {path for path in fds.values() if path not in inherited}


def test_the_login_umask_reaches_the_command_and_not_the_store(store):
    seen = Request(op=mint(), argv=[b"sh", b"-c", b"umask"])
    old = os.umask(0o027)
    try:
        answer = store.ask(seen)
    finally:
        os.umask(old)
    assert answer.out in (b"0027\n", b"027\n")
    for path in store.base.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "name", ["UID", "PPID", "RANDOM", "SECONDS", "IFS", "LC_ALL", "PWD", "_x", "USERNAME", "LINENO", "OPTIND"]
)
def test_a_variable_that_shells_know_is_set_as_it_was_said(store, name):
    seen = report(store, env={name: b"0 y", "FOO": b"1'\n2"})
    assert seen["env"][name] == b"0 y".hex()
    assert seen["env"]["FOO"] == b"1'\n2".hex()


def test_a_secret_in_such_a_variable_is_refused(store):
    answer = store.ask(Request(op=mint(), argv=[b"true"], secret={"IFS": b"x"}))
    assert answer.refusal == "bad_request"


def test_a_hidden_argument_and_the_operation_id_stand_in_the_argv(store):
    op = mint()
    frames = [b"a printf", b"a %s", b"a id=", b"i", b"l ;", b"h token"]
    plain = b"".join(frame + b"\n" for frame in frames)
    request = Request(op=op, category="append_only")
    head = request.head().replace(
        b"?\n",
        b"F " + hashlib.sha256(plain).hexdigest().encode() + b"\n" + plain + b".S3CR3T\n.more\n?\n",
    )
    channel = store.open(request)
    channel.send(head)
    channel.read("hello")
    channel.send(b"go %d\n" % head.count(b"\n"))
    channel.read("end")
    answer = channel.close()
    assert answer.out == f"id={op};S3CR3T\nmore".encode()
    assert "S3CR3T" not in store.text(op)
    for path in store.base.rglob("*"):
        if path.is_file() and path.parent.name != "outputs":
            assert b"S3CR3T" not in path.read_bytes()


SHELL_TEXTS = [
    "exit 3", "set -e; false", "exec true", "trap - EXIT; kill -9 $$", "return 4", "if", "echo 'unbalanced", "}",
    "cd /; unset PATH HOME IFS", "set -u; echo $nope", "cat <<X\nhi\nX", "# comment", "kill -TERM $$", "exit 255",
    "exit 254", "exit 127", "exit 126", "exit 1", "kill -HUP $$", "kill -PIPE $$", "kill -INT $$", "kill -QUIT $$",
]  # fmt: skip


def test_each_end_is_recorded_as_a_shell_of_its_own_has_it(store):
    """Case 064 and 002."""
    for text in SHELL_TEXTS:
        op = mint()
        answer = store.ask(Request(op=op, argv=[b"/bin/sh", b"-c", text.encode()]), ack=True)
        alone = subprocess.run(
            ["/bin/sh", "-c", text],
            check=False,
            env=store.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode
        status = int(answer.result["status"])
        assert status == (alone if alone >= 0 else 128 - alone), text
        assert f"exited status={status} " in store.text(op)
        assert answer.result["own"] == "1"


def test_a_command_that_is_not_there_failed_with_127(store):
    answer = store.ask(Request(op=mint(), argv=[b"/no/such/program"]))
    assert answer.result["status"] == "127"


def test_without_input_the_command_reads_an_empty_one(store):
    """Case 071."""
    answer = store.ask(Request(op=mint(), argv=[b"/bin/sh", b"-c", b"cat; exit 2"]))
    assert answer.result["status"] == "2"
    assert answer.out == b""


def test_a_command_that_reads_all_input_takes_nothing_of_the_guard(store):
    """Case 059."""
    answer = store.ask(Request(op=mint(), argv=[b"/bin/sh", b"-c", b"wc -c; exit 5"], stdin=b"x" * 20_000), ack=True)
    assert answer.result["status"] == "5"
    assert answer.out.strip() == b"20000"
    assert answer.words[-1] == "acked"


def test_standard_input_has_no_name_any_more_when_the_command_runs(store):
    answer = store.ask(
        Request(
            op=mint(),
            argv=[b"/bin/sh", b"-c", b"ls " + bytes(store.root) + b"/m-*/spool; cat"],
            stdin=b"S3CR3T",
            secret_stdin=True,
        )
    )
    assert b".in" not in answer.out
    assert answer.out.endswith(b"S3CR3T")
    assert list((store.base / "spool").iterdir()) == []


def test_twenty_megabytes_on_both_streams_come_back_whole(dash):
    """Case 069."""
    code = b"import os\nfor i in range(320): os.write(1, b'o'*65536); os.write(2, b'e'*65536)\nos._exit(6)"
    answer = dash.ask(Request(op=mint(), argv=[sys.executable.encode(), b"-c", code], inline=30_000_000))
    assert answer.result["status"] == "6"
    assert len(answer.out) == len(answer.err) == 320 * 65536
    assert answer.result["outsha"] == hashlib.sha256(answer.out).hexdigest()
    assert answer.result["errsha"] == hashlib.sha256(answer.err).hexdigest()


def test_what_is_not_sent_inline_can_be_fetched(store):
    op = mint()
    argv = [b"/bin/sh", b"-c", b"printf 0123456789; printf err >&2"]
    answer = store.ask(Request(op=op, argv=argv, inline=4))
    assert (answer.out, answer.err) == (b"0123", b"err")
    assert answer.result["out"] == "10"
    fetched = store.ask(Request("fetch", op, control=[b"O out 4 -"]))
    assert fetched.out == b"456789"
    fetched = store.ask(Request("fetch", op, control=[b"O out 4 3"]))
    assert fetched.out == b"456"
    assert fetched.get("data") == {"stream": "out", "offset": "4", "bytes": "3"}
    assert store.ask(Request("fetch", mint(), control=[b"O out 0 -"])).refusal == "no_output"


def test_output_is_followed_as_it_grows(store):
    op = mint()
    channel = store.open(Request(op=op, argv=[b"/bin/sh", b"-c", b"echo one; sleep 1; echo two"]))
    go(channel)
    channel.read("started")
    begun = time.monotonic()
    follower = store.open(Request("fetch", op, control=[b"O out 0 -", b"P -"]))
    go(follower)
    follower.read("data")
    assert follower.answer.out == b"one\n"
    assert time.monotonic() - begun < 0.9
    follower.read("end")
    assert follower.close().out == b"one\ntwo\n"
    channel.close()


def go(channel) -> None:
    head = channel.request.head()
    channel.send(head)
    assert channel.read("hello") == "hello", channel.answer.lines
    channel.send(b"go %d\n" % head.count(b"\n"))


def test_a_daemon_that_keeps_the_output_open_delays_nothing(store, tmp_path):
    """Cases 065 and 030."""
    op, counter = mint(), Counter(tmp_path / "count")
    request = Request(op=op, argv=[b"/bin/sh", b"-c", counter.shell.encode() + b"; sleep 60 & echo started $!; exit 3"])
    begun = time.monotonic()
    answer = store.ask(request, ack=True)
    assert time.monotonic() - begun < 5
    assert answer.result["status"] == "3"
    assert answer.result["background"] == "1"
    again = store.ask(request)
    assert again.result["status"] == "3"
    assert again.result["own"] == "0"
    daemon = int(answer.out.split()[1])
    opened = [os.readlink(f"/proc/{daemon}/fd/{fd}") for fd in os.listdir(f"/proc/{daemon}/fd")]
    os.kill(daemon, signal.SIGKILL)
    assert not [path for path in opened if "/markers/" in path or "/spool/" in path]
    assert counter.count == 1
    assert store.ask(Request(op=mint(), argv=[b"true"])).result["status"] == "0"


def test_a_daemon_without_the_streams_leaves_the_operation_done(store):
    op = mint()
    request = Request(op=op, argv=[b"/bin/sh", b"-c", b"sleep 60 </dev/null >/dev/null 2>&1 & echo $!"])
    answer = store.ask(request)
    assert answer.result["status"] == "0"
    again = store.ask(Request("inquire", op))
    assert again.result["status"] == "0"
    os.kill(int(answer.out), signal.SIGKILL)


def test_the_limit_ends_the_whole_group(store, tmp_path):
    """Case 067: the effect that was to come later does not."""
    counter = Counter(tmp_path / "count")
    request = Request(
        op=mint(), argv=[b"/bin/sh", b"-c", b"(sleep 2; " + counter.shell.encode() + b") & wait"], control=[b"L 1"]
    )
    begun = time.monotonic()
    answer = store.ask(request)
    assert 0.9 < time.monotonic() - begun < 5
    assert answer.result["killed"] == "timeout"
    assert answer.result["status"] == "143"
    assert answer.result["limit"] == "enforced"
    assert "killed by=timeout " in store.text(request.op)
    time.sleep(1.5)
    assert counter.count == 0


def test_the_limit_kills_what_does_not_listen(dash):
    answer = dash.ask(
        Request(op=mint(), argv=[b"/bin/sh", b"-c", b"trap '' TERM; while :; do sleep 1; done"], control=[b"L 1"])
    )
    assert answer.result["killed"] == "timeout"
    assert answer.result["status"] == "137"


def test_a_signal_that_is_refused_ended_nothing(dash, tmp_path, room):
    """The command of another user goes on, and what it did counts: neither its limit nor a cancel ended it."""
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nshift 3\n[ "$1" != -- ] || shift\n[ "$1" != kill ] || exit 1\nexec "$@"\n')
    sudo.chmod(0o755)
    dash.prefix = room(f"mount --bind {sudo} /usr/bin/sudo").prefix
    counter = Counter(tmp_path / "count")
    argv = [part.encode() for part in counter.argv("sleep 2")]
    limited = Request(op=mint(), argv=argv, user="root", control=[b"L 1"])
    result = dash.ask(limited).result
    assert [result[key] for key in ("status", "killed", "limit")] == ["0", "-", "not_enforced"]
    assert "killed" not in dash.text(limited.op)
    cancelled = Request(op=mint(), argv=argv, user="root", new=True)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(dash.ask, cancelled)
        counter.wait_for(2)
        assert dash.ask(Request("cancel", cancelled.op)).refusal == "no_become"
        assert [running.result().result[key] for key in ("status", "killed")] == ["0", "-"]


@pytest.mark.parametrize("verb", ["inquire", "run"])
def test_an_output_that_was_shortened_later_does_not_cut_the_answer(store, tmp_path, verb):
    """A process that the command left behind, or a clean-up, may truncate it; its end is told all the same."""
    request = Request(op=mint(), argv=[b"/bin/sh", b"-c", b"echo 12345; echo 678 >&2"])
    assert store.ask(request).out == b"12345\n"
    for size, name in enumerate(["out", "err"]):
        [path] = (store.base / "outputs").glob(f"*.{name}")
        os.truncate(path, size)
    answer = store.ask(Request("inquire", request.op) if verb == "inquire" else request)
    assert answer.words[-1] == "end"
    assert (answer.result["status"], answer.result["out"], answer.out, answer.err) == ("0", "6", b"", b"6")
    fetched = store.ask(Request("fetch", request.op, control=[b"O err 0 -"]))
    assert (fetched.words[-1], fetched.err) == ("end", b"6")


def test_a_limit_whose_clock_is_killed_is_not_over(store):
    """The sleep that measures it dies: the command keeps the rest of its time."""
    channel = store.open(Request(op=mint(), argv=[b"/bin/sh", b"-c", b"sleep 1; exit 4"], control=[b"L 66666"]))
    go(channel)
    channel.read("started")
    deadline = time.monotonic() + 5
    while not (clocks := [pid for pid in os.listdir("/proc") if pid.isdigit() and is_clock(pid)]):
        assert time.monotonic() < deadline
    os.kill(int(clocks[0]), signal.SIGKILL)
    channel.read("end")
    answer = channel.close()
    assert (answer.result["status"], answer.result["killed"]) == ("4", "-")


def is_clock(pid: str) -> bool:
    try:
        return b"66666" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def test_a_limit_that_is_not_reached_leaves_no_process(store):
    answer = store.ask(Request(op=mint(), argv=[b"true"], control=[b"L 77777"]))
    assert answer.result["status"] == "0"
    deadline = time.monotonic() + 5
    while any(b"77777" in line for line in command_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def command_lines() -> Iterator[bytes]:
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                yield Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue


def test_a_folder_that_cannot_be_entered_is_refused_before_the_claim(store):
    request = Request(op=mint(), argv=[b"true"], cwd=b"/no/such/folder")
    answer = store.ask(request)
    assert answer.refusal == "no_cwd"
    assert answer.get("no")["claim"] == "none"
    assert not store.marker(request.op).exists()
    assert store.ask(Request(op=mint(), argv=[b"true"])).result["status"] == "0"


def test_a_lost_channel_neither_kills_nor_hurts(store, tmp_path):
    """A dead line at each moment after `go`: the record is whole, and the same request adopts it."""
    counter = Counter(tmp_path / "count")
    request = Request(
        op=mint(), argv=[b"/bin/sh", b"-c", counter.shell.encode() + b"; sleep 0.5; echo out; echo err >&2; exit 4"]
    )
    channel = store.open(request)
    go(channel)
    channel.process.stdout.close()
    channel.process.stdin.close()
    assert channel.process.wait(20) == 0
    text = store.text(request.op)
    assert [line.split()[0] for line in text.splitlines()] == [
        "sshop-marker",
        "claimed",
        "started",
        "process",
        "exited",
        "output",
    ]
    assert all(line.endswith(" ;") for line in text.splitlines())
    assert store.marker(request.op).stat().st_size == 4096
    answer = store.ask(Request(op=request.op, argv=request.argv))
    assert answer.result["status"] == "4"
    assert answer.result["own"] == "0"
    assert (answer.out, answer.err) == (b"out\n", b"err\n")
    assert counter.count == 1


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "PIPE"])
def test_a_dying_session_does_not_stop_the_guard(store, name):
    request = Request(op=mint(), argv=[b"/bin/sh", b"-c", b"sleep 0.4; exit 9"])
    channel = store.open(request)
    go(channel)
    channel.read("started")
    time.sleep(0.15)  # until the command has a session of its own
    os.killpg(channel.process.pid, getattr(signal, "SIG" + name))
    channel.read("end")
    answer: Answer = channel.close()
    assert answer.result["status"] == "9"


def test_a_read_only_command_leaves_nothing(store):
    answer = store.ask(Request(argv=[b"/bin/sh", b"-c", b"echo hi; exit 1"], op=mint(), category="read_only"))
    assert answer.out == b"hi\n"
    assert answer.result["rec"] == "-"
    assert answer.result["status"] == "1"
    assert answer.words == ["hello", "started", "result", "data", "end"]
    assert not [path for path in store.base.rglob("*") if path.is_file()]


def test_a_probe_claims_nothing(store):
    answer = store.ask(Request("probe", mint(), argv=[b"/bin/sh", b"-c", b"echo probed; exit 7"]))
    assert (answer.result["status"], answer.out) == ("7", b"probed\n")
    assert not [path for path in store.base.rglob("*") if path.is_file()]


def test_five_hundred_answers_back_to_back_are_right(dash):
    """Case 045, a tenth of it: output never gets into the record's own fields."""
    for number in range(50):
        op = mint()
        script = b"exit 0" if number % 2 else b"echo '{\"x\":'; echo 'exited status=0 up=1 ms=1 ;'; exit 1"
        dash.ask(Request(op=op, argv=[b"/bin/sh", b"-c", script], new=True))
        assert dash.ask(Request("inquire", op)).result["status"] == ("0" if number % 2 else "1")


def test_the_garbage_of_a_start_up_file_is_no_answer(dash, tmp_path):
    """Case 057: noise before the first framed line."""
    noisy = tmp_path / "noisy"
    noisy.write_text(f"#!/bin/sh\nprintf 'hello\\nno newline \\033[31m\\000'\nexec {dash.sh} {dash.guard}\n")
    noisy.chmod(0o755)
    dash.prefix = ["/bin/sh", str(noisy)]
    answer = dash.ask(Request(op=mint(), argv=[b"/bin/sh", b"-c", b"echo out; exit 3"]))
    assert answer.result["status"] == "3"
    assert answer.out == b"out\n"
    assert b"no newline" in answer.noise
