# ruff: noqa: ASYNC240 - a test has its event loop to itself
"""Ways to a host: jump hosts and proxy commands."""

import asyncio
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sshop.errors import ConnectTimeout, HostKeyRefused, HostUnreachable, LinkLost, LoginRefused, UsageError
from sshop.ports import Limits
from sshop.transport import SshTransport
from tests.support.process import descendants
from tests.support.sshd import Sshd
from tests.support.tools import require_tool

ENVIRON = {"HOME": "/dev/null", "PATH": os.environ["PATH"]}
LIMITS = Limits(connect=5, handshake=5, login=5, dead_after=1.2)
GUARD = b"while read -r line; do echo got $line; done\n"


@pytest.fixture
def jump() -> Iterator[Sshd]:
    with Sshd(users=["dash"]) as server:
        yield server


class Net:
    def __init__(self, folder: Path, inner: Sshd, jump: Sshd) -> None:
        self.folder, self.inner, self.jump = folder, inner, jump

    def transport(self, *extra: str, jump_extra: tuple[str, ...] = ()) -> SshTransport:
        lines = []
        for alias, server, more in (("inner", self.inner, extra), ("jump", self.jump, jump_extra)):
            lines += [f"Host {alias}", *more, "HostName 127.0.0.1", f"Port {server.port}", f"User {server.user}"]
            lines += [f"IdentityFile {server.client_key_path}", f"UserKnownHostsFile {server.known_hosts_path}"]
            lines += ["GlobalKnownHostsFile none"]
        path = self.folder / "config"
        path.write_text("\n".join(lines) + "\n")
        return SshTransport(ssh_config=path, environ=ENVIRON)


@pytest.fixture
def net(tmp_path: Path, sshd: Sshd, jump: Sshd) -> Net:
    return Net(tmp_path, sshd, jump)


async def talk(transport: SshTransport) -> str:
    connection = await transport.connect(transport.resolve("inner"), LIMITS)
    channel = await connection.open_guard(GUARD, "~/.sshop", install=True)
    await channel.send(b"word\n")
    assert await channel.receive() == b"got word\n"
    await channel.close()
    await connection.close()
    return connection.host_key


async def test_a_host_behind_a_jump_host_is_reached(net: Net):
    direct = await talk(net.transport())
    before = len(net.jump.log_path.read_text().split("Accepted publickey"))
    assert await talk(net.transport("ProxyJump jump")) == direct
    assert len(net.jump.log_path.read_text().split("Accepted publickey")) == before + 1


async def test_jump_hosts_in_a_row_and_of_a_jump_host(net: Net):
    user, port = net.jump.user, net.jump.port
    by_port = f"{user}@127.0.0.1:{port}"
    await talk(net.transport("ProxyJump jump,jump"))
    # a jump host that is no alias has the keys of nobody in particular
    transport = net.transport(f"ProxyJump {by_port}")
    known = net.jump.known_hosts_path
    path = net.folder / "config"
    path.write_text(path.read_text() + f"Host 127.0.0.1\nUserKnownHostsFile {known}\nGlobalKnownHostsFile none\n")
    with pytest.raises(LoginRefused, match=f"jump host {by_port}"):
        await talk(transport)
    with pytest.raises(UsageError, match="more than 8"):
        await talk(net.transport("ProxyJump jump", jump_extra=("ProxyJump jump",)))


async def test_a_jump_host_is_judged_as_strictly_and_named(net: Net, tmp_path: Path):
    nothing = f"UserKnownHostsFile {tmp_path}/nothing"
    with pytest.raises(HostKeyRefused, match="jump host jump: ") as caught:
        await talk(net.transport("ProxyJump jump", jump_extra=(nothing,)))
    assert str(net.jump.port) in caught.value.message
    with pytest.raises(LoginRefused, match="jump host jump: "):
        await talk(net.transport("ProxyJump jump", jump_extra=("PubkeyAuthentication no",)))
    with pytest.raises(HostUnreachable, match=r"jump host jump: .*cannot connect"):
        await talk(net.transport("ProxyJump jump", jump_extra=("Port 1",)))


