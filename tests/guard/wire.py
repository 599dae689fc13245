"""The guard's protocol spoken raw, byte by byte, from docs/PROTOCOL.md alone.

Deliberately a second, small implementation: it shares nothing with ``sshop.core.protocol``, so that a misreading of
the document by either side shows itself.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

GUARD_SOURCE = Path(__file__).resolve().parents[2] / "remote_scripts" / "guard.sh"
SHELLS = {
    "dash": "/usr/bin/dash",
    "bash": "/usr/bin/bash",
    "busybox": "/usr/bin/busybox",
    "mksh": "/usr/bin/mksh",
    "zsh": "/usr/bin/zsh",
    "yash": "/usr/bin/yash",
}
EMPTY = hashlib.sha256(b"").hexdigest()


def nonce() -> str:
    return secrets.token_hex(16)


def mint(time: str = "01jzzzzzzz") -> str:
    """An ID as sshop mints them, with the given ten digits of time."""
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    return "op_" + time + "".join(secrets.choice(digits) for _ in range(16))


@dataclass
class Request:
    """One request. ``frames`` are the plain lines, without their newlines."""

    verb: str = "run"
    op: str | None = None
    argv: list[bytes] = field(default_factory=list)
    env: dict[str, bytes] = field(default_factory=dict)
    secret: dict[str, bytes] = field(default_factory=dict)
    cwd: bytes | None = None
    user: str | None = None
    stdin: bytes | None = None
    secret_stdin: bool = False
    category: str = "append_only"
    generation: tuple[object, ...] = (1, "first")
    inline: int | None = 1_000_000
    control: list[bytes] = field(default_factory=list)
    condition: list[bytes] = field(default_factory=list)
    new: bool = False
    nonce: str = field(default_factory=nonce)
    attempt: str = "att_test"

    def plain(self) -> list[bytes]:
        lines: list[bytes] = []
        for text in self.argv:
            lines += text_lines(b"a ", text)
        if self.cwd is not None:
            lines += text_lines(b"d ", self.cwd)
        for name in sorted(self.env):
            lines += text_lines(b"e " + name.encode() + b"=", self.env[name])
        lines += [b"s " + name.encode() for name in sorted(self.secret)]
        if self.user is not None:
            lines.append(b"u " + self.user.encode())
        if self.stdin is not None:
            digest = "secret" if self.secret_stdin else hashlib.sha256(self.stdin).hexdigest()
            lines.append(f"z {len(self.stdin)} {digest}".encode())
        return lines

    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(line + b"\n" for line in self.plain())).hexdigest()

    def head(self) -> bytes:
        lines = [f"sshop1 {self.nonce} {self.verb}".encode()]
        if self.op is not None:
            lines += [b"I " + self.op.encode()]
        lines += [b"T " + self.attempt.encode(), b"D 2026-01-02T03:04:05Z"]
        if self.argv:
            lines += self.plain()
            lines += [b"F " + self.fingerprint().encode()]
        if self.verb == "run":
            lines += [b"K " + self.category.encode(), b"G " + b" ".join(str(x).encode() for x in self.generation)]
        if self.inline is not None:
            lines += [b"M %d" % self.inline]
        if self.new:
            lines += [b"N"]
        for text in self.condition:
            lines += text_lines(b"c ", text)
        lines += self.control
        lines += [b"?"]
        return b"".join(line + b"\n" for line in lines)

    def secrets(self) -> bytes:
        out = b""
        for name in sorted(self.secret):
            out += b"x " + name.encode() + b"\n" + hidden(self.secret[name])
        return out


def text_lines(begin: bytes, text: bytes) -> list[bytes]:
    first, *rest = text.split(b"\n")
    return [begin + first] + [b"+" + line for line in rest]


def hidden(text: bytes) -> bytes:
    return b"".join(b"." + line + b"\n" for line in text.split(b"\n"))


@dataclass
class Answer:
    """The framed lines of one answer, in their order, and the raw outputs."""

    lines: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    out: bytes = b""
    err: bytes = b""
    noise: bytes = b""

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.lines]

    def get(self, word: str) -> dict[str, str]:
        for found, keys in self.lines:
            if found == word:
                return keys
        raise AssertionError(f"no {word!r} in {self.lines}, noise {self.noise!r}")

    @property
    def result(self) -> dict[str, str]:
        return self.get("result")

    @property
    def refusal(self) -> str:
        return self.get("no")["code"]


def parse_line(line: bytes, nonce: str) -> tuple[str, dict[str, str]] | None:
    begin = f"sshop1 {nonce} ".encode()
    if not line.startswith(begin):
        return None
    text = line[len(begin) :].decode("utf-8", "surrogateescape")
    keys: dict[str, str] = {}
    if " msg=" in text:
        text, keys["msg"] = text.split(" msg=", 1)
    word, *pairs = text.split(" ")
    if word == "no":
        keys["code"] = pairs.pop(0)
    for pair in pairs:
        name, value = pair.split("=", 1)
        keys[name] = value
    return word, keys


class Channel:
    """One guard process, as sshd would start it, and the conversation with it."""

    def __init__(self, store: Store, request: Request, **popen: object) -> None:
        self.request = request
        self.answer = Answer()
        self.process = store.start(**popen)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def read(self, until: str | None = None) -> str | None:
        """Reads framed lines until ``until``, ``no`` or the end of the stream; tells which."""
        stream = self.process.stdout
        assert stream is not None
        while line := stream.readline():
            frame = parse_line(line.rstrip(b"\n"), self.request.nonce)
            if frame is None:
                self.answer.noise += line
                continue
            self.answer.lines.append(frame)
            word, keys = frame
            if word == "data":
                data = stream.read(int(keys["bytes"]))
                if keys["stream"] == "out":
                    self.answer.out += data
                else:
                    self.answer.err += data
            if word in (until, "end"):
                return word
        return None

    def close(self) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.read(until="nothing")
        self.process.stdout.close()
        self.process.wait(30)
        return self.answer


class Store:
    """A root folder with the guard in it, for one shell."""

    def __init__(self, root: Path, shell: str = "dash", prefix: list[str] | None = None) -> None:
        self.root = root
        self.shell = SHELLS[shell]
        link = root.parent / f"shell-{shell}" / "sh"  # called `sh`, a shell behaves as one
        link.parent.mkdir(parents=True, exist_ok=True)
        link.parent.chmod(0o755)
        if not link.is_symlink():
            link.symlink_to(self.shell)
        self.sh = str(link)
        self.prefix = prefix or []
        digest = hashlib.sha256(GUARD_SOURCE.read_bytes()).hexdigest()
        self.guard = root / "guard" / digest
        self.guard.parent.mkdir(parents=True, exist_ok=True)
        for folder in (root, self.guard.parent):
            folder.chmod(0o700)
        shutil.copyfile(GUARD_SOURCE, self.guard)
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(root.parent),
            "LOGNAME": "tester",
        }

    @property
    def base(self) -> Path:
        [base] = [path for path in self.root.iterdir() if path.name.startswith("m-")]
        return base

    def marker(self, op: str, gen: int = 1) -> Path:
        return self.base / "markers" / f"{op}+{gen}"

    def text(self, op: str, gen: int = 1) -> str:
        return self.marker(op, gen).read_text("latin-1").rstrip("\n")

    def start(self, **popen: object) -> subprocess.Popen[bytes]:
        command = [*self.prefix, self.sh, str(self.guard)]
        options: dict[str, object] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": None if os.environ.get("GUARD_STDERR") else subprocess.DEVNULL,
            "env": self.env,
            "start_new_session": True,
            **popen,
        }
        return subprocess.Popen(command, **options)  # type: ignore[call-overload, no-any-return]

    def open(self, request: Request, **popen: object) -> Channel:
        return Channel(self, request, **popen)

    def ask(self, request: Request, ack: bool = False, **popen: object) -> Answer:
        """A whole conversation, as a runner without faults leads it."""
        channel = self.open(request, **popen)
        head = request.head()
        channel.send(head)
        if channel.read(until="hello") != "hello" or request.verb == "hello":
            return channel.close()
        rest = request.secrets()
        lines = head.count(b"\n") + rest.count(b"\n")
        if request.stdin is not None:
            channel.send(rest + b"b %d\n" % len(request.stdin) + request.stdin)
            rest = b""
            lines += 1
            if channel.read(until="spooled") != "spooled":
                return channel.close()
        channel.send(rest + b"go %d\n" % lines)
        channel.read(until="end")
        if ack:
            channel.send(b"ack\n")
            channel.read(until="acked")
        return channel.close()
