"""A planted secret is searched for wherever something is kept or can be seen: it is nowhere but where it belongs."""

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support.process import send
from tests.support.program import Done, Program, finish, write_policies
from tests.support.sshd import Sshd
from tests.support.tools import require_tool

SECRET = "pl4nted-S3CR3T'$x"
OTHER = "0ther-S3CR3T'$y"

_PARAMS = (
    """params: {path: {type: path}, then: {type: string, pattern: '(?s:.*)', default: ":"}, secret: {type: secret}}"""
)
CATALOGUE = f"""\
commands:
  use-variable:
    summary: One more byte in {{path}} with a secret variable
    category: append_only
    argv: [/bin/sh, -c, 'test -n "$TOKEN" || exit 9; printf x >>"$1"; eval "$2"', sh, "{{path}}", "{{then}}"]
    env: {{TOKEN: "{{secret}}", URL: "https://me:{{secret}}@example.org/"}}
    {_PARAMS}
  use-input:
    summary: One more byte in {{path}} with a secret on standard input
    category: append_only
    argv: [/bin/sh, -c, 'read -r line && printf x >>"$1"; eval "$2"', sh, "{{path}}", "{{then}}"]
    stdin: "user:{{secret}}\\n"
    {_PARAMS}
  settle:
    summary: A file at {{path}} with a secret variable
    category: convergent
    argv: [/bin/sh, -c, 'test -n "$TOKEN" || exit 9; printf x >>"$1"; eval "$2"', sh, "{{path}}", "{{then}}"]
    converged_when: [/bin/sh, -c, 'test -s "$1"', sh, "{{path}}"]
    env: {{TOKEN: "{{secret}}"}}
    {_PARAMS}
"""
ENTRIES = ["use-variable", "use-input", "settle"]


@pytest.fixture
def program(sshd: Sshd, tmp_path: Path) -> Program:
    policies = write_policies(tmp_path / "policies", CATALOGUE)
    return Program(tmp_path, sshd.ssh_config_path, policies=policies, environ={"SSHOP_SESSION": "ses_test"})


class Stage(NamedTuple):
    sshd: Sshd
    folder: Path
    program: Program
    alias: str
    path: str


@pytest.fixture
def stage(sshd: Sshd, tmp_path: Path, program: Program) -> Stage:
    return Stage(sshd, tmp_path, program, sshd.accounts[sshd.user].alias, str(sshd.counter().path))


