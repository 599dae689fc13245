# ruff: noqa: ASYNC221 - a test has its event loop to itself
"""A guard's channel: bytes both ways, noise, ends; and how the guard gets to a host. Cases 054, 057, 069."""

import asyncio
import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from sshop.errors import GuardUnreachable
from sshop.ports import Limits
from sshop.transport import SshTransport, guard
from tests.support.ssh_client import write_config
from tests.support.sshd import Sshd
from tests.support.tools import find_tool, require_root

ENVIRON = {"HOME": "/dev/null", "PATH": os.environ["PATH"]}
ROOT = "~/.sshop"
MEGA = 1 << 20
HELLO = b"echo hello\n"
COPY = b"exec cat\n"
COUNT = b"exec wc -c\n"


@pytest.fixture
def transport(sshd: Sshd) -> SshTransport:
    return SshTransport(ssh_config=sshd.ssh_config_path, environ=ENVIRON)


async def open_guard(transport: SshTransport, text: bytes, host: str = "t-dash", root: str = ROOT):
    connection = await transport.connect(transport.resolve(host), Limits())
    return connection, await connection.open_guard(text, root, install=True)


async def read_all(channel) -> bytes:
    output = bytearray()
    while data := await channel.receive():
        output += data
    return bytes(output)


async def test_twenty_megabytes_come_whole_on_both_streams(transport: SshTransport):
    text = (
        b"i=0; while [ $i -lt 20 ]; do head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2; i=$((i+1)); done\n"
        b"echo end\n"
    )
    connection, channel = await open_guard(transport, text)
    output = await asyncio.wait_for(read_all(channel), 60)
    assert len(output) == 20 * MEGA + 4
    assert output.endswith(b"end\n")
    assert len(channel.noise()) == 65536
    await channel.close()
    await connection.close()


async def test_twenty_megabytes_go_and_come_back(transport: SshTransport):
    connection, channel = await open_guard(transport, COPY)
    data = os.urandom(MEGA) * 20

    async def write() -> None:
        await channel.send(data)
        channel.finish()

    writing = asyncio.ensure_future(write())
    output = await asyncio.wait_for(read_all(channel), 60)
    await writing
    assert hashlib.sha256(output).digest() == hashlib.sha256(data).digest()
    await channel.close()
    await connection.close()


async def test_a_writer_waits_for_a_slow_reader(transport: SshTransport):
    connection, channel = await open_guard(transport, b"sleep 1; exec wc -c\n")
    start = time.monotonic()
    await channel.send(bytes(8 * MEGA))
    assert time.monotonic() - start > 0.5
    channel.finish()
    assert (await read_all(channel)).split() == [str(8 * MEGA).encode()]
    await connection.close()


async def test_a_reader_that_does_not_read_holds_the_host_up(transport: SshTransport, sshd: Sshd):
    connection, channel = await open_guard(
        transport, b"i=0; while [ $i -lt 20 ]; do head -c 1048576 /dev/zero; i=$((i+1)); echo $i >~/at; done\n"
    )
    await asyncio.sleep(0.7)
    at = int((sshd.home("u-dash") / "at").read_text())
    assert at < 10
    assert len(await read_all(channel)) == 20 * MEGA
    await connection.close()


async def test_any_bytes_pass(transport: SshTransport):
    connection, channel = await open_guard(transport, COPY)
    data = bytes(range(256)) * 3
    await channel.send(data)
    await channel.send(b"")
    channel.finish()
    assert await read_all(channel) == data
    assert await channel.receive() == b""
    await connection.close()


async def test_writing_to_a_guard_that_left_is_no_error_and_its_end_is_seen(transport: SshTransport):
    connection, channel = await open_guard(transport, b"echo out; echo noise >&2; exit 7\n")
    assert await read_all(channel) == b"out\n"
    await channel.send(bytes(4 * MEGA))
    assert await channel.receive() == b""
    assert channel.noise() == b"noise\n"
    assert not any("status" in name or "exit" in name for name in dir(channel))
    await channel.close()
    await channel.close()
    await connection.close()


