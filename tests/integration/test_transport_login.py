# ruff: noqa: ASYNC221 - a test has its event loop to itself
"""Credentials: which are offered, which was accepted, and what a refusal says. Case 079."""

import os
import subprocess
from pathlib import Path

import pytest

from sshop.errors import LoginRefused
from sshop.ports import Limits
from sshop.transport import SshTransport
from tests.support.ssh_client import certify, fingerprint, make_key, public_line, ssh_agent
from tests.support.sshd import Sshd

LIMITS = Limits(connect=5, handshake=5, login=5)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    return folder


class Client:
    """A user's side: a home, an environment, a configuration."""

    def __init__(self, home: Path, sshd: Sshd) -> None:
        self.home, self.sshd = home, sshd
        self.environ = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def transport(self, *extra: str) -> SshTransport:
        text = "\n".join(
            [
                "Host host",
                *extra,
                "HostName 127.0.0.1",
                f"Port {self.sshd.port}",
                f"User {self.sshd.user}",
                f"UserKnownHostsFile {self.sshd.known_hosts_path}",
                "GlobalKnownHostsFile none",
            ]
        )
        path = self.home / ".ssh" / "config"
        path.write_text(text + "\n")
        path.chmod(0o600)
        return SshTransport(ssh_config=path, environ=self.environ)

    async def log_in(self, *extra: str) -> str:
        transport = self.transport(*extra)
        connection = await transport.connect(transport.resolve("host"), LIMITS)
        try:
            return connection.authority_ref
        finally:
            await connection.close()

    async def refused(self, *extra: str) -> LoginRefused:
        with pytest.raises(LoginRefused) as caught:
            await self.log_in(*extra)
        return caught.value

    def key(self, name: str, *, kind: str = "ed25519", passphrase: str = "", known: bool = True) -> Path:
        path = make_key(self.home / ".ssh" / name, kind=kind, passphrase=passphrase)
        if known:
            self.sshd.authorize(public_line(path))
        return path


@pytest.fixture
def client(home: Path, sshd: Sshd) -> Client:
    return Client(home, sshd)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
async def test_a_default_key_is_found_and_its_fingerprint_is_the_authority(client: Client, kind: str):
    key = client.key(f"id_{kind}", kind=kind)
    assert await client.log_in() == f"publickey {fingerprint(key)}"


async def test_a_key_in_the_old_form_is_read(client: Client):
    key = client.key("id_rsa", kind="rsa")
    subprocess.run(["ssh-keygen", "-q", "-p", "-m", "PEM", "-N", "", "-f", str(key)], check=True, capture_output=True)
    assert b"BEGIN RSA" in key.read_bytes()
    expected = fingerprint(key)
    key.with_name("id_rsa.pub").unlink()
    assert await client.log_in() == f"publickey {expected}"


async def test_the_second_default_key_is_taken_where_the_first_is_not_authorised(client: Client):
    client.key("id_ecdsa", kind="ecdsa", known=False)
    good = client.key("id_ed25519")
    assert await client.log_in() == f"publickey {fingerprint(good)}"


async def test_a_refusal_lists_what_was_tried_and_holds_no_key(client: Client):
    key = client.key("id_ed25519", known=False)
    error = await client.refused()
    assert error.tried == (f"publickey {fingerprint(key)}",)
    assert fingerprint(key) in error.message
    assert str(key) in error.message
    assert client.sshd.user in error.message
    assert f"127.0.0.1 port {client.sshd.port}" in error.message
    assert "PRIVATE" not in error.message
    assert public_line(key).split()[1] not in error.message


async def test_without_any_key_the_refusal_says_so(client: Client):
    error = await client.refused()
    assert "none to try" in error.message
    assert error.tried == ()


async def test_an_encrypted_key_alone_is_named_and_nobody_is_asked(client: Client):
    key = client.key("id_ed25519", passphrase="secret words")
    error = await client.refused()
    assert str(key) in error.message
    assert fingerprint(key) in error.message
    assert "encrypted" in error.message
    assert "ssh-add" in (error.hint or "")


async def test_an_encrypted_key_in_the_old_form_is_named_too(client: Client):
    key = client.key("id_rsa", kind="rsa")
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-m", "PEM", "-P", "", "-N", "secret words", "-f", str(key)],
        check=True,
        capture_output=True,
    )
    error = await client.refused()
    assert "encrypted" in error.message
    assert fingerprint(key) in error.message


async def test_an_encrypted_default_key_does_not_matter_where_the_agent_has_the_right_one(
    client: Client, tmp_path: Path
):
    client.key("id_ed25519", passphrase="secret words", known=False)
    other = make_key(tmp_path / "other")
    client.sshd.authorize(public_line(other))
    with ssh_agent(tmp_path, other) as environ:
        client.environ.update(environ)
        assert await client.log_in() == f"publickey {fingerprint(other)}"