async def test_the_host_behind_is_judged_by_its_own_name(net: Net, tmp_path: Path):
    nothing = f"UserKnownHostsFile {tmp_path}/nothing"
    with pytest.raises(HostKeyRefused) as caught:
        await talk(net.transport("ProxyJump jump", nothing))
    assert "jump host" not in caught.value.message
    # the jump host's key under the address that both have is not the inner one's
    (tmp_path / "nothing").write_text(f"127.0.0.1 {net.jump.host_key_public}\n")
    with pytest.raises(HostKeyRefused):
        await talk(net.transport("ProxyJump jump", nothing))


async def test_a_jump_host_that_cannot_go_on_says_so(net: Net):
    with pytest.raises(HostUnreachable, match="the jump host cannot connect to it: "):
        await talk(net.transport("ProxyJump jump", "Port 1"))
    server = Sshd(users=["dash"], options={"AllowTcpForwarding": "no"})
    with server as closed, pytest.raises(HostUnreachable, match="the jump host cannot connect to it: "):
        await talk(Net(net.folder, net.inner, closed).transport("ProxyJump jump"))


async def test_a_jump_host_that_dies_is_a_lost_line(net: Net):
    transport = net.transport("ProxyJump jump")
    for harm in (net.jump.kill_sessions, net.jump.freeze_sessions):
        connection = await transport.connect(transport.resolve("inner"), LIMITS)
        channel = await connection.open_guard(GUARD, "~/.sshop", install=True)
        await channel.send(b"word\n")
        assert await channel.receive() == b"got word\n"
        harm()
        start = time.monotonic()
        with pytest.raises(LinkLost):
            await channel.receive()
        assert time.monotonic() - start < 1.6
        await channel.close()
        await connection.close()
        assert time.monotonic() - start < 3.5
        net.jump.end_sessions()


async def test_a_proxy_command_carries_the_connection_and_ends_with_it(net: Net):
    relay = Path(net.folder / "relay.py")
    relay.write_text(
        "import socket, sys, threading, os\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "    s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    python = shlex.quote(os.path.realpath("/proc/self/exe"))
    transport = net.transport(f"ProxyCommand {python} -I -S {relay} '%h' %p # %r")
    await talk(transport)
    assert not [p for p in descendants(os.getpid()) if p.name.startswith("python") and _runs(p.pid, str(relay))]


def _runs(pid: int, word: str) -> bool:
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def test_a_real_ssh_as_proxy_command(net: Net):
    jump = net.jump
    argv = [require_tool("ssh"), "-F", "none", "-i", jump.client_key_path, "-p", jump.port]
    argv += ["-o", f"UserKnownHostsFile={jump.known_hosts_path}", "-W", "%h:%p", f"{jump.user}@127.0.0.1"]
    await talk(net.transport("ProxyCommand " + " ".join(str(each) for each in argv)))


async def test_a_proxy_command_that_fails_is_unreachable_with_its_words(net: Net):
    with pytest.raises(HostUnreachable, match="no way there today"):
        await talk(net.transport("ProxyCommand sh -c 'echo no way there today >&2; exit 1'"))
    with pytest.raises(HostUnreachable, match="not found"):
        await talk(net.transport("ProxyCommand /no/such/program"))


async def test_a_proxy_command_that_hangs_ends_within_the_limit_and_is_killed(net: Net):
    transport = net.transport("ProxyCommand sh -c 'trap \"\" HUP; sleep 77; exit'")
    start = time.monotonic()
    with pytest.raises(ConnectTimeout):
        await transport.connect(transport.resolve("inner"), Limits(handshake=0.3))
    assert time.monotonic() - start < 2
    await asyncio.sleep(0.05)
    assert not [p for p in descendants(os.getpid()) if p.state != "Z" and _runs(p.pid, "77")]
    # and when the caller is cancelled
    task = asyncio.ensure_future(transport.connect(transport.resolve("inner"), Limits()))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert not [p for p in descendants(os.getpid()) if p.state != "Z" and _runs(p.pid, "77")]
