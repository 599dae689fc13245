"""OpenSSH's client configuration: what ssh_config(5) says about one host. No network, and no SSH library.

The system's file is read after the user's, the first value of an option wins, and the options that sshop has no use for
are passed over. `ssh -G` is the measure, and the tests compare with it. Not supported: `CanonicalizeHostname` (names
are taken as they stand) and `Match localnetwork`, `version`, `sessiontype` and `command`.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from sshop.core.value import Value
from sshop.errors import UsageError
from sshop.transport.words import BAD_IN_HOST, HostWord, matches, split_words

SYSTEM_FILE = "/etc/ssh/ssh_config"
DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
_DEPTH = 16

_TEXT = {
    "addressfamily", "bindaddress", "casignaturealgorithms", "ciphers", "compression", "connecttimeout",
    "globalknownhostsfile", "hostkeyalgorithms", "hostkeyalias", "hostname", "identitiesonly", "identityagent",
    "kexalgorithms", "macs", "passwordauthentication", "port", "pubkeyacceptedalgorithms", "pubkeyauthentication",
    "revokedhostkeys", "stricthostkeychecking", "tag", "tcpkeepalive", "user", "userknownhostsfile",
}  # fmt: skip
_LISTS = {"identityfile", "certificatefile"}
_WHOLE_LINE = {"proxycommand", "proxyjump"}
_SYNONYMS = {"pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms", "hostbasedkeytypes": ""}
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class HostConfig(Value):
    """What the configuration says about one host, expanded; None and empty mean OpenSSH's default."""

    name: str
    address: str
    user: str
    port: int
    home: str
    host_key_alias: str | None = None
    connect_timeout: float | None = None
    family: int = socket.AF_UNSPEC
    bind_address: str | None = None
    tcp_keepalive: bool = True
    proxy_jump: str | None = None
    proxy_command: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    revoked_host_keys: str | None = None
    identities: tuple[str, ...] = ()
    identities_given: bool = False
    certificates: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    public_keys: bool = True
    host_key_algorithms: str | None = None
    kex_algorithms: str | None = None
    ciphers: str | None = None
    macs: str | None = None
    key_algorithms: str | None = None
    files: tuple[str, ...] = ()


def look_up(
    word: HostWord,
    *,
    address: str | None = None,
    file: Path | str | None = None,
    environ: Mapping[str, str],
) -> HostConfig:
    """The configuration of one host. `address` wins over `HostName`; `file` stands alone, as with `ssh -F`.

    Raises `UsageError` for a file that cannot be read or understood.
    """
    home, local_user = _whoever_runs_this(environ)
    reading = _Reading(word, home, local_user, environ)
    for final in (False, True):
        reading.final = final
        if file is not None:
            if str(file) != "none":
                reading.read(str(file), must_exist=True)
        else:
            reading.read(f"{home}/.ssh/config", guarded=True)
            reading.read(SYSTEM_FILE)
        if not reading.wants_final:
            break
    return reading.finish(address)


def _whoever_runs_this(environ: Mapping[str, str]) -> tuple[str, str]:
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return environ.get("HOME", "/"), environ.get("LOGNAME", environ.get("USER", str(os.getuid())))
    return environ.get("HOME") or entry.pw_dir, entry.pw_name


