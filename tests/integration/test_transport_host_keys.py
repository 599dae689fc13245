# ruff: noqa: ASYNC221, ASYNC240 - a test has its event loop to itself
"""Strict host keys: who is let through, and what is said to whom is not. Case 077."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from sshop.errors import HostKeyRefused
from sshop.ports import Limits
from sshop.transport import SshTransport
from tests.support.ssh_client import certify, fingerprint, make_key, public_line, write_config
from tests.support.sshd import Sshd
from tests.support.tools import require_tool

ENVIRON = {"HOME": "/dev/null", "PATH": os.environ["PATH"]}
LIMITS = Limits(connect=5, handshake=5, login=5)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.fixture
def transport(sshd: Sshd, tmp_path: Path, known: Path) -> SshTransport:
    config = write_config(tmp_path / "config", sshd, extra=[f"UserKnownHostsFile {known}"])
    return SshTransport(ssh_config=config, environ=ENVIRON)


async def reach(transport: SshTransport, host: str = "host") -> str:
    connection = await transport.connect(transport.resolve(host), LIMITS)
    try:
        return connection.host_key
    finally:
        await connection.close()


async def refused(transport: SshTransport, host: str = "host") -> HostKeyRefused:
    with pytest.raises(HostKeyRefused) as caught:
        await reach(transport, host)
    return caught.value


GOOD = {
    "a port in brackets": "[127.0.0.1]:{port} {key}\n",
    "the plain name, as ssh takes it for any port": "127.0.0.1 {key}\n",
    "among other names": "example.org,[127.0.0.1]:{port},x {key}\n",
    "a pattern": "[127.0.0.*]:* {key}\n",
    "after a comment, an empty line and rubbish": "# no\n\nrub\n@strange x ssh-rsa AA\n[127.0.0.1]:{port} {key} c\n",
    "beside another key of the same host": "[127.0.0.1]:{port} {other}\n[127.0.0.1]:{port} {key}\n",
    "beside a revoked other key": "@revoked * {other}\n[127.0.0.1]:{port} {key}\n",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
async def test_a_known_host_key_is_good(transport, sshd: Sshd, known: Path, tmp_path: Path, text: str):
    other = public_line(make_key(tmp_path / "other"))
    known.write_text(text.format(port=sshd.port, key=sshd.host_key_public, other=other))
    assert await reach(transport) == fingerprint(sshd.host_key_path)


async def test_a_hashed_entry_is_good(transport, sshd: Sshd, known: Path):
    known.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_public}\n")
    subprocess.run([require_tool("ssh-keygen"), "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    assert await reach(transport) == fingerprint(sshd.host_key_path)


async def test_the_global_file_counts_as_well(sshd: Sshd, tmp_path: Path):
    shared = tmp_path / "global"
    shared.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_public}\n")
    extra = ["UserKnownHostsFile none", f"GlobalKnownHostsFile {tmp_path}/missing {shared}"]
    config = write_config(tmp_path / "config", sshd, extra=extra)
    assert await reach(SshTransport(ssh_config=config, environ=ENVIRON))


async def test_an_alias_for_the_host_key_stands_without_port(sshd: Sshd, tmp_path: Path, known: Path):
    config = write_config(tmp_path / "config", sshd, extra=[f"UserKnownHostsFile {known}", "HostKeyAlias db1"])
    transport = SshTransport(ssh_config=config, environ=ENVIRON)
    known.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_public}\n")
    assert "known as db1" in (await refused(transport)).message
    known.write_text(f"db1 {sshd.host_key_public}\n")
    assert await reach(transport)


async def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_command_that_trusts_it(
    transport, sshd: Sshd, known: Path
):
    known.write_text("example.org ssh-ed25519 AAAA\n")
    error = await refused(transport)
    assert error.reason == "unknown"
    assert error.fingerprint == fingerprint(sshd.host_key_path)
    assert f"127.0.0.1 port {sshd.port}" in error.message
    assert error.fingerprint in error.message
    assert str(known) in error.message
    assert error.command is not None
    assert error.command in (error.hint or "")
    subprocess.run(["/bin/sh", "-c", error.command], check=True)
    assert await reach(transport)


@pytest.mark.parametrize("setting", ["no", "accept-new", "ask", "off"])
async def test_no_setting_accepts_an_unknown_key_silently(sshd: Sshd, tmp_path: Path, known: Path, setting: str):
    extra = [f"UserKnownHostsFile {known}", f"StrictHostKeyChecking {setting}"]
    config = write_config(tmp_path / "config", sshd, extra=extra)
    assert (await refused(SshTransport(ssh_config=config, environ=ENVIRON))).reason == "unknown"
    assert not known.exists()


async def test_without_a_file_the_key_is_unknown_and_the_command_makes_the_folder(sshd: Sshd, tmp_path: Path):
    missing = tmp_path / "deep" / "a b" / "known_hosts"
    config = write_config(tmp_path / "config", sshd, extra=[f'UserKnownHostsFile "{missing}"'])
    transport = SshTransport(ssh_config=config, environ=ENVIRON)
    error = await refused(transport)
    assert error.reason == "unknown"
    assert error.command is not None
    subprocess.run(["/bin/sh", "-c", error.command], check=True)
    assert await reach(transport)


async def test_with_known_hosts_switched_off_nothing_is_accepted(sshd: Sshd, tmp_path: Path):
    config = write_config(tmp_path / "config", sshd, extra=["UserKnownHostsFile none"])
    error = await refused(SshTransport(ssh_config=config, environ=ENVIRON))
    assert error.reason == "unknown"
    assert error.command is None


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
async def test_a_changed_key_is_refused_with_both_and_the_command_that_replaces_it(
    transport, sshd: Sshd, known: Path, tmp_path: Path, kind: str
):
    old = make_key(tmp_path / "old", kind=kind)
    known.write_text(f"\n[127.0.0.1]:{sshd.port} {public_line(old)}\n")
    error = await refused(transport)
    assert error.reason == "changed"
    assert "CHANGED" in error.message
    assert fingerprint(sshd.host_key_path) in error.message
    assert fingerprint(old) in error.message
    assert f"{known}:2" in error.message
    assert error.command is not None
    assert shlex.split(error.command)[0].endswith("ssh-keygen")
    subprocess.run(["/bin/sh", "-c", error.command], check=True, capture_output=True)
    assert await reach(transport)


@pytest.mark.parametrize("names", ["*", "[127.0.0.1]:{port}"])
async def test_a_revoked_key_is_refused_though_it_is_also_known(transport, sshd: Sshd, known: Path, names: str):
    key = sshd.host_key_public
    known.write_text(f"[127.0.0.1]:{sshd.port} {key}\n@revoked {names.format(port=sshd.port)} {key}\n")
    error = await refused(transport)
    assert error.reason == "revoked"
    assert "revoked" in error.message
    assert f"{known}:2" in error.message
    assert error.command is None


async def test_a_list_of_revoked_keys_counts(sshd: Sshd, tmp_path: Path):
    revoked = tmp_path / "revoked"
    config = write_config(tmp_path / "config", sshd, extra=[f"RevokedHostKeys {revoked}"])
    transport = SshTransport(ssh_config=config, environ=ENVIRON)
    assert (await refused(transport)).reason == "unreadable"
    revoked.write_text("# none\n")
    assert await reach(transport)
    revoked.write_text(f"{sshd.host_key_public} stolen\n")
    assert (await refused(transport)).reason == "revoked"
    revoked.write_bytes(b"SSHKRL\n\0\0")
    error = await refused(transport)
    assert error.reason == "unreadable"
    assert "KRL" in error.message


async def test_a_file_that_cannot_be_read_refuses_and_is_named(transport, sshd: Sshd, known: Path):
    known.mkdir()
    error = await refused(transport)
    assert error.reason == "unreadable"
    assert str(known) in error.message
    assert "directory" in error.message


async def test_pinned_keys_are_the_only_good_ones(sshd: Sshd, tmp_path: Path):
    config = write_config(tmp_path / "config", sshd)

    def pinned(*keys: str) -> SshTransport:
        return SshTransport(ssh_config=config, environ=ENVIRON, pinned={"host": keys})

    assert await reach(pinned(sshd.host_key_public))
    assert await reach(pinned("SHA256:x", fingerprint(sshd.host_key_path)))
    other = make_key(tmp_path / "other")
    assert (await refused(pinned(public_line(other)))).reason == "pinned"
    assert (await refused(pinned())).reason == "pinned"


# The host has a certificate.


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_key(tmp_path / "ca")


def certified_sshd(tmp_path: Path, authority: Path, *, principals: str, validity: str = "-1h:+1h") -> tuple[Sshd, Path]:
    key = make_key(tmp_path / "certified")
    certificate = certify(authority, key, key_id="host", principals=principals, validity=validity, host=True)
    options = {"HostCertificate": str(certificate), "HostKey": str(key)}
    return Sshd(users=["dash"], options=options), key


async def test_a_host_certificate_of_a_known_authority_is_good(tmp_path: Path, authority: Path, known: Path):
    server, key = certified_sshd(tmp_path, authority, principals="127.0.0.1")
    with server as sshd:
        config = write_config(tmp_path / "config", sshd, extra=[f"UserKnownHostsFile {known}"])
        transport = SshTransport(ssh_config=config, environ=ENVIRON)
        known.write_text(f"@cert-authority [127.0.0.1]:* {public_line(authority)}\n")
        assert await reach(transport) == fingerprint(key)

        # another authority, and no bare key: refused
        other = make_key(tmp_path / "other")
        known.write_text(f"@cert-authority * {public_line(other)}\n")
        error = await refused(transport)
        assert error.reason == "authority_unknown"
        assert fingerprint(authority) in error.message

        # another authority, and the bare key: good, as with ssh
        known.write_text(f"@cert-authority * {public_line(other)}\n[127.0.0.1]:{sshd.port} {public_line(key)}\n")
        assert await reach(transport) == fingerprint(key)

        # no authority at all: the bare key counts
        known.write_text(f"[127.0.0.1]:{sshd.port} {public_line(key)}\n")
        assert await reach(transport) == fingerprint(key)

        # the authority revoked, and the key in the certificate revoked
        line = f"@cert-authority * {public_line(authority)}\n"
        known.write_text(f"{line}@revoked * {public_line(authority)}\n")
        assert (await refused(transport)).reason == "authority_revoked"
        known.write_text(f"{line}@revoked * {public_line(key)}\n")
        assert (await refused(transport)).reason == "revoked"


@pytest.mark.parametrize(
    "how",
    [("example.org", "-1h:+1h", "principal"), ("127.0.0.1", "-2h:-1h", "expired")],
    ids=["another name", "expired"],
)
async def test_a_host_certificate_that_is_no_good_is_refused(
    tmp_path: Path, authority: Path, known: Path, how: tuple[str, str, str]
):
    principals, validity, word = how
    server, key = certified_sshd(tmp_path, authority, principals=principals, validity=validity)
    with server as sshd:
        config = write_config(tmp_path / "config", sshd, extra=[f"UserKnownHostsFile {known}"])
        transport = SshTransport(ssh_config=config, environ=ENVIRON)
        line = f"@cert-authority * {public_line(authority)}\n"
        known.write_text(line)
        error = await refused(transport)
        assert error.reason == "certificate"
        assert word in error.message
        known.write_text(f"{line}[127.0.0.1]:{sshd.port} {public_line(key)}\n")
        assert await reach(transport) == fingerprint(key)
