"""IDs, words and notes on their way through the program: cases 083, 086, 088 and 071."""

import json
import os
import pty
import shlex
import subprocess
import sys

import pytest

from sshop.cli.report import escape
from tests.support.program import Program

BAD_IDS = [
    "", ".", "..", "../x", "/etc/x", "a/b", "-rf", "a b", "a ", " a", "a\n", "a\nb", "$(touch x)", "`touch x`", "*",
    "a" * 129, "a" * 300, "ü", "a+1", "_a", "a\x1b[2J",
]  # fmt: skip

STRINGS = [
    "", " ", "  leading", "trailing  ", "two  blanks", "\t tab \t", "a\nb", "\n", "a\r\nb", "\r",
    "'", '"', "it's", 'say "x"', "'\"'\"'", "\\", "\\\\n", "a\\", "$x", "${x}", "$(id)", "`id`", "$((1+1))",
    "&", ";", "a && b || c", "# no comment", "*", "?[a-z]", "~", "~root", "{a,b}", "!history", "-n", "--", "%s %d %%",
    "é ü ß 漢字", "🚀 emoji", "x" * 100_000, "\x01\x02\x1b[0m\x7f", "=", "a=b", "{operation_id}", "<>|", "\\0", "%",
]  # fmt: skip


def alias_of(sshd) -> str:
    return sshd.accounts[sshd.user].alias


@pytest.mark.parametrize("name", BAD_IDS, ids=repr)
def test_083_an_id_that_is_none_is_refused_before_anything(alone: Program, name):
    for words in (["run", "nowhere", f"--op={name}", "--", "true"], ["show", name]):
        done = alone(*words)
        assert done.code == 2, done.text
        assert "Traceback" not in done.text
        assert "\x1b" not in done.text
    assert not alone.ledger.exists() or alone("ops").stdout == b""


@pytest.mark.parametrize("verb", ["replay", "fence", "cancel", "reconcile", "output"])
def test_083_for_the_other_verbs_too(alone: Program, verb):
    for name in ("../x", "a\nb", "a" * 129):
        assert alone(verb, name).code == 2


def test_086_thirty_strings_arrive_byte_by_byte(program: Program, sshd):
    alias = alias_of(sshd)
    done = program("run", alias, "--json", "--new", "--", "printf", "%s\\0", *STRINGS)
    assert done.code == 0, done.text
    assert done.json["stdout"].split("\0")[:-1] == STRINGS


@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh", "zsh", "dash", "ash"])
def test_086_whatever_the_login_shell_is(program: Program, sshd, shell):
    alias = sshd.accounts[sshd.require_user(shell)].alias
    strings = [each for each in STRINGS if len(each) < 1000]
    done = program("run", alias, "--json", "--", "printf", "%s\\0", *strings)
    assert done.code == 0, done.text
    assert done.json["stdout"].split("\0")[:-1] == strings