async def test_a_guard_that_leaves_in_the_middle_of_a_write_does_not_hold_it_up(transport: SshTransport):
    connection, channel = await open_guard(transport, b"head -c 100 >/dev/null; echo enough; exit 0\n")
    await asyncio.wait_for(channel.send(bytes(20 * MEGA)), 10)
    assert await read_all(channel) == b"enough\n"
    await connection.close()


async def test_what_was_sent_goes_out_before_a_close(transport: SshTransport, sshd: Sshd):
    connection, channel = await open_guard(transport, b"cat >~/got\n")
    await channel.send(b"x" * MEGA)
    await channel.close()
    await connection.close()
    assert (sshd.home("u-dash") / "got").stat().st_size == MEGA


async def test_a_close_does_not_wait_for_a_guard_that_stays(transport: SshTransport):
    connection, channel = await open_guard(transport, b"sleep 30\n")
    start = time.monotonic()
    await channel.close()
    await connection.close()
    assert time.monotonic() - start < 1.8


async def test_many_channels_share_a_connection(transport: SshTransport):
    connection, first = await open_guard(transport, COPY)
    channels = [first, *[await connection.open_guard(COPY, ROOT) for _ in range(7)]]
    for number, channel in enumerate(channels):
        await channel.send(b"%d" % number)
        channel.finish()
    assert [await read_all(channel) for channel in channels] == [b"%d" % n for n in range(8)]
    for channel in channels:
        await channel.close()
    await connection.close()


# Delivery.


async def test_a_guard_that_is_not_there_ends_its_channel_without_a_word_and_is_installed(transport: SshTransport):
    connection = await transport.connect(transport.resolve("t-dash"), Limits())
    channel = await connection.open_guard(HELLO, ROOT)
    await channel.send(b"head of a request\n")
    assert await read_all(channel) == b""
    assert b"guard" in channel.noise()
    await channel.close()
    channel = await connection.open_guard(HELLO, ROOT, install=True)
    assert await read_all(channel) == b"hello\n"
    channel = await connection.open_guard(HELLO, ROOT)
    assert await read_all(channel) == b"hello\n"
    await connection.close()


async def test_a_broken_guard_is_replaced(transport: SshTransport, sshd: Sshd):
    connection, _ = await open_guard(transport, HELLO)
    path = sshd.home("u-dash") / ".sshop" / "guard" / guard.digest(HELLO)
    path.write_text("echo broken\n")
    channel = await connection.open_guard(HELLO, ROOT, install=True)
    assert await read_all(channel) == b"hello\n"
    assert path.read_bytes() == HELLO
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    await connection.close()


async def test_the_real_guard_says_hello_from_every_login_shell(transport: SshTransport, sshd: Sshd):
    nonce = "0123456789abcdef" * 2
    for account in sshd.accounts.values():
        connection, channel = await open_guard(transport, guard.load(), account.alias)
        await channel.send(f"sshop1 {nonce} hello\n?\n".encode())
        channel.finish()
        output = await read_all(channel)
        assert output.startswith(b"\nsshop1 %b hello " % nonce.encode()), account.name
        assert output.endswith(b"end\n"), account.name
        await connection.close()


async def test_noisy_start_up_files_do_not_stop_an_installation(transport: SshTransport, sshd: Sshd):
    noise = "printf 'Welcome\\n\\033[31mhome\\033[0m\\0 no newline'\necho oops >&2\n"
    for user, file in (
        ("u-bash", ".bashrc"),
        ("u-zsh", ".zshenv"),
        ("u-fish", ".config/fish/config.fish"),
        ("u-tcsh", ".cshrc"),
    ):
        if user not in sshd.accounts:
            continue
        path = sshd.home(user) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(noise.replace(" >&2", "") if user == "u-tcsh" else noise)
        path.chmod(0o644)
        for parent in path.relative_to(sshd.home(user)).parents:
            (sshd.home(user) / parent).chmod(0o755)
        connection, channel = await open_guard(transport, HELLO, sshd.accounts[user].alias)
        assert (await read_all(channel)).endswith(b"hello\n"), user
        await connection.close()


