"""Reboots, by another boot identity and processes that are gone; zombies; and numbers that are dealt anew."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sshop.ledger.sqlite import SqliteLedger
from tests.guard import wire
from tests.support.counter import Counter
from tests.support.process import descendants, read_process
from tests.support.program import Program
from tests.support.sshd import Sshd
from tests.support.tools import find_tool, missing, require_tool

PR_SET_CHILD_SUBREAPER = 36
SHELLS = [name for name, path in wire.SHELLS.items() if find_tool(Path(path).name)]
LONG = "sleep 600"


class Machine:
    """One store, guards under a boot identity of the test's choice, and a command that counts itself and stays."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.store = wire.Store(folder / "home" / ".sshop", shell)
        link = folder / "sh"
        link.symlink_to(self.store.shell)
        self.store.shell = str(link)
        self.count = Counter(folder / "count")
        self.boot_file = folder / "boot_id"
        mount = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        self.store.prefix = [require_tool("unshare"), "-m", "/bin/sh", "-c", mount, str(self.boot_file)]
        if os.geteuid() != 0:
            self.store.prefix.insert(2, "-r")
        self.reboot()
        if subprocess.run([*self.store.prefix, "/bin/true"], capture_output=True, check=False).returncode != 0:
            missing("no mount namespaces here")

    def reboot(self) -> None:
        self.boot_file.write_text(f"{uuid.uuid4()}\n")

    def request(self, then: str = LONG, **changes: object) -> wire.Request:
        return wire.Request(op="op-a", argv=[b"/bin/sh", b"-c", f"{self.count.shell}; {then}".encode()], **changes)

    def begin(self, request: wire.Request) -> wire.Channel:
        """The command runs."""
        channel = self.store.open(request)
        channel.send(request.head())
        assert channel.read(until="hello") == "hello"
        channel.send(b"go %d\n" % request.head().count(b"\n"))
        assert channel.read(until="started") == "started"
        self.count.wait_for(1)
        return channel

    def inquire(self) -> str:
        answer = self.store.ask(wire.Request("inquire", "op-a", control=[b"P 0"]))
        return answer.get("state")["op"] if "state" in answer.words else answer.words[1]

    def processes(self) -> tuple[int, int]:
        """The supervisor and the command, as the marker names them."""
        return tuple(int(n) for n in re.findall(r"(?:sup|process pid)=(\d+):", self.store.text("op-a")))

    def rewrite(self, old: str, new: str) -> None:
        marker = self.store.marker("op-a")
        text = marker.read_text("latin-1")
        assert old in text
        marker.write_text(text.replace(old, new).rstrip("\n").ljust(4096, "\n"), "latin-1")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, "dash")
    yield made
    end_all(made)


def end_all(machine: Machine) -> None:
    for process in descendants(os.getpid()):
        if read_process(process.pid) and str(machine.count.path) in command_line(process.pid):
            os.kill(process.pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def kill(channel: wire.Channel, *pids: int) -> None:
    """SIGKILL to whole groups; the guard is a child of ours, what it left is not."""
    for pid in pids:
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    channel.close()
    wait_dead(pids)


@pytest.mark.parametrize("shell", SHELLS)
def test_050_guard_and_command_are_killed_and_it_is_interrupted_at_once(tmp_path: Path, shell: str) -> None:
    machine = Machine(tmp_path, shell)
    channel = machine.begin(machine.request())
    assert machine.inquire() == "running"
    kill(channel, *machine.processes())
    assert machine.inquire() == "interrupted"
    again = machine.store.ask(machine.request())
    assert again.refusal == "interrupted"
    assert machine.count.count == 1


def test_the_supervisor_is_killed_and_the_command_lives_on(machine: Machine) -> None:
    channel = machine.begin(machine.request("sleep 600 & wait"))
    supervisor, command = machine.processes()
    kill(channel, supervisor)
    assert machine.inquire() == "running"
    group = [process.pid for process in all_of_session(command)]
    os.kill(command, signal.SIGKILL)
    assert machine.inquire() == "running"  # what it left in its session still works on
    os.killpg(command, signal.SIGKILL)
    wait_dead(group)
    assert machine.inquire() == "interrupted"
    assert machine.store.ask(machine.request("sleep 600 & wait")).refusal == "interrupted"
    assert machine.count.count == 1


def all_of_session(session: int) -> list:
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in found if process and process.session == session]