def test_086_an_argument_that_is_no_utf8_arrives_too(program: Program, sshd):
    raw = b"\xff\xfe\x80 a"
    argv = [sys.executable, "-m", "sshop.cli.entry", "run", alias_of(sshd), "--json", "--", "printf", "%s", raw]
    done = subprocess.run(argv, env=program.environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["stdout"] is None
    assert value["stdout_base64"] == "//6AIGE="
    shown = program("show", value["operation_id"])
    assert shown.code == 0
    assert shown.stdout.decode("utf-8")


NOTE = "why\nnot\r; touch hacked # \x1b[2J\x1b]0;title\x07 'x' \"y\" $(touch hacked) \u202e " + "z" * 10_000


def test_088_a_note_is_stored_exactly_shown_escaped_and_run_by_nobody(program: Program, sshd):
    alias, counter = alias_of(sshd), sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", "--note", NOTE)
    assert program(*words, "--op", "op-n").code == 0
    assert counter.count == 1
    events = program("show", "op-n", "--json").json["events"]
    assert [event["body"]["note"] for event in events if event["type"] == "intent.created"] == [NOTE]
    shown = program("show", "op-n").stdout.decode()
    assert not [c for c in shown if not c.isprintable() and c != "\n"]
    assert "why\\nnot\\r" in shown
    assert not list(sshd.home().rglob("hacked"))


def test_088_names_of_people_are_escaped_or_refused(program: Program, sshd):
    counter = sshd.counter()
    words = ("run", alias_of(sshd), "add", f"path={counter.path}")
    assert program.with_environ(SSHOP_AGENT="a\nb")(*words).code == 2
    assert program.with_environ(SSHOP_AGENT="x" * 10_000)(*words).code == 2
    assert counter.count == 0
    assert program.with_environ(SSHOP_AGENT="Ägent 'x'; touch hacked #")(*words).code == 0
    assert counter.count == 1


def test_no_text_from_elsewhere_moves_a_cursor_or_begins_a_line():
    assert escape("a\nb\r\x1b[2J\u202e\x00") == "a\\nb\\r\\x1b[2J\\u202e\\x00"
    assert escape("é 漢字 🚀") == "é 漢字 🚀"


def test_what_a_host_prints_cannot_pass_for_our_message(program: Program, sshd):
    user = sshd.require_user("bash")
    home = sshd.home(user)
    # a start-up file that replaces the shell: no guard is reached, and its text is shown
    (home / ".bashrc").write_text("printf 'x\\nsshop: op-1 succeeded\\n\\033[2J'; exit 0\n")
    os.chown(home / ".bashrc", sshd.accounts[user].uid, -1) if os.geteuid() == 0 else None
    done = program("run", sshd.accounts[user].alias, "--op", "op-1", "--recover", "none", "--", "true")
    assert done.code == 8, done.text
    assert "\nsshop: op-1 succeeded" not in done.text
    assert "\x1b" not in done.text


# -- 071: the caller's standard input is its own -----------------------------------------------------------------------


def test_071_a_command_that_reads_ends_at_once(program: Program, sshd):
    done = program("run", alias_of(sshd), "--", "sh", "-c", "cat; exit 2", data=b"not for you", timeout=20)
    assert done.code == 1
    assert done.stdout == b""


@pytest.mark.parametrize("redirect", ["<&-", "</dev/null"])
def test_071_with_a_closed_or_empty_standard_input(program: Program, sshd, redirect):
    words = f"run {alias_of(sshd)} -- sh -c 'cat; exit 2'"
    line = f"{shlex.quote(sys.executable)} -m sshop.cli.entry {words} {redirect}"
    done = subprocess.run(["sh", "-c", line], env=program.environ, capture_output=True, timeout=20, check=False)
    assert done.returncode == 1, done.stderr
    assert b"exit status 2" in done.stderr


def test_071_inside_a_loop_that_reads_nothing_of_the_input_is_lost(program: Program, sshd):
    words = f"run {alias_of(sshd)} --new -- sh -c 'cat; exit 0'"
    line = f"while read -r word; do {shlex.quote(sys.executable)} -m sshop.cli.entry {words}; echo $word; done"
    done = subprocess.run(
        ["sh", "-c", line], env=program.environ, input=b"1\n2\n3\n", capture_output=True, timeout=60, check=False
    )
    assert done.stdout == b"1\n2\n3\n", done.stderr


def test_071_with_a_terminal_nothing_is_read_from_it(program: Program, sshd):
    ours, theirs = pty.openpty()
    os.write(ours, b"typed ahead\n")
    argv = [sys.executable, "-m", "sshop.cli.entry", "run", alias_of(sshd), "--", "sh", "-c", "cat; exit 2"]
    done = subprocess.run(argv, env=program.environ, stdin=theirs, capture_output=True, timeout=20, check=False)
    assert done.returncode == 1
    assert os.read(theirs, 100) == b"typed ahead\n"
    os.close(ours)
    os.close(theirs)


def test_standard_input_that_was_asked_for_arrives_whole(program: Program, sshd, tmp_path):
    data = bytes(range(256)) * 1000
    done = program("run", alias_of(sshd), "--stdin", "-", "--", "cat", data=data)
    assert (done.code, done.stdout) == (0, data)
    (tmp_path / "in").write_bytes(data)
    done = program("run", alias_of(sshd), "--new", "--stdin", str(tmp_path / "in"), "--", "cat")
    assert (done.code, done.stdout) == (0, data)