async def test_an_encrypted_key_that_the_agent_holds_is_used_through_it(client: Client, tmp_path: Path):
    key = client.key("id_ed25519")
    with ssh_agent(tmp_path, key) as environ:
        client.environ.update(environ)
        subprocess.run(
            ["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(key)], check=True, capture_output=True
        )
        assert await client.log_in("IdentitiesOnly yes") == f"publickey {fingerprint(key)}"


async def test_an_agent_that_is_gone_is_named_and_the_files_are_tried(client: Client):
    client.environ["SSH_AUTH_SOCK"] = str(client.home / "no-such-agent")
    error = await client.refused()
    assert "no-such-agent" in error.message
    key = client.key("id_ed25519")
    assert await client.log_in() == f"publickey {fingerprint(key)}"


async def test_an_agent_is_not_asked_where_the_configuration_says_none(client: Client, tmp_path: Path):
    other = make_key(tmp_path / "other")
    client.sshd.authorize(public_line(other))
    with ssh_agent(tmp_path, other) as environ:
        client.environ.update(environ)
        await client.refused("IdentityAgent none")
        del client.environ["SSH_AUTH_SOCK"]
        assert await client.log_in(f"IdentityAgent {environ['SSH_AUTH_SOCK']}") == f"publickey {fingerprint(other)}"


async def test_identities_only_leaves_the_agents_other_keys_alone(client: Client, tmp_path: Path):
    other = make_key(tmp_path / "other")
    client.sshd.authorize(public_line(other))
    client.key("id_ed25519", known=False)
    with ssh_agent(tmp_path, other) as environ:
        client.environ.update(environ)
        error = await client.refused("IdentitiesOnly yes")
        assert fingerprint(other) not in error.message
        assert (
            await client.log_in("IdentitiesOnly yes", f"IdentityFile {other}.pub") == f"publickey {fingerprint(other)}"
        )


async def test_a_missing_identity_file_is_named_only_where_it_was_asked_for(client: Client):
    assert "id_rsa" not in (await client.refused()).message
    error = await client.refused("IdentityFile ~/.ssh/absent")
    assert f"{client.home}/.ssh/absent: No such file" in error.message


async def test_a_broken_key_file_is_named_and_the_next_one_is_tried(client: Client):
    (client.home / ".ssh" / "id_ecdsa").write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    error = await client.refused()
    assert "id_ecdsa" in error.message
    key = client.key("id_ed25519")
    assert await client.log_in() == f"publickey {fingerprint(key)}"


async def test_with_public_keys_switched_off_nothing_is_offered(client: Client):
    client.key("id_ed25519")
    assert "none to try" in (await client.refused("PubkeyAuthentication no")).message


async def test_too_many_keys_are_refused_with_a_way_out(client: Client, tmp_path: Path):
    keys = [make_key(tmp_path / f"k{i}") for i in range(8)]
    with ssh_agent(tmp_path, *keys) as environ:
        client.environ.update(environ)
        error = await client.refused()
        assert "oo many authentication failures" in error.message
        assert "IdentitiesOnly" in (error.hint or "")


# Certificates.


@pytest.fixture
def ca(client: Client, tmp_path: Path) -> Path:
    key = make_key(tmp_path / "ca")
    client.sshd.authorize(f"cert-authority {public_line(key)}")
    return key


async def test_a_certificate_is_offered_and_named(client: Client, ca: Path):
    key = client.key("id_ed25519", known=False)
    certify(ca, key, key_id="alice work", principals=client.sshd.user)
    assert await client.log_in() == f"certificate alice_work {fingerprint(key)}"


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
async def test_certificates_of_other_kinds_work(client: Client, ca: Path, kind: str):
    key = client.key(f"id_{kind}", kind=kind, known=False)
    certify(ca, key, key_id="alice", principals=client.sshd.user)
    assert await client.log_in() == f"certificate alice {fingerprint(key)}"


async def test_a_certificate_file_is_found_where_the_configuration_says(client: Client, ca: Path, tmp_path: Path):
    key = client.key("id_ed25519", known=False)
    certify(ca, key, key_id="alice", principals=client.sshd.user).rename(tmp_path / "elsewhere.pub")
    await client.refused()
    ref = await client.log_in(f"CertificateFile {tmp_path}/elsewhere.pub")
    assert ref == f"certificate alice {fingerprint(key)}"


async def test_an_agent_may_hold_the_certificate_or_only_its_key(client: Client, ca: Path, tmp_path: Path):
    key = make_key(tmp_path / "k")
    with ssh_agent(tmp_path, key) as environ:
        client.environ.update(environ)
        certificate = certify(ca, key, key_id="alice", principals=client.sshd.user)
        ref = await client.log_in(f"CertificateFile {certificate}")
        assert ref == f"certificate alice {fingerprint(key)}"
        await client.refused()
        subprocess.run(["ssh-add", "-q", str(key)], check=True, env={**os.environ, **environ}, capture_output=True)
        assert await client.log_in() == f"certificate alice {fingerprint(key)}"


async def test_an_expired_certificate_is_named(client: Client, ca: Path):
    key = client.key("id_ed25519", known=False)
    certify(ca, key, key_id="alice", principals=client.sshd.user, validity="-2h:-1h")
    error = await client.refused()
    assert f"certificate alice {fingerprint(key)}" in error.message
    assert "expired" in error.message
    assert "renew" in (error.hint or "")
    assert error.tried == (f"certificate alice {fingerprint(key)}", f"publickey {fingerprint(key)}")


async def test_a_certificate_for_somebody_else_is_named(client: Client, ca: Path):
    key = client.key("id_ed25519", known=False)
    certify(ca, key, key_id="alice", principals="alice,root")
    error = await client.refused()
    assert f"for alice, root, not {client.sshd.user}" in error.message


async def test_a_later_login_with_another_credential_has_another_reference(client: Client):
    first = client.key("id_ecdsa", kind="ecdsa", known=False)
    assert (await client.refused()).tried == (f"publickey {fingerprint(first)}",)
    second = client.key("id_ed25519")
    assert await client.log_in() == f"publickey {fingerprint(second)}"


async def test_the_banner_of_a_server_that_refuses_is_shown(tmp_path: Path, home: Path):
    banner = tmp_path / "banner"
    banner.write_text("Maintenance until\x1b[31m noon\n")
    with Sshd(users=["dash"], options={"Banner": str(banner), "AllowUsers": "nobody"}) as sshd:
        client = Client(home, sshd)
        client.key("id_ed25519")
        error = await client.refused()
        assert "Maintenance until noon" in error.message
