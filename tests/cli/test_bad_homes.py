"""A host account that cannot hold a guard or a store: a clear error, its exit code, and nothing ran."""

import os
import shutil
import subprocess

import pytest

from tests.support.program import Program
from tests.support.sshd import Sshd
from tests.support.tools import require_root, require_tool


def give_way(sshd: Sshd, program: Program, user: str, code: tuple[int, ...], *texts: str) -> None:
    """The run fails so, its text names why, and nothing of it is left open."""
    alias, counter = sshd.accounts[user].alias, sshd.base / "count"
    done = program("run", alias, "add", f"path={counter}", "--op", "op-h", "--recover", "none", "--json")
    assert done.code in code, done.text
    assert "Traceback" not in done.text
    assert any(text in done.text for text in texts), done.text
    assert done.json["error"]["message"]
    assert not counter.exists()
    assert done.json["state"] in ("open", "cancelled")
    assert program("unresolved").code == 0
    assert program("doctor", alias).code == 1


def test_a_home_that_is_missing(program: Program, sshd: Sshd):
    require_root()
    user = sshd.require_user("dash")
    shutil.rmtree(sshd.home(user))
    try:
        give_way(sshd, program, user, (8, 9), "home", "No such file", "Permission denied")
    finally:
        sshd.accounts[user].make_home()


@pytest.mark.parametrize("text", ["", "cat\n", "exit 0\n", "main() {\n"])
def test_a_guard_that_was_damaged_is_put_there_anew(program: Program, sshd: Sshd, text: str):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", "--json", "--op")
    assert program(*words, "op-a").code == 0
    [guard] = (sshd.home() / ".sshop" / "guard").iterdir()
    whole = guard.read_bytes()
    guard.write_text(text)
    done = program(*words, "op-b")
    assert (done.code, counter.count, guard.read_bytes() == whole) == (0, 2, True), done.text


def test_a_home_that_cannot_be_written(program: Program, sshd: Sshd):
    require_root()
    user = sshd.require_user("dash")
    sshd.home(user).chmod(0o500)
    give_way(sshd, program, user, (8, 9), "Permission denied")


@pytest.mark.parametrize("noise", ["This account is currently not available."])
def test_a_login_shell_that_refuses(tmp_path, noise):
    require_root()
    nologin = require_tool("nologin")
    with Sshd(users=["closed"]) as sshd:
        text = (sshd.base / "etc" / "passwd").read_text()
        (sshd.base / "etc" / "passwd").write_text(text.replace(f"{sshd.home('u-closed')}:/bin/sh", f"/:{nologin}"))
        program = Program(tmp_path, sshd.ssh_config_path)
        give_way(sshd, program, "u-closed", (8,), noise)


def test_a_home_on_a_full_disk(program: Program, sshd: Sshd):
    require_root()
    user = sshd.require_user("dash")
    # the server's own mount namespace is where its accounts live
    enter = ["nsenter", "--mount", "--target", str(sshd.pid)]
    require_tool("nsenter")
    home = sshd.home(user)
    mounted = subprocess.run(
        [*enter, "mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(home)], check=False
    )
    if mounted.returncode:
        pytest.skip("no mount here")
    account = sshd.accounts[user]
    fill = f"chown {account.uid}:{account.gid} {home}; cat /dev/zero >{home}/fill; true"
    subprocess.run([*enter, "sh", "-c", fill], check=True, stderr=subprocess.DEVNULL)
    try:
        give_way(sshd, program, user, (8, 9), "space", "No space left")
    finally:
        subprocess.run([*enter, "umount", str(home)], check=False)
    # room again: the same operation goes on
    done = program("run", account.alias, "add", f"path={home / 'count'}")
    assert done.code == 0, done.text
    assert (home / "count").stat().st_size == 1


def test_a_host_clock_that_says_nonsense_stops_nothing(program: Program, sshd: Sshd):
    user = sshd.require_user("bash")
    home = sshd.home(user)
    (home / "bin").mkdir()
    (home / "bin" / "date").write_text("#!/bin/sh\necho '%N garbage 1970'\n")
    (home / "bin" / "date").chmod(0o755)
    (home / ".bashrc").write_text(f"PATH={home}/bin:$PATH\n")
    if os.geteuid() == 0:
        for path in (home / "bin", home / "bin" / "date", home / ".bashrc"):
            os.chown(path, sshd.accounts[user].uid, -1)
    done = program("run", sshd.accounts[user].alias, "add", f"path={home / 'count'}")
    assert done.code == 0, done.text
    assert (home / "count").stat().st_size == 1