def wait_dead(pids: Sequence[int]) -> None:
    for _ in range(400):
        if not any((now := read_process(pid)) and now.state != "Z" for pid in pids):
            return
        time.sleep(0.005)
    raise TimeoutError(pids)


@pytest.mark.parametrize("category", ["append_only", "destructive", "convergent"])
def test_a_reboot_while_it_runs_leaves_it_interrupted(machine: Machine, category: str) -> None:
    condition = [b"/bin/test", b"-s", os.fsencode(machine.count.path)] if category == "convergent" else []
    request = machine.request(category=category, condition=condition)
    channel = machine.begin(request)
    kill(channel, *machine.processes())
    machine.reboot()
    assert machine.inquire() == "interrupted"
    again = machine.store.ask(machine.request(category=category, condition=condition, generation=(2, "first")))
    assert again.refusal == "interrupted"
    if category == "convergent":
        # its condition may open the next generation, and holds
        again = machine.store.ask(machine.request(category=category, condition=condition, generation=(2, "converges")))
        assert (again.result["gen"], again.result["changed"], again.result["status"]) == ("2", "0", "-")
    assert machine.count.count == 1


def test_a_claim_of_another_boot_without_started_proves_nothing(machine: Machine) -> None:
    channel = machine.begin(machine.request())
    kill(channel, *machine.processes())
    text = machine.store.text("op-a")
    started = text[text.index("started") :]
    machine.rewrite(started, "")
    assert machine.inquire() == "never_started"
    machine.reboot()
    assert machine.inquire() == "interrupted"


def test_a_result_outlives_the_reboot(machine: Machine) -> None:
    first = machine.store.ask(machine.request("echo out; exit 3"))
    machine.reboot()
    second = machine.store.ask(machine.request("echo out; exit 3"))
    assert (second.result["own"], second.result["status"], second.out) == ("0", "3", first.out)
    assert machine.count.count == 1


def test_processes_of_another_boot_are_not_ours_though_number_and_start_agree(machine: Machine) -> None:
    """After a reboot the same numbers are dealt again, and clocks since boot can agree as well."""
    channel = machine.begin(machine.request())
    assert machine.inquire() == "running"
    machine.reboot()  # and its processes still stand, for others
    assert machine.inquire() == "interrupted"
    kill(channel, *machine.processes())


@contextlib.contextmanager
def stranger_process() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("shell", SHELLS)
def test_046_a_number_that_is_an_unrelated_process_now_is_not_alive(tmp_path: Path, shell: str) -> None:
    machine = Machine(tmp_path, shell)
    channel = machine.begin(machine.request())
    supervisor, command = machine.processes()
    kill(channel, supervisor, command)
    time.sleep(0.05)  # a start is counted in hundredths
    with stranger_process() as stranger:
        for pid in (supervisor, command):
            machine.rewrite(f"={pid}:", f"={stranger.pid}:")
        assert machine.inquire() == "interrupted"
        again = machine.store.ask(machine.request())
        assert again.refusal == "interrupted"
        # the evidence can be read: number and start that were recorded, to be held against what runs
        assert re.search(rf"sup={stranger.pid}:\d+", machine.store.text("op-a"))
        assert stranger.poll() is None
    assert machine.count.count == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_116_a_zombie_is_dead(tmp_path: Path, shell: str) -> None:
    machine = Machine(tmp_path, shell)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        channel = machine.begin(machine.request())
        supervisor, command = machine.processes()
        for pid in (supervisor, command):  # one after the other: the first must not reap the second
            os.killpg(pid, signal.SIGKILL)
            wait_zombie(pid)
        assert machine.inquire() == "interrupted"
        assert read_process(supervisor).state == read_process(command).state == "Z"
        assert machine.store.ask(machine.request()).refusal == "interrupted"
        assert machine.count.count == 1
        channel.close()
        os.waitpid(command, 0)
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def wait_zombie(pid: int) -> None:
    for _ in range(400):
        now = read_process(pid)
        if now is not None and now.state == "Z":
            return
        time.sleep(0.005)
    raise TimeoutError(pid, read_process(pid))


