"""Time limits and what a server refuses by its own limits. Cases 001, 006, 009, 013, 054, 073, 075."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sshop.errors import (
    ConnectTimeout,
    GuardUnreachable,
    HostUnreachable,
    LinkIdle,
    LinkLost,
    LoginRefused,
    RateLimited,
)
from sshop.ports import Limits
from sshop.transport import SshTransport
from sshop.transport.ssh import SshConnection
from tests.support.relay import Relay
from tests.support.ssh_client import rude_server, write_config
from tests.support.sshd import Sshd

ENVIRON = {"HOME": "/dev/null", "PATH": os.environ["PATH"]}
ECHO = b'#!/bin/sh\necho hello\nwhile read -r line; do echo "got $line"; done\n'


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def to(port: int, tmp_path: Path, sshd: Sshd, *extra: str) -> SshTransport:
    return SshTransport(ssh_config=write_config(tmp_path / "config", sshd, port=port, extra=extra), environ=ENVIRON)


async def connect(transport: SshTransport, limits: Limits | None = None, host: str = "host") -> SshConnection:
    return await transport.connect(transport.resolve(host), limits or Limits())


@pytest.fixture
def transport(sshd: Sshd) -> SshTransport:
    return SshTransport(ssh_config=sshd.ssh_config_path, environ=ENVIRON)


async def test_a_port_that_nobody_listens_on_is_unreachable(sshd: Sshd, tmp_path: Path):
    with pytest.raises(HostUnreachable, match=r"127\.0\.0\.1 port 1: cannot connect: .*refused"):
        await connect(to(1, tmp_path, sshd))


async def test_a_name_that_does_not_resolve_is_unreachable(sshd: Sshd, tmp_path: Path):
    with pytest.raises(HostUnreachable, match="cannot be resolved"):
        await connect(to(22, tmp_path, sshd, "HostName no-such-host.invalid"))


async def test_no_answer_to_the_connect_ends_within_its_limit(sshd: Sshd, tmp_path: Path):
    import socket

    with socket.socket() as full:
        # a backlog that is full drops what comes next, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fill = [socket.socket() for _ in range(4)]
        for each in fill:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        with within(1.5), pytest.raises(ConnectTimeout, match=r"no TCP connection within 0\.5 s"):
            await connect(to(port, tmp_path, sshd), Limits(connect=0.5))
        with within(2), pytest.raises(ConnectTimeout, match="no TCP connection within 1 s"):
            await connect(to(port, tmp_path, sshd, "ConnectTimeout 1"), Limits(connect=9))
        for each in fill:
            each.close()


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"hello\r\n", b"SSH-2.0-Open"])
async def test_a_listener_that_falls_silent_ends_within_the_handshake_limit(sshd: Sshd, tmp_path: Path, words: bytes):
    late = pytest.raises(ConnectTimeout, match=r"did not come to its host key within 0\.5 s")
    with rude_server(words) as port, within(1.5), late:
        await connect(to(port, tmp_path, sshd), Limits(handshake=0.5))


async def test_a_login_that_does_not_end_has_a_limit_of_its_own(sshd: Sshd, tmp_path: Path):
    # after the key exchange the next packets from the server are held back
    with Relay(sshd.port) as relay:
        transport = to(relay.port, tmp_path, sshd, f"HostKeyAlias [127.0.0.1]:{sshd.port}")
        await (await connect(transport)).close()
        total = relay.bytes_up
        for share in (0.75, 0.85, 0.92):
            relay.resume()
            relay.reset_counters()
            relay.arm(at=int(total * share), direction="up", action="stall")
            with within(2), pytest.raises(ConnectTimeout, match=r"login did not come to an end within 0\.5 s"):
                await connect(transport, Limits(login=0.5))


async def test_what_is_no_ssh_server_is_named(sshd: Sshd, tmp_path: Path):
    web = rude_server(b"HTTP/1.1 400 Bad Request\r\n\r\n", then_close=True)
    with web as port, pytest.raises(HostUnreachable, match=r"no SSH server: HTTP/1\.1 400 Bad Request"):
        await connect(to(port, tmp_path, sshd))
    with rude_server(b"SSH-1.5-old\r\n") as port, pytest.raises(HostUnreachable, match="no SSH can be agreed on"):
        await connect(to(port, tmp_path, sshd))


@pytest.mark.parametrize("words", [b"", b"Exceeded MaxStartups\r\n", b"Not allowed at this time\r\n"])
async def test_a_server_that_hangs_up_before_its_first_line_is_rate_limited(sshd: Sshd, tmp_path: Path, words: bytes):
    with rude_server(words, then_close=True) as port, pytest.raises(RateLimited, match="127"):
        await connect(to(port, tmp_path, sshd))


async def test_max_startups_of_a_real_sshd_is_rate_limited(tmp_path: Path):
    import socket

    with Sshd(users=["dash"], options={"MaxStartups": "1:100:1"}) as sshd:
        transport = to(sshd.port, tmp_path, sshd)
        with socket.create_connection(("127.0.0.1", sshd.port)) as held:
            held.recv(64)
            with pytest.raises(RateLimited):
                await connect(transport)
        for _ in range(50):
            try:
                await (await connect(transport)).close()
                break
            except RateLimited:
                await asyncio.sleep(0.05)
        else:
            pytest.fail("still refused")


async def test_no_common_algorithm_is_named(sshd: Sshd, tmp_path: Path):
    server = Sshd(users=["dash"], options={"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"})
    with server as other, pytest.raises(HostUnreachable, match=r"no SSH can be agreed on|ended in the handshake"):
        await connect(to(other.port, tmp_path, other))


async def test_the_eleventh_session_is_rate_limited_and_no_slot_leaks(tmp_path: Path):
    with Sshd(users=["dash"], options={"MaxSessions": "10"}) as sshd:
        connection = await connect(to(sshd.port, tmp_path, sshd))
        channels = [await connection.open_guard(ECHO, "~/.sshop", install=True)]
        channels += [await connection.open_guard(ECHO, "~/.sshop") for _ in range(9)]
        with pytest.raises(RateLimited, match="MaxSessions"):
            await connection.open_guard(ECHO, "~/.sshop")
        for channel in channels:
            await channel.close()
        for _ in range(30):
            channel = await connection.open_guard(ECHO, "~/.sshop")
            await channel.send(b"x\n")
            assert b"hello" in await channel.receive()
            await channel.close()
        await connection.close()


async def test_a_frozen_host_opens_no_channel_and_the_connection_is_dropped(sshd: Sshd, transport: SshTransport):
    connection = await connect(transport, Limits(channel=0.5), "t-dash")
    await (await connection.open_guard(ECHO, "~/.sshop", install=True)).close()
    sshd.freeze_sessions()
    with within(1.5), pytest.raises(ConnectTimeout, match=r"did not open a channel within 0\.5 s"):
        await connection.open_guard(ECHO, "~/.sshop")
    await asyncio.sleep(0.05)
    assert connection.is_down
    with within(1), pytest.raises(LinkLost):
        await connection.open_guard(ECHO, "~/.sshop")
    with within(2):
        await connection.close()


@pytest.mark.parametrize("how", ["freeze", "stall"])
async def test_a_dead_peer_is_noticed_in_time(sshd: Sshd, tmp_path: Path, how: str):
    with Relay(sshd.port) as relay:
        transport = to(relay.port, tmp_path, sshd, f"HostKeyAlias [127.0.0.1]:{sshd.port}")
        connection = await connect(transport, Limits(dead_after=1.2))
        channel = await connection.open_guard(ECHO, "~/.sshop", install=True)
        assert await channel.receive() == b"hello\n"
        # alive: nothing is said for longer than that, and nothing happens
        await asyncio.sleep(1.5)
        await channel.send(b"a\n")
        assert await channel.receive() == b"got a\n"
        if how == "freeze":
            sshd.freeze_sessions()
        else:
            relay.stall()
        start = time.monotonic()
        with pytest.raises(LinkLost, match="not responding"):
            await channel.receive()
        assert time.monotonic() - start < 1.4
        with pytest.raises(LinkLost):
            await channel.send(b"b\n")
        with within(1):
            await channel.close()
            await connection.close()


async def test_a_living_peer_that_says_nothing_is_idle(transport: SshTransport):
    connection = await connect(transport, Limits(idle=0.3), "t-dash")
    channel = await connection.open_guard(ECHO, "~/.sshop", install=True)
    assert await channel.receive() == b"hello\n"
    with pytest.raises(LinkIdle, match=r"0\.3 s"):
        await channel.receive()
    await channel.send(b"a\n")
    assert await channel.receive() == b"got a\n"
    await channel.close()
    await connection.close()


async def test_a_cut_line_is_lost_and_what_came_before_is_read_first(sshd: Sshd, transport: SshTransport):
    connection = await connect(transport, host="t-dash")
    channel = await connection.open_guard(ECHO, "~/.sshop", install=True)
    await channel.send(b"a\n")
    await asyncio.sleep(0.2)
    sshd.kill_sessions()
    await asyncio.sleep(0.2)
    assert await channel.receive() == b"hello\ngot a\n"
    with pytest.raises(LinkLost):
        await channel.receive()
    with pytest.raises(LinkLost):
        await channel.send(b"b\n")
    with pytest.raises(LinkLost):
        await connection.open_guard(ECHO, "~/.sshop")
    with within(0.5):
        await channel.close()
        await connection.close()


@pytest.mark.parametrize("action", ["rst", "fin"])
async def test_every_end_of_the_line_is_lost(sshd: Sshd, tmp_path: Path, action: str):
    with Relay(sshd.port) as relay:
        transport = to(relay.port, tmp_path, sshd, f"HostKeyAlias [127.0.0.1]:{sshd.port}")
        connection = await connect(transport)
        channel = await connection.open_guard(ECHO, "~/.sshop", install=True)
        assert await channel.receive() == b"hello\n"
        relay.cut_now(reset=action == "rst")
        with within(1), pytest.raises(LinkLost):
            await channel.receive()
        await connection.close()


async def test_an_abort_of_ours_is_a_lost_line_as_well(transport: SshTransport):
    connection = await connect(transport, host="t-dash")
    channel = await connection.open_guard(ECHO, "~/.sshop", install=True)
    assert await channel.receive() == b"hello\n"
    reading = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0)
    connection.abort()
    with within(0.5), pytest.raises(LinkLost):
        await reading


async def test_a_cut_in_the_handshake_or_login_is_unreachable(sshd: Sshd, tmp_path: Path):
    with Relay(sshd.port) as relay:
        transport = to(relay.port, tmp_path, sshd, f"HostKeyAlias [127.0.0.1]:{sshd.port}")
        kinds = {}
        for position in [0, 10, 41, 42, 100, *range(200, 9000, 150)]:
            relay.reset_counters()
            relay.arm(at=position, direction="down", action="rst")
            with within(2):
                try:
                    connection = await connect(transport)
                except (HostUnreachable, RateLimited) as error:
                    kinds[position] = type(error)
                else:
                    # the login was through before that position
                    await connection.close()
                    break
        assert len(kinds) > 15
        assert [position for position, kind in kinds.items() if kind is RateLimited] == [0]


async def test_a_cancelled_task_leaves_at_once(sshd: Sshd, transport: SshTransport, tmp_path: Path):
    with rude_server(b"") as port:
        connecting = asyncio.ensure_future(connect(to(port, tmp_path, sshd)))
        await asyncio.sleep(0.1)
        connecting.cancel()
        with within(0.5), pytest.raises(asyncio.CancelledError):
            await connecting
    connection = await connect(transport, host="t-dash")
    channel = await connection.open_guard(ECHO, "~/.sshop", install=True)
    assert await channel.receive() == b"hello\n"
    sshd.freeze_sessions()

    async def work() -> None:
        try:
            await channel.receive()
        finally:
            try:
                await channel.close()
            finally:
                await connection.close()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.sleep(0.1)
    # and once more while it cleans up
    task.cancel()
    with within(1.9), pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_opening_gives_its_slot_back(tmp_path: Path):
    with Sshd(users=["dash"], options={"MaxSessions": "2"}) as sshd:
        connection = await connect(to(sshd.port, tmp_path, sshd))
        await (await connection.open_guard(ECHO, "~/.sshop", install=True)).close()
        for _ in range(6):
            opening = asyncio.ensure_future(connection.open_guard(ECHO, "~/.sshop"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await asyncio.sleep(0.1)
        await (await connection.open_guard(ECHO, "~/.sshop")).close()
        await connection.close()


# Accounts that do not let a guard in.


async def test_a_forced_command_is_no_guard_and_its_text_is_shown(sshd: Sshd, transport: SshTransport):
    public = sshd.client_key_path.with_suffix(".pub").read_text()
    sshd.authorized_keys_path.write_text(f'command="echo maintenance; exit 0" {public}')
    connection = await connect(transport, host="t-dash")
    channel = await connection.open_guard(ECHO, "~/.sshop")
    await channel.send(b"x\n")
    output = b""
    while data := await channel.receive():
        output += data
    assert output == b"maintenance\n"
    await channel.close()
    with pytest.raises(GuardUnreachable, match="maintenance"):
        await connection.open_guard(ECHO, "~/.sshop", install=True)
    await connection.close()


async def test_a_server_that_forces_a_command_for_all_shows_its_text(tmp_path: Path):
    with Sshd(users=["dash"], options={"ForceCommand": "echo only sftp here >&2; exit 1"}) as sshd:
        connection = await connect(to(sshd.port, tmp_path, sshd))
        with pytest.raises(GuardUnreachable, match="only sftp here"):
            await connection.open_guard(ECHO, "~/.sshop", install=True)
        await connection.close()


async def test_a_server_without_sessions_is_rate_limited_or_has_no_guard(tmp_path: Path):
    with Sshd(users=["dash"], options={"MaxSessions": "0"}) as sshd:
        connection = await connect(to(sshd.port, tmp_path, sshd))
        with pytest.raises(RateLimited):
            await connection.open_guard(ECHO, "~/.sshop")
        await connection.close()


async def test_a_login_that_is_switched_off_is_refused_with_the_hosts_words(tmp_path: Path):
    server = Sshd(users=["dash"], options={"DenyUsers": "*"})
    with server as sshd, pytest.raises(LoginRefused, match="publickey SHA256:"):
        await connect(to(sshd.port, tmp_path, sshd))