class _Reading:
    """One look-up while its files are read. The first value of an option stays."""

    def __init__(self, word: HostWord, home: str, local_user: str, environ: Mapping[str, str]) -> None:
        self.word, self.home, self.local_user, self.environ = word, home, local_user, environ
        self.options: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {name: [] for name in _LISTS}
        self.files: list[str] = []
        self.final = self.wants_final = False
        if word.user is not None:
            self.options["user"] = word.user
        if word.port is not None:
            self.options["port"] = str(word.port)

    def read(
        self, path: str, *, must_exist: bool = False, guarded: bool = False, active: bool = True, depth: int = 0
    ) -> None:
        try:
            with Path(path).open(encoding="utf-8", errors="surrogateescape") as stream:
                status = os.fstat(stream.fileno())
                text = stream.read()
        except OSError as error:
            if must_exist or not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise UsageError(f"{path}: cannot read the SSH configuration: {error.strerror}") from error
            return
        if guarded and (status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise UsageError(f"{path}: others may write this file", hint=f"chmod go-w {path}")
        if path not in self.files:
            self.files.append(path)
        enclosing = active
        for number, line in enumerate(text.splitlines(), 1):
            try:
                active = self._take(line.strip(), path, active, enclosing, depth)
            except ValueError as error:
                raise UsageError(f"{path}:{number}: {error}") from error

    def _take(self, line: str, path: str, active: bool, enclosing: bool, depth: int) -> bool:  # noqa: FBT001 - the state of the block
        """Take one line; whether the block that it stands in applies."""
        found = re.match(r"""["']?([A-Za-z0-9]+)["']?(?:\s*=\s*|\s+|\Z)(.*)""", line)
        if not line or line.startswith("#"):
            return active
        if not found:
            raise ValueError(f"cannot be understood: {line[:80]}")
        keyword, rest = found[1].lower(), found[2]
        keyword = _SYNONYMS.get(keyword, keyword)
        if keyword == "host":
            return enclosing and matches(",".join(split_words(rest)), self.word.name)
        if keyword == "match":
            return self._match(split_words(rest)) and enclosing
        if keyword == "include":
            self._include(split_words(rest), path, active, depth)
        elif active and keyword in _WHOLE_LINE:
            # whichever of the two stands first wins, `none` included
            self.options.setdefault(
                "proxycommand" if "proxyjump" in self.options else keyword, rest.strip().strip('"') or "none"
            )
            if "proxyjump" in self.options and "proxycommand" not in self.options:
                self.options["proxycommand"] = "none"
            self.options.setdefault("proxyjump", "none")
        elif active and (keyword in _TEXT or keyword in _LISTS):
            words = split_words(rest)
            if not words:
                raise ValueError(f"{found[1]} needs a value")
            if keyword in _LISTS:
                if words[0] not in self.lists[keyword]:
                    self.lists[keyword].append(words[0])
            else:
                self.options.setdefault(keyword, "\0".join(words))
        return active

    def _include(self, names: list[str], path: str, active: bool, depth: int) -> None:  # noqa: FBT001 - as above
        if depth >= _DEPTH:
            raise ValueError("too many levels of Include")
        if not names:
            raise ValueError("Include needs a file")
        base = f"{self.home}/.ssh" if not path.startswith("/etc/ssh/") else "/etc/ssh"
        for name in names:
            pattern = str(Path(base, self._tilde(name)))
            for each in sorted(glob.glob(pattern)):  # noqa: PTH207 - an absolute pattern
                self.read(each, active=active, depth=depth + 1)

    def _match(self, words: list[str]) -> bool:
        if not words:
            raise ValueError("Match needs a condition")
        result = True
        at = 0
        while at < len(words):
            word = words[at]
            negated = word.startswith("!")
            name, equal, value = word.removeprefix("!").partition("=")
            name = name.lower()
            at += 1
            if name in ("all", "canonical", "final"):
                self.wants_final |= name == "final"
                so = name == "all" or self.final
            else:
                if not equal:
                    if at >= len(words):
                        raise ValueError(f"Match {name} needs a value")
                    value = words[at]
                    at += 1
                # as ssh does: what can no longer matter is not run
                so = result and self._holds(name, value)
            result = result and so != negated
        return result

    def _holds(self, name: str, value: str) -> bool:
        match name:
            case "host":
                return matches(value, self._address(), fold=True)
            case "originalhost":
                return matches(value, self.word.name)
            case "user":
                return matches(value, self.options.get("user", self.local_user))
            case "localuser":
                return matches(value, self.local_user)
            case "tagged":
                return matches(value, self.options.get("tag", ""))
            case "exec":
                command = self._expand(value, self._tokens())
                shell = self.environ.get("SHELL") or "/bin/sh"
                # the user's own file asks for it, as it does of ssh
                done = subprocess.run(  # noqa: S603
                    [shell, "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False
                )
                return done.returncode == 0
            case "localnetwork" | "version" | "sessiontype" | "command":
                return False
            case _:
                raise ValueError(f"unknown condition of Match: {name}")

    def _address(self) -> str:
        name = self.options.get("hostname")
        if name is None:
            return self.word.name
        return self._expand(name, {"%": lambda: "%", "h": lambda: self.word.name})

    def _tilde(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            return self.home + path[1:]
        return str(Path(path).expanduser()) if path.startswith("~") else path

    def _tokens(self, address: str | None = None) -> dict[str, Callable[[], str]]:
        address = address or self._address()
        user = self.options.get("user", self.local_user)
        port = self.options.get("port", "22")
        jump = self.options.get("proxyjump", "none")
        alias = self.options.get("hostkeyalias", self.word.name)
        values = {
            "%": "%", "d": self.home, "h": address, "n": self.word.name, "p": port, "r": user, "u": self.local_user,
            "i": str(os.getuid()), "k": alias, "j": "" if jump == "none" else jump,
        }  # fmt: skip
        slow: dict[str, Callable[[], str]] = {
            "l": socket.gethostname,
            "L": lambda: socket.gethostname().split(".")[0],
            "C": lambda: _connection_hash(address, port, user, values["j"]),
        }
        return {**{name: partial(str, value) for name, value in values.items()}, **slow}

    def _expand(self, text: str, tokens: Mapping[str, Callable[[], str]]) -> str:
        def one(found: re.Match[str]) -> str:
            token = tokens.get(found[1])
            if token is None:
                raise ValueError(f"unknown %{found[1]} in {text[:80]!r}")
            return token()

        return re.sub(r"%(.?)", one, text)

    def _paths(self, values: Iterator[str] | tuple[str, ...], tokens: Mapping[str, Callable[[], str]]) -> Iterator[str]:
        for value in values:
            yield self._expand(self._tilde(re.sub(r"\$\{([^}]*)\}", self._variable, value)), tokens)

    def _variable(self, found: re.Match[str]) -> str:
        if found[1] not in self.environ:
            raise ValueError(f"the environment has no {found[1]}")
        return self.environ[found[1]]

    def finish(self, address: str | None) -> HostConfig:
        try:
            return self._finish(address)
        except ValueError as error:
            raise UsageError(f"SSH configuration of {self.word.name}: {error}") from error

    def _finish(self, address: str | None) -> HostConfig:
        options = self.options
        address = address or self._address().lower()
        user = options.get("user", self.local_user)
        port = options.get("port", "22")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"not a port: {port}")
        if BAD_IN_HOST.search(address) or address.startswith("-"):
            raise ValueError(f"not a host name: {address[:200]!r}")
        tokens = self._tokens(address)

        def text(name: str) -> str | None:
            value = options.get(name)
            return None if value is None or value.lower() == "none" else value.replace("\0", " ")

        def paths(name: str, default: tuple[str, ...]) -> tuple[str, ...]:
            values = tuple(options[name].split("\0")) if name in options else default
            return () if values == ("none",) else tuple(self._paths(values, tokens))

        def flag(name: str, *, default: bool) -> bool:
            return options.get(name, "yes" if default else "no").lower() in ("yes", "true", "unbound", "host-bound")

        given = tuple(value for value in self.lists["identityfile"] if value.lower() != "none")
        certificates = tuple(value for value in self.lists["certificatefile"] if value.lower() != "none")
        default = () if self.lists["identityfile"] else tuple(f"{self.home}/.ssh/{name}" for name in DEFAULT_IDENTITIES)
        jump, command = text("proxyjump"), text("proxycommand")
        agent = options.get("identityagent")
        if agent is not None and agent not in ("none", "SSH_AUTH_SOCK"):
            agent = (
                self.environ.get(agent[1:], "none")
                if re.fullmatch(r"\$\w+", agent)
                else next(self._paths((agent,), tokens))
            )
        families = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
        family = options.get("addressfamily", "any").lower()
        if family not in families:
            raise ValueError(f"AddressFamily is any, inet or inet6, not {family}")
        return HostConfig(
            name=self.word.name,
            address=address,
            user=user,
            port=int(port),
            home=self.home,
            host_key_alias=text("hostkeyalias"),
            connect_timeout=_seconds(text("connecttimeout")),
            family=families[family],
            bind_address=text("bindaddress"),
            tcp_keepalive=flag("tcpkeepalive", default=True),
            proxy_jump=jump and self._expand(jump, tokens),
            proxy_command=command and self._expand(command, tokens),
            user_known_hosts=paths(
                "userknownhostsfile", (f"{self.home}/.ssh/known_hosts", f"{self.home}/.ssh/known_hosts2")
            ),
            global_known_hosts=paths("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")),
            revoked_host_keys=next(iter(paths("revokedhostkeys", ("none",))), None),
            identities=tuple(self._paths(given or default, tokens)),
            identities_given=bool(given),
            certificates=tuple(self._paths(certificates, tokens)),
            identities_only=flag("identitiesonly", default=False),
            identity_agent=agent,
            public_keys=flag("pubkeyauthentication", default=True),
            host_key_algorithms=text("hostkeyalgorithms"),
            kex_algorithms=text("kexalgorithms"),
            ciphers=text("ciphers"),
            macs=text("macs"),
            key_algorithms=text("pubkeyacceptedalgorithms"),
            files=tuple(self.files),
        )


def _seconds(text: str | None) -> float | None:
    """A time of ssh_config(5): `90`, `1m30s`."""
    if text is None:
        return None
    if not re.fullmatch(r"(\d+[smhdwSMHDW]?)+", text):
        raise ValueError(f"not a time: {text}")
    total = sum(int(number) * _UNITS[unit.lower()] for number, unit in re.findall(r"(\d+)([a-zA-Z]?)", text))
    return float(total) or None


def _connection_hash(address: str, port: str, user: str, jump: str) -> str:
    import hashlib

    text = f"{socket.gethostname()}{address}{port}{user}{jump}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