async def test_an_installation_that_fails_says_why(transport: SshTransport, sshd: Sshd, tmp_path: Path):
    home = sshd.home("u-dash")
    connection = await transport.connect(transport.resolve("t-dash"), Limits())

    async def refused(root: str = ROOT) -> str:
        with pytest.raises(GuardUnreachable) as caught:
            await connection.open_guard(HELLO, root, install=True)
        return caught.value.message

    (home / ".sshop").write_text("")
    assert "/.sshop is not a folder" in await refused() or "cannot be made" in await refused()
    (home / ".sshop").unlink()
    (home / ".sshop").symlink_to("/tmp")
    assert "/.sshop is a symbolic link" in await refused()
    (home / ".sshop").unlink()
    (home / ".sshop" / "guard" / guard.digest(HELLO)).mkdir(parents=True)
    if os.geteuid() == 0:
        assert "belongs to another account (uid 0)" in await refused()
        subprocess.run(["chown", "-R", str(sshd.accounts["u-dash"].uid), str(home / ".sshop")], check=True)
    assert "is a folder" in await refused()
    assert "/proc" in await refused("/proc/sshop")
    await connection.close()


async def test_a_home_that_is_missing_or_locked_is_named(transport: SshTransport, sshd: Sshd):
    require_root()
    home = sshd.home("u-dash")
    connection = await transport.connect(transport.resolve("t-dash"), Limits())
    home.chmod(0o500)
    with pytest.raises(GuardUnreachable, match=r"\.sshop cannot be made .*[Pp]ermission denied"):
        await connection.open_guard(HELLO, ROOT, install=True)
    await connection.close()
    home.rename(home.with_name("away"))
    try:
        connection = await transport.connect(transport.resolve("t-dash"), Limits())
        with pytest.raises(GuardUnreachable, match=r"home folder .*u-dash does not exist"):
            await connection.open_guard(HELLO, ROOT, install=True)
    finally:
        home.with_name("away").rename(home)
    await connection.close()


def test_a_full_disk_is_named_and_nothing_is_left(sshd: Sshd, transport: SshTransport, tmp_path: Path):
    require_root()
    home = sshd.home("u-dash")
    text = b"# " + b"x" * 200_000 + b"\necho hello\n"
    # a limit on the size of files stands for the full disk: a mount would not be seen in the server's namespace
    script = guard.installer(text, ROOT, "abcd")
    done = subprocess.run(
        ["/bin/sh", "-c", "trap '' XFSZ; ulimit -f 100; exec /bin/sh"],
        input=script,
        capture_output=True,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        check=False,
    )
    with pytest.raises(GuardUnreachable, match=r"cannot be written|bytes of the guard could be written"):
        guard.check_installed(done.stdout, done.stderr, "abcd")
    assert list((home / ".sshop" / "guard").iterdir()) == []


async def test_a_shell_that_is_none_is_named(tmp_path: Path):
    with Sshd(users=["dash"]) as sshd:
        shell = sshd.accounts["u-dash"]
        public = sshd.client_key_path.with_suffix(".pub").read_text()
        sshd.authorized_keys_path.write_text(f'command="{find_tool("nologin") or "/bin/false"}" {public}')
        transport = SshTransport(ssh_config=write_config(tmp_path / "c", sshd, user=shell.name), environ=ENVIRON)
        connection = await transport.connect(transport.resolve("host"), Limits())
        with pytest.raises(GuardUnreachable, match="could not be installed"):
            await connection.open_guard(HELLO, ROOT, install=True)
        await connection.close()
