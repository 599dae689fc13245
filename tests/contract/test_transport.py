"""What every `Transport` promises (`sshop.ports`), and the parts of the delivery that need no network."""

import os
import subprocess
import sys

import pytest

from sshop.core.value import replace
from sshop.errors import Fault, GuardUnreachable, HostUnreachable, LinkLost, UsageError
from sshop.ports import Channel, Connection, Limits, Transport
from sshop.transport import SshTransport, guard
from tests.support.sshd import Sshd
from tests.support.tools import find_tool

GUARD = b"""#!/bin/sh
# it's "quoted" $HOME `x` \\ %s !
say() {
	printf '%s\\n' "$1"
}
read -r line
say "got $line"
"""
SHELLS = {
    "dash": ["dash"],
    "bash": ["bash", "--posix"],
    "busybox": ["busybox", "sh"],
    "mksh": ["mksh"],
    "ksh": ["ksh"],
    "zsh": ["zsh", "--emulate", "sh"],
    "yash": ["yash", "-o", "posix"],
}


def promises(transport: Transport) -> Transport:
    """mypy reads this too."""
    return transport


@pytest.fixture
def transport(sshd: Sshd) -> Transport:
    return promises(
        SshTransport(ssh_config=sshd.ssh_config_path, environ={"HOME": "/dev/null", "PATH": "/bin:/usr/bin"})
    )


async def test_a_transport_resolves_without_a_network(transport: Transport, sshd: Sshd):
    account = transport.resolve("t-dash")
    assert account.host == "t-dash"
    assert account.key == f"u-dash@127.0.0.1:{sshd.port}"
    assert transport.resolve("somebody@t-dash:2").key == "somebody@127.0.0.1:2"


async def test_a_word_of_our_own_stands_for_one_of_the_configuration(sshd: Sshd):
    environ = {"HOME": "/dev/null", "PATH": "/bin:/usr/bin"}
    transport = SshTransport(ssh_config=sshd.ssh_config_path, environ=environ, names={"web": "t-dash"})
    account = transport.resolve("web")
    assert account.host == "web"
    assert account.user == "u-dash"
    await (await transport.connect(account, Limits())).close()


@pytest.mark.parametrize(
    "host",
    ["", "-oProxyCommand=x", "a b", "a;b", "u@", "@h", "h:0", "h:65536", "h:x", "h:", "$(x)", "a\nb", "-x@h", "a'b@h"],
)
async def test_a_word_that_is_no_host_is_a_usage_error(transport: Transport, host: str):
    with pytest.raises(UsageError):
        transport.resolve(host)


async def test_a_connection_proves_its_host_and_names_its_credential(transport: Transport):
    connection: Connection = await transport.connect(transport.resolve("t-dash"), Limits())
    assert connection.host_key.startswith("SHA256:")
    assert connection.authority_ref.startswith("publickey SHA256:")
    await connection.close()
    await connection.close()


async def test_a_guard_is_installed_only_when_asked_and_answers_on_its_channel(transport: Transport):
    connection = await transport.connect(transport.resolve("t-dash"), Limits())
    channel: Channel = await connection.open_guard(GUARD, "~/.sshop")
    await channel.send(b"one\n")
    assert await channel.receive() == b""
    await channel.close()
    channel = await connection.open_guard(GUARD, "~/.sshop", install=True)
    await channel.send(b"two\n")
    assert await channel.receive() == b"got two\n"
    assert await channel.receive() == b""
    assert channel.noise() == b""
    await channel.close()
    await connection.close()


async def test_an_aborted_connection_is_lost_to_its_channels(transport: Transport):
    connection = await transport.connect(transport.resolve("t-dash"), Limits())
    channel = await connection.open_guard(GUARD, "~/.sshop", install=True)
    connection.abort()
    with pytest.raises(LinkLost):
        await channel.receive()
    with pytest.raises(LinkLost):
        await channel.send(b"x\n")
    await channel.close()
    await connection.close()


async def test_the_account_that_was_resolved_wins_over_what_the_configuration_says_now(
    transport: Transport, sshd: Sshd
):
    account = replace(transport.resolve("t-dash"), port=1)
    with pytest.raises(HostUnreachable, match="port 1"):
        await transport.connect(account, Limits())


