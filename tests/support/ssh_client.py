"""What a test of the client side needs: keys, certificates, an agent, a configuration, servers that misbehave."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.sshd import Sshd
from tests.support.tools import require_tool


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    argv = [require_tool("ssh-keygen"), "-q", "-t", kind, "-N", passphrase, "-C", "sshop-test", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def public_line(path: Path) -> str:
    """`ssh-ed25519 AAAA…` of a private key's `.pub`."""
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


def fingerprint(path: Path) -> str:
    done = subprocess.run(
        [require_tool("ssh-keygen"), "-lf", str(path) + ("" if path.suffix == ".pub" else ".pub")],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()[1]


def certify(
    ca: Path, key: Path, *, key_id: str, principals: str | None, validity: str = "-1h:+1h", host: bool = False
) -> Path:
    """Sign a public key; the certificate stands beside it."""
    argv = [require_tool("ssh-keygen"), "-q", "-s", str(ca), "-I", key_id, "-V", validity]
    argv += ["-n", principals] if principals else []
    argv += ["-h"] if host else []
    subprocess.run([*argv, str(key) + ".pub"], check=True, stdin=subprocess.DEVNULL)
    return key.with_name(key.name + "-cert.pub")


def write_config(
    path: Path, sshd: Sshd, *, port: int | None = None, user: str | None = None, extra: Sequence[str] = ()
) -> Path:
    """A configuration with one alias, `host`; the extra lines win."""
    path.write_text(
        "\n".join(
            [
                "Host host",
                *(f"  {line}" for line in extra),
                "  HostName 127.0.0.1",
                f"  Port {port or sshd.port}",
                f"  User {user or sshd.user}",
                f"  IdentityFile {sshd.client_key_path}",
                f"  UserKnownHostsFile {sshd.known_hosts_path}",
                "  GlobalKnownHostsFile none",
                "",
            ]
        )
    )
    return path


@contextmanager
def ssh_agent(folder: Path, *keys: Path) -> Iterator[dict[str, str]]:
    """A real ssh-agent that holds these keys; the environment that names it. Keys must not be encrypted."""
    path = folder / "agent.sock"
    process = subprocess.Popen(
        [require_tool("ssh-agent"), "-D", "-a", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    environ = {"SSH_AUTH_SOCK": str(path)}
    try:
        for _ in range(500):
            if path.exists():
                break
            threading.Event().wait(0.01)
        for key in keys:
            subprocess.run(
                [require_tool("ssh-add"), "-q", str(key)],
                check=True,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        yield environ
    finally:
        process.terminate()
        process.wait()


@contextmanager
def rude_server(first_words: bytes, *, then_close: bool = False) -> Iterator[int]:
    """A listener that says these words and nothing more; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                client.sendall(first_words)
                if then_close:
                    client.close()
                else:
                    held.append(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for client in held:
                client.close()