class Watch:
    """Sees the argv of every program that is started below the server, and of whatever else runs meanwhile."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self._sshd, self._path = sshd, folder / "execs"
        self._seen: set[bytes] = set()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        argv = [require_tool("strace"), "-f", "-q", "-s", "100000", "-e", "trace=execve,execveat", "-e", "signal=none"]
        self._strace = subprocess.Popen(
            [*argv, "-o", str(self._path), "-p", str(self._sshd.pid)], stderr=subprocess.DEVNULL
        )
        status = Path(f"/proc/{self._sshd.pid}/status")
        while "TracerPid:\t0\n" in status.read_text():
            time.sleep(0.01)
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._strace.send_signal(signal.SIGINT)
        self._strace.wait(10)

    def _poll(self) -> None:
        while not self._over.is_set():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    self._seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
            time.sleep(0.005)

    @property
    def text(self) -> bytes:
        """Only the arguments: strace shortens an environment to its length."""
        text = self._path.read_bytes()
        assert b"execve(" in text
        return text + b"\0".join(self._seen)


def forms(secret: str) -> list[bytes]:
    """The secret as it might stand somewhere: plain, quoted, escaped, encoded, hashed."""
    plain = secret.encode()
    within = [plain, b"user:" + plain + b"\n", b"https://me:" + plain + b"@example.org/"]
    return [
        plain,
        plain.replace(b"'", b"'\\''"),
        plain.replace(b"'", b"'\"'\"'"),
        plain.hex().encode(),
        *[base64.b64encode(each).rstrip(b"=") for each in within],
        *[hashlib.sha256(each).hexdigest().encode() for each in within],
    ]


def files(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()


def assert_nowhere(sshd: Sshd, tmp_path: Path, *seen: bytes) -> None:
    """In no file of the client or the account, and in nothing that was said."""
    for secret in (SECRET, OTHER):
        for form in forms(secret):
            found = [path for path, content in files(tmp_path, sshd.home()) if form in content]
            assert not found, (found, form)
            assert not any(form in each for each in seen), form


def said(*done: Done) -> bytes:
    return b"\0".join(part for each in done for part in (each.stdout, each.stderr))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("source", ["env", "file", "stdin"])
def test_a_secret_is_nowhere_after_a_run(stage: Stage, entry: str, source: str) -> None:
    sshd, tmp_path, program, alias, path = stage
    kept = tmp_path.parent / f"{tmp_path.name}-secret"
    kept.write_text(SECRET + "\n")
    reference = {"env": "env:PLANTED", "file": f"file:{kept}", "stdin": "stdin"}[source]
    caller = program.with_environ(PLANTED=SECRET) if source == "env" else program
    words = [f"path={path}", "then=sleep 0.2; echo fine; echo odd >&2", f"secret={reference}"]
    with Watch(sshd, tmp_path) as watch:
        done = caller(
            "run", alias, entry, "--op", "op-s", "--json", "--log-format", "json", *words, data=SECRET.encode()
        )
    assert done.code == 0, done.stderr
    assert sshd.counter().count == 1
    shown = [
        caller("show", "op-s"),
        caller("show", "op-s", "--json"),
        caller("ops", "--json"),
        caller("output", "op-s"),
    ]
    again = caller("run", alias, entry, "--op", "op-s", "--json", *words, data=SECRET.encode())
    assert again.code == 0
    assert b'"replayed": true' in again.stdout
    assert_nowhere(sshd, tmp_path, said(done, again, *shown), watch.text)
    assert not list(sshd.home().glob(".sshop/*/spool/*"))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("fault", ["cut", "kill", "kill the guard"])
def test_a_secret_is_nowhere_after_a_cut_and_after_a_kill(stage: Stage, entry: str, fault: str) -> None:
    sshd, tmp_path, program, alias, path = stage
    caller = program.with_environ(PLANTED=SECRET, SSHOP_DEBUG="1")
    words = [f"path={path}", "then=sleep 1", "secret=env:PLANTED"]
    running = caller.start("run", alias, entry, "--op", "op-s", "--json", "--recover", "none", *words)
    sshd.counter().wait_for(1)
    if fault == "cut":
        sshd.kill_sessions()
    elif fault == "kill":
        running.kill()
    else:
        send(sshd.commands(), signal.SIGKILL)
    first = finish(running)
    assert first.code == (-9 if fault == "kill" else 5), first.stderr
    assert_nowhere(sshd, tmp_path, said(first))
    looked = [caller("reconcile", "op-s", "--json"), caller("show", "op-s", "--json"), caller("unresolved", "--json")]
    after = caller("run", alias, entry, "--op", "op-s", "--json", *words)
    assert_nowhere(sshd, tmp_path, said(first, *looked, after))
    interrupted = fault == "kill the guard" and entry != "settle"
    assert after.code == (5 if interrupted else 0), after.stderr
    assert sshd.counter().count == 1
    if fault == "kill the guard":  # the next run sweeps up after it
        assert program("run", alias, "--new", "--", "/bin/true").code == 0
    assert not list(sshd.home().glob(".sshop/*/spool/*"))


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_fingerprint_tells_two_secrets_apart_and_keeps_neither(stage: Stage, entry: str) -> None:
    sshd, tmp_path, program, alias, path = stage
    words = ["run", alias, entry, "--op", "op-s", "--json", f"path={path}", "secret=env:PLANTED"]
    first = program.with_environ(PLANTED=SECRET)(*words)
    second = program.with_environ(PLANTED=OTHER)(*words)
    assert (first.code, second.code) == (0, 7), second.stderr
    assert b"key_conflict" in second.stdout
    third = program.with_environ(PLANTED=SECRET)(*words)
    assert third.code == 0
    assert sshd.counter().count == 1
    assert_nowhere(sshd, tmp_path, said(first, second, third))


@pytest.mark.parametrize("lost", ["the key", "the ledger"])
def test_secrets_under_different_keys_are_not_compared_and_nothing_runs(stage: Stage, lost: str) -> None:
    sshd, tmp_path, program, alias, path = stage
    words = ["run", alias, "use-variable", "--op", "op-s", "--json", f"path={path}", "secret=env:PLANTED"]
    assert program.with_environ(PLANTED=SECRET)(*words).code == 0
    for file in tmp_path.glob("ledger.sqlite.key" if lost == "the key" else "ledger.sqlite*"):
        file.unlink()
    done = program.with_environ(PLANTED=OTHER)(*words)
    assert done.code == 0, done.stderr
    assert b'"code": "secret_unchecked"' in done.stdout
    assert sshd.counter().count == 1
    assert_nowhere(sshd, tmp_path, said(done))


def test_a_secret_that_is_not_at_hand_is_not_sent_and_named_by_its_reference(stage: Stage) -> None:
    sshd, tmp_path, program, alias, path = stage
    done = program("run", alias, "use-variable", "--json", f"path={path}", "secret=env:NOT_THERE")
    assert done.code == 8
    assert b"NOT_THERE" in done.stderr
    given = program("run", alias, "use-variable", "--json", f"path={path}", f"secret={SECRET}")
    assert given.code == 2
    assert_nowhere(sshd, tmp_path, said(done, given))
    assert sshd.counter().count == 0


def test_an_operation_with_secrets_is_not_continued_from_the_ledger_alone(stage: Stage) -> None:
    sshd, tmp_path, program, _, path = stage
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("Host *\n HostName 127.0.0.1\n Port 1\n")
    away = program.with_environ(PLANTED=SECRET, SSHOP_SSH_CONFIG=str(nowhere))
    done = away("run", "somewhere", "use-variable", "--op", "op-s", f"path={path}", "secret=env:PLANTED")
    assert done.code == 8
    replayed = program("replay", "op-s")
    assert replayed.code == 8, replayed.stderr
    assert_nowhere(sshd, tmp_path, said(done, replayed))


# Case 107: secrets in raw commands. The net hides these forms from all that is kept; the command itself gets them, so
# they stand in the host's process list while it runs (docs/POLICY.md).
RAW = {
    "an option with =": ["--token=S3CR3T-107"],
    "an option and a word": ["--password", "S3CR3T-107"],
    "key=value": ["password=S3CR3T-107"],
    "an address": ["https://user:S3CR3T-107@example.org/x"],
    "user:password@host": ["user:S3CR3T-107@db"],
    "a header": ["-H", "Authorization: Bearer S3CR3T-107"],
}
SHELL = {
    "a variable before a command": "DB_PASSWORD=S3CR3T-107 true",
    "the -p of a client": "false && mysql -u root -pS3CR3T-107 db; true",
    "an option": "true --token S3CR3T-107",
    "an address": "true https://user:S3CR3T-107@example.org/",
}


def raw_found(sshd: Sshd, tmp_path: Path, *done: Done) -> list[Path]:
    assert b"S3CR3T-107" not in said(*done)
    return [path for path, content in files(tmp_path, sshd.home()) if b"S3CR3T-107" in content]


@pytest.mark.parametrize("form", RAW)
def test_what_looks_like_a_secret_in_a_raw_command_is_kept_nowhere(stage: Stage, form: str) -> None:
    sshd, tmp_path, program, alias, path = stage
    script = 'printf x >>"$0"; for word; do case $word in *S3CR3T-1[0]7*) echo got; esac; done'
    words = ["--", "/bin/sh", "-c", script, path, *RAW[form]]
    done = program("run", alias, "--op", "op-r", "--json", "--log-format", "json", *words)
    assert done.code == 0, done.stderr
    assert b"got" in done.stdout
    shown = [program("show", "op-r"), program("show", "op-r", "--json"), program("ops")]
    assert raw_found(sshd, tmp_path, done, *shown) == []
    other = [word.replace("S3CR3T-107", "0THER-107") for word in words]
    assert program("run", alias, "--op", "op-r", *other).code == 7
    assert sshd.counter().count == 1


@pytest.mark.parametrize("form", SHELL)
def test_what_looks_like_a_secret_in_shell_text_is_kept_nowhere(stage: Stage, form: str) -> None:
    sshd, tmp_path, program, alias, _ = stage
    done = program("run", alias, "--op", "op-r", "--json", "--shell", SHELL[form])
    assert done.code == 0, done.stderr
    shown = [program("show", "op-r"), program("show", "op-r", "--json")]
    assert raw_found(sshd, tmp_path, done, *shown) == []


def test_a_note_never_reaches_a_shell_and_is_stored_exactly(stage: Stage) -> None:
    """Case 088."""
    sshd, _, program, alias, path = stage
    marker = sshd.home() / "ran"
    note = f"harmless'; touch {marker} #\n touch {marker}\r\x1b[31m`touch {marker}` $(touch {marker}) \"" + "n" * 10_000
    done = program("run", alias, "--op", "op-n", "--note", note, "--", "/bin/sh", "-c", 'printf x >>"$0"', path)
    assert done.code == 0, done.stderr
    assert (marker.exists(), sshd.counter().count) == (False, 1)
    shown = json.loads(program("show", "op-n", "--json").stdout)
    assert [e["body"]["note"] for e in shown["events"] if e["type"] == "intent.created"] == [note]
    assert b"\x1b" not in program("show", "op-n").stdout
    for path_, content in files(sshd.home()):
        assert b"harmless" not in content, path_


def test_a_note_of_bytes_that_are_no_text_is_stored_readably(stage: Stage) -> None:
    _, _, program, alias, _ = stage
    done = program("run", alias, "--op", "op-n", "--note", "caf\udce9", "--", "/bin/true")
    assert done.code == 0, done.stderr
    assert re.search(rb"caf\\\\xe9", program("show", "op-n", "--json").stdout)
