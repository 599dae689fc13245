"""OpenSSH's client configuration, measured by `ssh -G`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sshop.errors import UsageError
from sshop.transport import SshTransport, client_config, words
from tests.support.tools import require_tool

HOSTS = ["web1", "WEB1", "db.example.org", "bob@web1", "10.0.0.7", "a-b_c", "other"]

CONFIGS = {
    "first value wins": "Host web1\n Port 1\n User one\nHost web*\n Port 2\n User two\n HostName w\n",
    "patterns": "Host *.example.org !db.* web?\n Port 7\nHost 10.0.0.*\n Port 8\nHost !web1 *\n User u\n",
    "tokens": "Host *\n HostName %h.example.net\n IdentityFile ~/.ssh/%r@%h-%n-%p-%%\n CertificateFile %d/c-%u\n",
    "equals, quotes and comments": 'Host=web1 # no\nPort = 5\n  User="a b"\nIdentityFile "/x y/%n"\t # c\n',
    "upper case is folded late": "Host WEB1\n Port 5\nHost web1\n Port 6\n",
    "match": (
        "Match host web1\n Port 5\nMatch originalhost web1 user bob\n Port 6\n"
        "Match !host web1\n Port 9\nMatch all\n User z\n"
    ),
    "match sees the host name that is set": "Host web1\n HostName real.example\nMatch host real.*\n Port 5\n",
    "match final": "Match final host *.final\n Port 5\nHost web1\n HostName x.final\n",
    "match exec": 'Match exec "test %h = web1"\n Port 5\nMatch exec "false"\n Port 6\nMatch !exec false\n User y\n',
    "include": "Include one\nHost web1\n Include sub/*\n Port 9\nInclude none-such\n",
    "known hosts": "Host *\n UserKnownHostsFile ~/a %d/b\nGlobalKnownHostsFile /g1 /g2\n",
    "alias and lists": "Host web1\nHostKeyAlias k\nKexAlgorithms curve25519-sha256\nIdentitiesOnly yes\nPort 3\n",
    "proxy jump first": "Host web1\n ProxyJump j1,j2\n ProxyCommand nc %h %p\n",
    "proxy command first": "Host web1\n ProxyCommand nc %h %p\n ProxyJump j\n",
    "proxy switched off": "Host web1\n ProxyJump none\nHost *\n ProxyJump j\n",
    "proxy command off": "Host web1\n ProxyCommand none\nHost *\n ProxyCommand nc x\n",
    "identity none": (
        "Host web1\n IdentityFile none\nHost *\nIdentityFile ~/.ssh/a\nIdentityFile ~/.ssh/b\nIdentityFile ~/.ssh/a\n"
    ),
    "options that nobody here needs": "Host *\n ForwardX11 no\n SendEnv LANG LC_*\n ControlMaster no\nUser x\n",
    "times": "Host web1\nConnectTimeout 1m30s\nHost *\nConnectTimeout 5\n",
    "yes and no": "Host web1\nTCPKeepAlive no\nPubkeyAuthentication no\nAddressFamily inet6\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ssh = tmp_path / ".ssh"
    (ssh / "sub").mkdir(parents=True)
    (ssh / "one").write_text("Host web1\n User included\n")
    (ssh / "sub" / "a").write_text("Port 4\nHost other\n User never\n")
    (ssh / "sub" / "b").write_text("HostName sub\n")
    return tmp_path


def oracle(config: Path, host: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [require_tool("ssh"), "-G", "-F", str(config), "--", host], check=True, capture_output=True, text=True
    )
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        said.setdefault(keyword, []).append(value)
    return said


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_it_reads_what_ssh_reads(folder: Path, text: str):
    home = os.path.expanduser("~")
    config = folder / "config"
    # ssh looks for includes in the real home: both get absolute paths
    config.write_text(text.replace("Include ", f"Include {folder}/.ssh/"))
    for host in HOSTS:
        said = oracle(config, host)
        found = client_config.look_up(words.parse_host(host), file=config, environ={"HOME": home, "SHELL": "/bin/sh"})
        assert [found.address] == said["hostname"], host
        assert [str(found.port)] == said["port"], host
        assert [found.user] == said["user"], host
        assert [found.host_key_alias] == said.get("hostkeyalias", [None]), host
        assert [found.proxy_jump] == said.get("proxyjump", [None]), host
        expected = said.get("proxycommand", [None])
        assert [found.proxy_command] == [
            e and e.replace("%h", found.address).replace("%p", str(found.port)) for e in expected
        ]
        assert found.connect_timeout == (
            float(said["connecttimeout"][0]) if said["connecttimeout"] != ["none"] else None
        )
        assert found.identities_only == (said["identitiesonly"] == ["yes"])
        assert found.tcp_keepalive == (said["tcpkeepalive"] == ["yes"])
        assert found.public_keys == (
            said["pubkeyauthentication"] != ["false"] and said["pubkeyauthentication"] != ["no"]
        )
        if "/a" in text:
            assert " ".join(found.user_known_hosts) == said["userknownhostsfile"][0].replace("~", home).replace(
                "%d", home
            )
            assert " ".join(found.global_known_hosts) == said["globalknownhostsfile"][0]
        if "dentityFile" in text and "%" not in text:
            given = [each.replace("~", home) for each in said["identityfile"] if each != "none"]
            assert list(found.identities) == given


def test_tokens_and_variables_in_paths(folder: Path):
    config = folder / "config"
    config.write_text(
        "IdentityFile ~/k-%r-%h-%n-%p-%u-%%\nCertificateFile ${X}/c\nIdentityAgent $SOCK\nHostName h.%h\n"
    )
    environ = {"HOME": "/home/me", "X": "/x", "SOCK": "/s"}
    found = client_config.look_up(words.parse_host("bob@web:77"), file=config, environ=environ)
    user = found.identities[0].split("-")[5]
    assert found.identities == (f"/home/me/k-bob-h.web-web-77-{user}-%",)
    assert found.certificates == ("/x/c",)
    assert found.identity_agent == "/s"


def test_a_tag_is_matched_as_newer_ssh_does(folder: Path):
    config = folder / "config"
    config.write_text("Host web\n Tag t\nMatch tagged t\n Port 5\n")
    transport = SshTransport(ssh_config=config, environ={"HOME": str(folder)})
    assert (transport.resolve("web").port, transport.resolve("other").port) == (5, 22)


def test_the_users_file_comes_before_the_systems(folder: Path, monkeypatch: pytest.MonkeyPatch):
    system = folder / "system"
    system.write_text("Host *\nPort 1\nUser system\n")
    monkeypatch.setattr(client_config, "SYSTEM_FILE", str(system))
    (folder / ".ssh" / "config").write_text("Host web\nPort 2\n")
    transport = SshTransport(environ={"HOME": str(folder)})
    assert transport.resolve("web").key == "system@web:2"
    other = folder / "other"
    other.write_text("Port 3\n")
    assert SshTransport(environ={"HOME": str(folder), "SSHOP_SSH_CONFIG": str(other)}).resolve("web").port == 3
    assert SshTransport(environ={"HOME": str(folder)}, ssh_config=other).resolve("web").port == 3


def test_a_file_that_others_may_write_is_refused(folder: Path):
    path = folder / ".ssh" / "config"
    path.write_text("Port 2\n")
    path.chmod(0o666)
    with pytest.raises(UsageError, match="others may write"):
        SshTransport(environ={"HOME": str(folder)}).resolve("web")


BAD = {
    "an unclosed quote": ('Host web\nUser "x\n', ":2: a quote is not closed"),
    "a value that is missing": ("Port\n", ":1: Port needs a value"),
    "a port that is none": ("Port x\n", "not a port: x"),
    "an unknown token": ("IdentityFile %Z\n", "unknown %Z"),
    "an unknown condition": ("Match fancy x\n", ":1: unknown condition of Match: fancy"),
    "a variable that is not set": ("IdentityFile ${NOPE}\n", "no NOPE"),
    "a loop of includes": ("Include {self}\n", "too many levels"),
    "a host name that would reach a shell": ("HostName a;b\n", "not a host name"),
    "no keyword": ("!!!\n", ":1: cannot be understood"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_understood_is_a_usage_error_with_its_place(folder: Path, text: str, said: str):
    config = folder / "config"
    config.write_text(text.replace("{self}", str(config)))
    with pytest.raises(UsageError) as caught:
        SshTransport(ssh_config=config, environ={"HOME": str(folder)}).resolve("web")
    assert said in caught.value.message


def test_a_named_file_that_is_missing_or_unreadable_is_a_usage_error(folder: Path):
    for path in (folder / "missing", folder):
        with pytest.raises(UsageError, match="cannot read"):
            SshTransport(ssh_config=path, environ={"HOME": str(folder)}).resolve("web")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", ("host", None, None)),
        ("u@host", ("host", "u", None)),
        ("host:22", ("host", None, 22)),
        ("u@host:2222", ("host", "u", 2222)),
        ("u@corp@host", ("host", "u@corp", None)),
        ("::1", ("::1", None, None)),
        ("[::1]", ("::1", None, None)),
        ("u@[fe80::1%eth0]:65535", ("fe80::1%eth0", "u", 65535)),
        ("127.0.0.1", ("127.0.0.1", None, None)),
    ],
)
def test_a_host_argument_is_taken_apart(text: str, expected: tuple):
    word = words.parse_host(text)
    assert (word.name, word.user, word.port) == expected


def test_a_host_is_resolved_in_less_than_the_import_of_a_library(folder: Path):
    script = (
        "from sshop.transport import SshTransport\nimport sys\nSshTransport().resolve('h')\nprint(len(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(folder)},
        check=True,
    )
    assert int(done.stdout) < 140