def test_what_a_guard_left_in_the_spool_goes_with_its_boot_and_stays_while_it_may_live(machine: Machine) -> None:
    """A guard of another process namespace cannot be looked at; after a reboot it need not be."""
    here = machine.store.prefix
    there = ["--pid", "--fork", "--mount-proc", "--kill-child"]
    machine.store.prefix = [*here[:2], *there, *here[2:]]
    request = machine.request()
    channel = machine.store.open(request)
    channel.send(request.head())
    assert channel.read(until="hello") == "hello"
    channel.process.kill()
    channel.close()
    machine.store.prefix = here
    other = wire.Request(op="op-b", argv=[b"/bin/true"])
    assert machine.store.ask(other).result["status"] == "0"
    assert list((machine.store.base / "spool").iterdir())
    machine.reboot()
    assert machine.store.ask(wire.Request(op="op-c", argv=[b"/bin/true"], new=True)).result["status"] == "0"
    assert not list((machine.store.base / "spool").iterdir())


# The same through the whole product.


@pytest.mark.parametrize(("entry", "code"), [("add", 5), ("wipe", 5), ("settle", 0)])
def test_a_host_reboots_while_the_command_runs(sshd: Sshd, tmp_path: Path, entry: str, code: int) -> None:
    program, count = Program(tmp_path, sshd.ssh_config_path), sshd.counter()
    words = ("run", sshd.accounts[sshd.user].alias, entry, f"path={count.path}", f"then={LONG}", "--op", "op-a")
    assert program(*words, "--wait", "0").code == 6
    count.wait_for(1)
    sshd.reboot()
    looked = program("reconcile", "op-a", "--json")
    assert looked.code == 5, looked.text
    assert looked.json["operation"]["state"] == "unknown"
    assert looked.json["observation"]["body"]["host_state"] == "interrupted"
    for _ in range(2):
        replayed = program("replay", "op-a", "--json")
        assert replayed.code == code, replayed.text
        assert count.count == 1
    again = program(*words)
    assert again.code == code, again.text
    assert count.count == 1
    assert program("ledger", "verify").code == 0


def test_a_host_reboots_after_the_end_and_the_result_is_adopted(sshd: Sshd, tmp_path: Path) -> None:
    program, count = Program(tmp_path, sshd.ssh_config_path), sshd.counter()
    words = (
        "run",
        sshd.accounts[sshd.user].alias,
        "add",
        f"path={count.path}",
        "then=sleep 1; echo out",
        "--op",
        "op-a",
    )
    assert program(*words, "--wait", "0").code == 6
    count.wait_for(1)
    while sshd.commands():
        time.sleep(0.05)
    sshd.reboot()
    done = program(*words, "--json")
    assert (done.code, done.json["replayed"], done.json["stdout"]) == (0, True, "out\n")
    assert count.count == 1


def test_the_runners_own_machine_reboots(sshd: Sshd, tmp_path: Path) -> None:
    """An owner and a runner of another boot are gone, though their numbers are alive: this test's process is."""
    program, count = Program(tmp_path, sshd.ssh_config_path), sshd.counter()
    words = ("run", sshd.accounts[sshd.user].alias, "add", f"path={count.path}", "--op", "op-a")
    before = program.with_environ(SSHOP_SESSION="ses-before")
    killed = before.start("after", "attempt.dispatched", *words, script=KILLED)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    other = program.with_environ(SSHOP_SESSION="ses-after")
    assert other(*words).code == 12
    boot = tmp_path / "boot_id"
    boot.write_text(f"{uuid.uuid4()}\n")
    mount = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    argv = [require_tool("unshare"), "-m", "/bin/sh", "-c", mount, str(boot)]
    if os.geteuid() != 0:
        missing("no other boot identity for sshop without root")
    done = subprocess.run([*argv, *COMMAND, *words], env=other.environ, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert count.count == 1
    ledger = SqliteLedger.open(program.ledger)
    operation = ledger.operation("op-a")
    types = [event.type for event in ledger.events("op-a")]
    ledger.close()
    assert operation.owner == "ses-after"
    assert "owner.changed" in types
    assert [attempt.dispatch_state for attempt in operation.attempts] == ["sent_no_response", "response_received"]


KILLED = "import runpy; runpy.run_module('tests.support.killed', run_name='__main__', alter_sys=True)"
COMMAND = (sys.executable, "-m", "sshop.cli.entry")
