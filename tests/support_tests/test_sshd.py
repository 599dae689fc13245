import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import asyncssh
import pytest

from tests.support.accounts import LOGIN_SHELLS
from tests.support.process import read_process, wait_gone
from tests.support.relay import Relay
from tests.support.sshd import ROOT, Sshd, own_name
from tests.support.tools import require_root, require_tool


def wait_until(true, limit_s: float = 10) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_each_login_shell_has_an_account_with_a_home_of_its_own(sshd: Sshd, shell: str) -> None:
    user = sshd.require_user(shell)
    done = sshd.ssh(user, "pwd; echo $HOME; echo $USER")
    home = str(sshd.home(user))
    assert done.stdout.decode().split() == [home, home, user]
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_login_as_oneself_does_not_touch_the_real_home(sshd: Sshd) -> None:
    done = sshd.ssh(own_name(), 'printf "%s" "$HOME"; : >"$HOME/seen"')
    assert done.stdout.decode() == str(sshd.home(own_name()))
    assert (sshd.home(own_name()) / "seen").exists()


def test_as_root_accounts_are_real_users_that_cannot_read_each_other(sshd: Sshd) -> None:
    require_root()
    one, two = sshd.require_user("bash"), sshd.require_user("dash")
    (sshd.home(two) / "secret").write_text("x")
    assert sshd.ssh(one, f"cat {sshd.home(two)}/secret").returncode != 0
    assert sshd.ssh(one, "id -un").stdout.decode().strip() == one


def test_the_real_account_files_are_not_changed(sshd: Sshd) -> None:
    assert "u-bash" not in Path("/etc/passwd").read_text()


def test_standard_input_output_and_status_pass_unchanged(sshd: Sshd) -> None:
    data = bytes(range(256)) * 100
    done = sshd.ssh(own_name(), "cat; exit 7", data=data)
    assert (done.stdout, done.returncode) == (data, 7)


async def test_asyncssh_reads_the_same_configuration(sshd: Sshd) -> None:
    alias = sshd.accounts[own_name()].alias
    async with asyncssh.connect(alias, config=[str(sshd.ssh_config_path)]) as connection:
        done = await connection.run("echo hello; exit 3")
    assert (done.stdout, done.exit_status) == ("hello\n", 3)


async def test_a_connection_goes_through_a_relay_by_its_own_configuration(sshd: Sshd, relay: Relay) -> None:
    config = sshd.write_ssh_config(relay.port)
    async with asyncssh.connect(sshd.accounts[own_name()].alias, config=[str(config)]) as connection:
        assert (await connection.run("echo hello")).stdout == "hello\n"
    assert relay.connections == 1
    assert relay.bytes_up > 1000


def start_sleeper(sshd: Sshd, user: str) -> subprocess.Popen[bytes]:
    """A session whose command counts itself at its end."""
    counter = sshd.counter(user)
    command = f"touch {counter.path.parent}/begun; sleep 1; {counter.shell}"
    argv = [require_tool("ssh"), "-F", str(sshd.ssh_config_path), sshd.accounts[user].alias, command]
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((counter.path.parent / "begun").exists)
    return child


def test_a_cut_kills_the_servers_side_and_not_the_command(sshd: Sshd) -> None:
    user = own_name()
    with start_sleeper(sshd, user) as child:
        assert sshd.kill_sessions()
        assert sshd.sessions() == []
        assert child.wait(5) == 255
    sshd.counter(user).wait_for(1)
    assert sshd.ssh(user, "exit 4").returncode == 4


def test_a_frozen_session_says_nothing_until_it_is_thawed(sshd: Sshd) -> None:
    user = own_name()
    with start_sleeper(sshd, user) as child:
        frozen = sshd.freeze_sessions()
        assert frozen
        sshd.counter(user).wait_for(1)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        assert sshd.thaw_sessions() == frozen
        assert child.wait(5) == 0


def test_a_reset_ends_detached_commands_and_empties_homes(sshd: Sshd) -> None:
    user = own_name()
    sshd.ssh(user, "touch left; setsid sleep 300 </dev/null >/dev/null 2>&1 &")
    [sleeper] = [p for p in sshd.commands() if p.name == "sleep"]
    sshd.authorize("# another key")
    sshd.reset()
    wait_gone([sleeper])
    assert list(sshd.home(user).iterdir()) == []
    assert "another" not in sshd.authorized_keys_path.read_text()


def test_options_win_over_the_defaults(tmp_path: Path) -> None:
    banner = tmp_path / "banner"
    banner.write_text("hello banner\n")
    tmp_path.chmod(0o755)
    with Sshd(users=[], options={"Banner": str(banner), "ForceCommand": "echo forced; exit 9"}) as server:
        done = server.ssh(own_name(), "exit 0")
        assert (done.stdout, done.returncode) == (b"forced\n", 9)
        assert b"hello banner" in done.stderr


def test_sudo_inside_obeys_the_sudoers_of_the_test() -> None:
    require_root()
    require_tool("sudo")
    rules = "root ALL=(ALL) ALL\nu-dash ALL=(u-other) NOPASSWD: ALL\n"
    with Sshd(users=["dash", "other"], sudoers=rules) as server:
        assert server.ssh("u-dash", "sudo -n -u u-other id -un").stdout == b"u-other\n"
        assert server.ssh("u-dash", "sudo -n id -un").returncode != 0
        assert server.ssh("u-other", "sudo -n -u u-dash id -un").returncode != 0


def test_two_servers_stand_beside_each_other() -> None:
    with Sshd(users=[]) as one, Sshd(users=[]) as two:
        assert one.port != two.port
        assert one.host_key_public != two.host_key_public
        assert one.ssh(own_name(), "exit 1").returncode == 1
        assert two.ssh(own_name(), "exit 2").returncode == 2


def test_nothing_is_left_of_a_server_whose_test_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(
        textwrap.dedent("""
            import sys, time
            from tests.support.sshd import Sshd, own_name
            server = Sshd(users=[])
            server.__enter__()
            server.ssh(own_name(), "setsid sleep 301 </dev/null >/dev/null 2>&1 &")
            print(*[p.pid for p in [*server.commands()]], server.pid, flush=True)
            time.sleep(60)
        """)
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        pids = [int(word) for word in child.stdout.readline().split()]
        found = [process for pid in pids if (process := read_process(pid))]
        assert len(found) >= 2
        child.send_signal(signal.SIGKILL)
        child.wait()
    wait_gone(found, 10)


def test_fifty_logins_at_once_are_served(sshd: Sshd) -> None:
    counter = sshd.counter(own_name())
    threads = [threading.Thread(target=sshd.ssh, args=[own_name(), counter.shell]) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.count == 50