# The installer as text.


@pytest.mark.parametrize("shell", SHELLS)
def test_the_installer_works_on_the_standard_input_of_every_shell(shell: str, tmp_path):
    argv = SHELLS[shell]
    if find_tool(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    home = tmp_path / "a home"
    home.mkdir()
    for text in (GUARD, guard.load()):
        for _ in range(2):
            done = run_installer(argv, text, home)
            guard.check_installed(done.stdout, done.stderr, "0a1b")
            assert done.stderr == b""
            assert (home / ".sshop" / "guard" / guard.digest(text)).read_bytes() == text
    assert len(list((home / ".sshop" / "guard").iterdir())) == 2


@pytest.mark.parametrize("shell", SHELLS)
def test_a_truncated_installer_does_nothing(shell: str, tmp_path):
    argv = SHELLS[shell]
    if find_tool(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    script = guard.installer(GUARD, "~/.sshop", "0a1b")
    for size in [*range(1, len(script) - 3, 211), len(script) - 3]:
        done = subprocess.run(
            argv,
            input=script[:size],
            capture_output=True,
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            check=False,
        )
        assert list(tmp_path.iterdir()) == [], size
        with pytest.raises(GuardUnreachable):
            guard.check_installed(done.stdout, done.stderr, "0a1b")


def run_installer(argv, text, home):
    script = guard.installer(text, "~/.sshop", "0a1b")
    return subprocess.run(
        argv,
        input=script,
        capture_output=True,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("root", ["", "sshop", "~/../x", "/a b", "~user/x", "/x;y", "~/.sshop\n", "/a/../b", "~/$x"])
def test_a_root_that_shells_would_read_differently_is_refused(root: str):
    with pytest.raises(UsageError):
        guard.command(GUARD, root)


def test_the_command_line_is_plain_words():
    assert guard.command(GUARD) == f"/bin/sh ~/.sshop/guard/{guard.digest(GUARD)}"
    assert guard.command(GUARD, "/var/lib/sshop").startswith("/bin/sh /var/lib/sshop/guard/")


@pytest.mark.parametrize("text", [b"a\r\n", b"a\0\n", "ä\n".encode(), b"no newline"])
def test_a_guard_that_cannot_travel_is_a_fault(text: bytes):
    with pytest.raises(Fault):
        guard.installer(text, "~/.sshop", "0a1b")


def test_only_the_answer_with_the_token_counts():
    guard.check_installed(b"noise\nsshop-install 0a1b ok\n", b"", "0a1b")
    with pytest.raises(GuardUnreachable, match="sshop-install ffff ok"):
        guard.check_installed(b"\nsshop-install ffff ok\n", b"", "0a1b")
    with pytest.raises(GuardUnreachable, match="said nothing"):
        guard.check_installed(b"", b"", "0a1b")


def test_noise_is_shown_on_one_line_and_without_control_characters():
    assert guard.show_noise(b"a\x1b[31m red\x1b[0m\n\n\0b\x07", b"c\xff") == "a red; b; c\ufffd"
    assert len(guard.show_noise(b"x" * 9000)) == 2001


# What an import costs.


def test_neither_the_import_nor_a_connection_starts_a_child_process(sshd: Sshd):
    script = (
        "import sys\n"
        "def watch(event, arguments):\n"
        "    if event in ('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'os.exec', 'os.system', 'os.forkpty'):\n"
        "        raise SystemExit(f'{event} {arguments}')\n"
        "sys.addaudithook(watch)\n"
        "import asyncio\n"
        "from sshop.transport import SshTransport\n"
        "from sshop.ports import Limits\n"
        "async def main():\n"
        f"    transport = SshTransport(ssh_config={str(sshd.ssh_config_path)!r})\n"
        "    connection = await transport.connect(transport.resolve('t-dash'), Limits())\n"
        "    await connection.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_resolving_a_host_imports_no_ssh_library():
    script = (
        "import sys\n"
        "from sshop.transport import SshTransport\n"
        "SshTransport(ssh_config='none').resolve('h')\n"
        "assert not {'asyncssh', 'cryptography', 'asyncio', 'pydantic'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
