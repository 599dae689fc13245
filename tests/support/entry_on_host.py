"""A shipped command on a private host through the product: `sshop run` in this process, a real sshd, the real guard.

Each command is started by a gate, which a test can have stop before the command acts, or after it.
"""

import asyncio
import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sshop.core.policy import Policy
from sshop.core.value import replace
from sshop.ports import Limits
from tests.support.policy_rows import POLICY, Row, prepare, read_file_of, read_secret, values_of
from tests.support.private_host import AGENT, PrivateHost
from tests.support.program import Ended, Inside
from tests.support.sshd import DEFAULTS, free_port
from tests.support.tools import missing, require_tool

GATE = "/usr/local/bin/test-gate"
_GATE = f"""cat > {GATE} <<'.'
#!/bin/sh
echo >> /run/gate/passed
read -r at < /run/gate/at
[ "$at" != before ] || {{ : > /run/gate/reached; exec sleep 100; }}
[ "$at" = after ] || exec "$@"
"$@" || exit
: > /run/gate/reached
exec sleep 100
.
chmod 755 {GATE}; mkdir -m 1777 /run/gate; echo open > /run/gate/at; : > /run/gate/passed; chmod 666 /run/gate/passed"""
PATIENT = Limits(dead_after=10)


def _gated(name: str) -> Policy:
    """The shipped policy with the gate before this command, and with its approval given."""
    entry = POLICY.entries[name]
    through = replace(entry, argv=((("text", GATE),), *entry.argv), approval="none")
    return replace(POLICY, entries={**POLICY.entries, name: through})


@functools.cache
def _keys() -> tuple[str, str, str]:
    """A host key, its public half, and a client key's public half."""
    folder = Path(tempfile.mkdtemp(prefix="sshop-keys-"))
    folder.chmod(0o711)
    for name in ("host", "client"):
        argv = [require_tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return (folder / "host").read_text(), (folder / "host.pub").read_text(), str(folder / "client")


class EntryOnHost:
    """One shipped command, its row, and a host on which the row's setting was made."""

    def __init__(self, name: str, row: Row, host: PrivateHost, program: Inside) -> None:
        self.name, self.row, self.host, self.program = name, row, host, program
        self.made = POLICY.entries[name]
        self.words = [name, *(f"{key}={value}" for key, value in values_of(name).items())]

    async def run(self) -> Ended:
        return await self.program.run("private", *self.words)

    async def run_into(self, at: str) -> Ended:
        """The same, with everything on the host killed at the gate."""
        self.host.shell(f"echo {at} > /run/gate/at")
        going = asyncio.create_task(self.run())
        wait = "for i in $(seq 500); do [ ! -e /run/gate/reached ] || exit 0; sleep 0.02; done; exit 1"
        await asyncio.to_thread(self.host.shell, wait)
        self.host.shell("echo open > /run/gate/at")
        await asyncio.to_thread(self.host.kill)
        return await going

    def count(self) -> int | None:
        """How often the effect is there; None where the row cannot tell."""
        return int(self.host.shell(f"{self.row.count} || :") or 0) if self.row.count else None

    def check(self) -> None:
        """What the row says of the host after a run; each of its commands must succeed."""
        self.host.shell(f"set -e\n{self.row.holds}")

    def started(self) -> int:
        """How often the command was started."""
        return int(self.host.shell("wc -l < /run/gate/passed"))

    def markers(self) -> list[str]:
        return self.host.shell(f"ls /home/{AGENT}/.sshop/*/markers || :").split()


@contextlib.contextmanager
def entry_on_host(name: str, folder: Path) -> Iterator[EntryOnHost]:
    row = prepare(name)
    sshd = require_tool("sshd")
    require_tool("sudo")
    host_key, public, client = _keys()
    port = free_port()
    options = {**DEFAULTS, "ListenAddress": f"127.0.0.1:{port}", "AuthorizedKeysFile": f"{client}.pub"}
    config = "".join(f"{keyword} {value}\n" for keyword, value in options.items())
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {public}")
    ssh_config = folder / "ssh_config"
    ssh_config.write_text(
        f"Host private\n HostName 127.0.0.1\n Port {port}\n User {AGENT}\n IdentityFile {client}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {known}\n GlobalKnownHostsFile /dev/null\n"
    )
    with PrivateHost() as host:
        host.serve(sshd, config, host_key, environ=row.env)
        host.shell(_GATE)
        setting = host.step({"argv": ["/bin/sh", "-c", row.setup], "env": {**row.env, "HOME": f"/home/{AGENT}"}})
        if setting["status"] and "apt-get" in row.tools:
            missing("packages cannot be had from here")
        assert setting["status"] == 0, setting
        if not POLICY.entries[name].become_user:
            host.shell(f"mkdir -p /srv; chown -R {AGENT}: /srv /home/{AGENT}")
        host.settle()
        program = Inside(
            folder,
            ssh_config,
            policy=_gated(name),
            limits=PATIENT,
            read_secret=read_secret,
            read_file=read_file_of(row),
        )
        try:
            yield EntryOnHost(name, row, host, program)
            program.verify()
        finally:
            program.close()


def told(done: Ended) -> tuple[object, ...]:
    """What a failing test shows."""
    return done.code, done.json["error"], done.operation.result, done.answer.stderr
