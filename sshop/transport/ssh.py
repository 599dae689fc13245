"""SSH itself: handshake, host key, login, channels. The only module that knows asyncssh; it reports, it does not judge.

asyncssh gets every option from here and reads no configuration of its own: its reader passes over options that matter
(StrictHostKeyChecking, RevokedHostKeys, the system's file), and its matching of host keys takes an address for a name.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import getpass
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sshop.core.value import replace
from sshop.errors import (
    ConnectTimeout,
    GuardUnreachable,
    HostKeyRefused,
    HostUnreachable,
    LinkLost,
    LoginRefused,
    NotSent,
    RateLimited,
    UsageError,
)
from sshop.ports import Limits
from sshop.transport import algorithms, line
from sshop.transport.channel import GuardChannel
from sshop.transport.client_config import HostConfig
from sshop.transport.credentials import Credential, Keyring, agent_path, refuse
from sshop.transport.guard import check_installed, command, installer, show_noise
from sshop.transport.keys import PublicKey
from sshop.transport.known_hosts import Trust, read_trust
from sshop.transport.words import HostWord, parse_host

# asyncssh looks for liboqs and libnettle through find_library, which starts eleven child processes. What they would add
# (sntrup761, umac) is not used here. Nor are X.509 certificates, which OpenSSH does not know, GSSAPI, and hardware
# tokens but through the agent: asyncssh goes without them where their modules cannot be imported, and a quarter of the
# time that it takes goes with them.
_UNUSED = ("asyncssh.crypto.x509", "gssapi", "pkcs11", "fido2", "ifaddr")
_find_library = ctypes.util.find_library
_absent = [name for name in _UNUSED if name not in sys.modules]
ctypes.util.find_library = lambda name: None  # noqa: ARG005 - the signature is the standard library's
sys.modules.update(dict.fromkeys(_absent))  # type: ignore[arg-type]
try:
    import asyncssh
    from asyncssh import encryption, kex, mac, public_key
    from asyncssh.constants import MSG_IGNORE
finally:
    ctypes.util.find_library = _find_library
    for _name in _absent:
        del sys.modules[_name]

_CERTIFICATE = "-cert-v01@openssh.com"
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_FULL = (b"Exceeded MaxStartups", b"Not allowed at this time")
_INSTALL_LIMIT = 60.0
_ENDING = 1.0
_JUMPS = 8

LookUp = Callable[[HostWord], HostConfig]


def _name_ourselves() -> None:
    """The library asks who runs it, for a default that is never used here, and fails for a user without an entry."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


async def connect(
    config: HostConfig,
    limits: Limits,
    look_up: LookUp,
    environ: Mapping[str, str],
    *,
    trust: Trust | None = None,
    opening: asyncio.Future[socket.socket] | None = None,
    depth: int = 0,
) -> SshConnection:
    """A logged-in connection to the host of this configuration, through its jump hosts.

    `opening` is a TCP connection that is on its way. Raises a `NotSent`.
    """
    _name_ourselves()
    trust = trust or read_trust(config)
    way: line.Way[SshConnection] = line.Way(opening=opening)
    try:
        way.jump = await _connect_jump(config, limits, look_up, environ, depth)
        try:
            return await _log_in(config, limits, environ, trust, way, certificates=trust.has_authority)
        except HostKeyRefused as refused:
            # as ssh: a certificate that is no good says nothing against the bare key
            if not refused.reason.startswith(("authority_unknown", "certificate")) or not trust.algorithms:
                raise
            return await _log_in(config, limits, environ, trust, way, certificates=False)
    except BaseException:
        await way.close()
        raise


async def _connect_jump(
    config: HostConfig, limits: Limits, look_up: LookUp, environ: Mapping[str, str], depth: int
) -> SshConnection | None:
    """The last of the hosts of ProxyJump, each reached through the one before it."""
    if not config.proxy_jump:
        return None
    if depth >= _JUMPS:
        raise UsageError(f"ProxyJump of {config.name}: more than {_JUMPS} hosts in a row")
    *before, last = (hop.strip().removeprefix("ssh://") for hop in config.proxy_jump.split(","))
    found = look_up(parse_host(last))
    if before:
        found = replace(found, proxy_jump=",".join(before), proxy_command=None)
    try:
        return await connect(found, limits, look_up, environ, depth=depth + 1)
    except NotSent as error:
        error.args = (f"jump host {last}: {error.message}",)
        error.message = error.args[0]
        raise


async def _log_in(
    config: HostConfig,
    limits: Limits,
    environ: Mapping[str, str],
    trust: Trust,
    way: line.Way[SshConnection],
    *,
    certificates: bool,
) -> SshConnection:
    """One connection, from the first packet to the login, each stretch under its own limit."""
    loop = asyncio.get_running_loop()
    login = _Login(config, trust, environ)
    options = _options(config, trust, limits, certificates=certificates)
    limit = min(limits.connect, config.connect_timeout or limits.connect)
    clock = asyncio.timeout(limit)
    try:
        async with clock:
            sock = await way.dial(config, environ)

            def enter(stage: str, limit: float) -> None:
                login.stage = stage
                clock.reschedule(loop.time() + limit)

            login.enter = lambda: enter("login", limits.login)
            enter("handshake", limits.handshake)
            raw = await asyncssh.connect(
                config.address,
                config.port,
                config=None,
                sock=sock,
                tunnel=way.jump.raw if way.jump else None,
                client_factory=lambda: login,
                **options,
            )
        return SshConnection(raw, login, limits, way.jump, way.proxy)
    except TimeoutError as error:
        stage = login.stage if login.stage in _LATE else "login"
        spent = {"connect": limit, "handshake": limits.handshake, "login": limits.login}[stage]
        failure: NotSent = ConnectTimeout(f"{login.place}: {_LATE[stage]} within {spent:g} s")
        failure.__cause__ = error
    except NotSent as error:
        failure = error
    except (asyncssh.Error, OSError, ValueError) as error:
        failure = login.explain(error, proxied=way.proxy is not None)
        failure.__cause__ = error
    finally:
        login.agent_close()
    # the library closes its socket a step after it says so
    await asyncio.sleep(0)
    if said := await way.end_proxy():
        failure.message += f" (the ProxyCommand said: {said})"
        failure.args = (failure.message,)
    raise failure


_LATE = {
    "connect": "no TCP connection",
    "handshake": "the host took the connection and did not come to its host key",
    "login": "the login did not come to an end",
}


def _options(config: HostConfig, trust: Trust, limits: Limits, *, certificates: bool) -> dict[str, object]:
    known = [each for name in trust.algorithms for each in algorithms.signatures(name)]
    plain = list(dict.fromkeys([*(each for each in known if each in algorithms.HOST_KEYS), *algorithms.HOST_KEYS]))
    signed = [each.replace("@openssh.com", "") + _CERTIFICATE for each in algorithms.HOST_KEYS] if certificates else []
    host_keys = algorithms.choose(
        config.host_key_algorithms, public_key.get_public_key_algs() + public_key.get_certificate_algs(), signed + plain
    )
    if not certificates:
        host_keys = [each for each in host_keys if not each.endswith(_CERTIFICATE)] or plain
    options: dict[str, object] = {
        "username": config.user,
        # the verdict is ours (`_Login`), and so the library is told of no good key
        "known_hosts": ((), (), _revoked(trust)),
        "host_key_alias": config.host_key_alias,
        "server_host_key_algs": host_keys,
        "kex_algs": algorithms.choose(config.kex_algorithms, kex.get_kex_algs(), algorithms.KEX),
        "encryption_algs": algorithms.choose(config.ciphers, encryption.get_encryption_algs(), algorithms.CIPHERS),
        "compression_algs": None,
        "tcp_keepalive": config.tcp_keepalive,
        "x509_trusted_certs": None,
        "x509_trusted_cert_paths": [],
        "client_keys": None,
        "agent_path": None,
        "preferred_auth": "publickey",
        "gss_host": None,
        "gss_kex": False,
        "gss_auth": False,
        "agent_forwarding": False,
        "login_timeout": 0,
        "connect_timeout": None,
        # noticed after the last sign of life by three questions that get no answer
        "keepalive_interval": limits.dead_after / 4,
        "keepalive_count_max": 3,
        "utf8_decode_errors": "replace",
    }
    if config.macs:
        options["mac_algs"] = algorithms.choose(
            config.macs, mac.get_mac_algs(), [each.decode() for each in mac.get_default_mac_algs()]
        )
    return options


def _revoked(trust: Trust) -> list[asyncssh.SSHKey]:
    """The revoked keys, for the one place that only the library sees: the key inside a host certificate."""
    lines = [entry.key.line for entry in (*trust.entries, *trust.portless) if entry.marker == "revoked"]
    keys = []
    for text in lines if trust.has_authority else ():
        try:
            keys.append(asyncssh.import_public_key(text))
        except asyncssh.KeyImportError:
            continue
    return keys


class _Login(asyncssh.SSHClient):
    """One connection on its way in: what it saw, what it offered, and what it means when it ends."""

    def __init__(self, config: HostConfig, trust: Trust, environ: Mapping[str, str]) -> None:
        self.config, self.trust, self.environ = config, trust, environ
        self.place = f"{config.address} port {config.port}"
        self.stage = "connect"
        self.enter: Callable[[], None] = lambda: None
        self.refused: HostKeyRefused | None = None
        self.accepted: Credential | None = None
        self.down: str | None = None
        self.banner = ""
        self.greeting = b""
        self._raw: asyncssh.SSHClientConnection | None = None
        self._offers: Iterator[Credential] | None = None
        self._keyring: Keyring | None = None
        self._tried: list[Credential] = []
        self._agent: asyncssh.SSHAgentClient | None = None
        self._held: dict[bytes, asyncssh.SSHKeyPair] = {}

    # The line.

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._raw = conn
        receive = conn.data_received
        sock = None if conn.get_extra_info("remote_peername") else conn.get_extra_info("socket")
        if sock is not None and (sock.family not in (socket.AF_INET, socket.AF_INET6) or _QUICKACK is None):
            sock = None

        def data_received(data: bytes, datatype: asyncssh.DataType = None) -> None:
            if self.stage != "up":
                self.greeting = self.greeting if len(self.greeting) > 1024 else self.greeting + data
            receive(data, datatype)
            if sock is not None:
                # the kernel forgets it with every packet; a delayed ACK stalls the first command by 40 ms
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
                except OSError:
                    return

        conn.data_received = data_received  # type: ignore[method-assign]
        send = conn.send_packet

        def send_packet(pkttype: int, *args: bytes, handler: Any = None) -> None:
            # The library puts an empty packet before each, and so wakes the far side twice. It helps ciphers in CBC
            # mode, and no others.
            if pkttype != MSG_IGNORE or "-cbc" in str(conn.get_extra_info("send_cipher")):
                send(pkttype, *args, handler=handler)

        conn.send_packet = send_packet  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        self.down = str(exc) if exc else "closed"

    # The host's key.

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002 - the library's signature
        return self._take(self.trust.judge(_public(key)))

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002 - the library's signature
        return self._take(self.trust.judge_authority(_public(key)))

    def _take(self, refused: HostKeyRefused | None) -> bool:
        self.refused = refused
        if refused is None:
            self.enter()
        return refused is None

    # The login.

    def auth_banner_received(self, msg: str, lang: str) -> None:  # noqa: ARG002 - the library's signature
        self.banner = (self.banner + msg)[:4096]

    def auth_completed(self) -> None:
        self.stage = "up"

    async def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
        if not self.config.public_keys:
            return None
        if self._offers is None:
            self._keyring = Keyring(self.config)
            await self._ask_agent(self._keyring)
            self._offers = self._keyring.offers(list(self._held))
        for credential in self._offers:
            pair = self._open(credential)
            if pair is not None:
                shown = credential if credential.public else replace(credential, public=_public_of(pair))
                self._tried.append(shown)
                self._watch(pair, shown)
                return pair
        return None

    def _watch(self, pair: asyncssh.SSHKeyPair, credential: Credential) -> None:
        """Whoever signs last was accepted: a host asks for a signature by one key at a time, and some keys twice."""
        name = "sign_async" if hasattr(pair, "sign_async") else "sign"
        sign = getattr(pair, name)

        def signing(data: bytes) -> object:
            self.accepted = credential
            return sign(data)

        setattr(pair, name, signing)

    async def _ask_agent(self, keyring: Keyring) -> None:
        path = agent_path(self.config, self.environ)
        if path is None:
            return
        try:
            self._agent = await asyncssh.connect_agent(path)
            for pair in await self._agent.get_keys():
                self._held[pair.public_data] = pair
        except (OSError, ValueError, asyncssh.Error) as error:
            keyring.skipped.append(f"agent {path}: {getattr(error, 'strerror', None) or error}")

    def _open(self, credential: Credential) -> asyncssh.SSHKeyPair | None:
        """The credential as the library wants it; None where its file cannot be used."""
        certificate = None
        try:
            if credential.certificate is not None:
                certificate = public_key.decode_ssh_certificate(credential.certificate.blob)
            if credential.agent is not None:
                pair = self._held[credential.agent]
                if certificate is not None and not pair.has_cert and self._agent is not None:
                    pair = asyncssh.SSHAgentKeyPair(self._agent, credential.algorithm.encode(), credential.agent, b"")
                    pair.set_certificate(certificate)
                return pair
            assert credential.file is not None
            key = asyncssh.import_private_key(credential.file.data)
            pairs = asyncssh.load_keypairs((key, certificate) if certificate is not None else key)
            return pairs[0]
        except (OSError, ValueError, asyncssh.Error) as error:
            assert self._keyring is not None
            path = credential.file.path if credential.file else "agent"
            reason = str(error)
            if "assphrase" in reason:
                reason = "it is encrypted, and no agent holds it"
            self._keyring.skipped.append(f"{path}: {reason}")
            return None

    def agent_close(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    # What an end means.

    def explain(self, error: Exception, *, proxied: bool) -> NotSent:
        if self.refused is not None:
            return self.refused
        match error:
            case asyncssh.HostKeyNotVerifiable():
                text = str(error)
                reason = "certificate"
                if "revoked" in text:
                    reason = "authority_revoked" if "CA key" in text else "revoked"
                return self.trust.refuse(reason, text)
            case asyncssh.PermissionDenied():
                return self._login_refused("")
            case asyncssh.ChannelOpenError():
                return HostUnreachable(f"{self.place}: the jump host cannot connect to it: {error.reason}")
            case asyncssh.KeyExchangeFailed() | asyncssh.ProtocolNotSupported():
                return HostUnreachable(f"{self.place}: no SSH can be agreed on: {error.reason}")
        reason = str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
        if self.stage == "login" and isinstance(error, (asyncssh.ConnectionLost, OSError)):
            return HostUnreachable(f"{self.place}: the connection ended during the login: {reason}")
        if self.stage == "login":
            return self._login_refused(reason)
        if not isinstance(error, (asyncssh.Error, OSError)):
            return HostUnreachable(f"{self.place}: {reason}")
        if not self.greeting.startswith(b"SSH-"):
            return self._no_greeting(reason, proxied=proxied)
        return HostUnreachable(f"{self.place}: the connection ended in the handshake: {reason}")

    def _no_greeting(self, reason: str, *, proxied: bool) -> NotSent:
        said = show_noise(self.greeting)
        if b"\nSSH-" in self.greeting:
            return HostUnreachable(f"{self.place}: the connection ended in the handshake: {reason}")
        if any(text in self.greeting for text in _FULL):
            return RateLimited(f"{self.place}: sshd refused the connection: {said}")
        if said:
            return HostUnreachable(f"{self.place}: what answers is no SSH server: {said[:200]}")
        if proxied or self.config.proxy_jump:
            return HostUnreachable(f"{self.place}: the connection ended before the host said anything: {reason}")
        return RateLimited(
            f"{self.place}: the connection was closed before the server's first line,"
            f" as sshd does at MaxStartups: {reason}"
        )

    def _login_refused(self, reason: str) -> LoginRefused:
        skipped = self._keyring.skipped if self._keyring else []
        methods = self._raw.get_server_auth_methods() if self._raw is not None else ()
        said = {
            "the host takes": [each for each in methods if each != "none"],
            "it said:": [show_noise(self.banner.encode())],
        }
        return refuse(self.config.user, self.place, self._tried, skipped, reason=reason, said=said)


def _public_of(pair: asyncssh.SSHKeyPair) -> PublicKey:
    return PublicKey(pair.get_algorithm(), pair.public_data)


def _public(key: asyncssh.SSHKey) -> PublicKey:
    return PublicKey(key.get_algorithm(), key.public_data)


class _Session(asyncssh.SSHClientSession[bytes]):
    """Hands what the library says to a `GuardChannel`."""

    def __init__(self, channel: GuardChannel) -> None:
        self._channel = channel

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        # a writer waits until its last byte is on its way
        chan.set_write_buffer_limits(high=0, low=0)
        self._channel.connection_made(chan)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self._channel.data_received(data, is_noise=datatype is not None)

    def eof_received(self) -> bool:
        self._channel.eof_received()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.connection_lost(exc)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()


class SshConnection:
    """The port's `Connection`."""

    def __init__(
        self,
        raw: asyncssh.SSHClientConnection,
        login: _Login,
        limits: Limits,
        jump: SshConnection | None,
        proxy: line.ProxyCommand | None,
    ) -> None:
        key = raw.get_server_host_key()
        self.raw = raw
        self.host_key = _public(key).fingerprint if key else "-"
        self.authority_ref = login.accepted.ref if login.accepted else "none"
        self._login, self._limits, self._jump, self._proxy = login, limits, jump, proxy

    @property
    def is_down(self) -> bool:
        return self.raw.is_closed()

    async def open_guard(self, guard: bytes, root: str, *, install: bool = False) -> GuardChannel:
        start = command(guard, root)
        if install:
            await self._install(guard, root)
        return await self._open(start)

    async def close(self) -> None:
        try:
            self.raw.close()
            async with asyncio.timeout(_ENDING):
                await self.raw.wait_closed()
            # the library closes its socket a step after it says so
            await asyncio.sleep(0)
        except (TimeoutError, OSError, asyncssh.Error):
            pass
        finally:
            self.abort()
            if self._proxy is not None:
                await self._proxy.reap()
            if self._jump is not None:
                await self._jump.close()

    def abort(self) -> None:
        self.raw.abort()
        if self._proxy is not None:
            self._proxy.end()
        if self._jump is not None:
            self._jump.abort()

    async def _install(self, text: bytes, root: str) -> None:
        token = secrets.token_hex(8)
        channel = await self._open("/bin/sh")
        output = bytearray()
        try:
            async with asyncio.timeout(_INSTALL_LIMIT):
                await channel.send(installer(text, root, token))
                channel.finish()
                while data := await channel.receive():
                    output += data[: 1 << 20]
        except TimeoutError:
            said = show_noise(bytes(output), channel.noise())
            raise GuardUnreachable(
                f"the guard could not be installed within {_INSTALL_LIMIT:g} s" + (f": {said}" if said else "")
            ) from None
        finally:
            await channel.close()
        check_installed(bytes(output), channel.noise(), token)

    async def _open(self, text: str) -> GuardChannel:
        """A channel that runs a command line. What the server refuses, it has not begun."""
        channel = GuardChannel(idle=self._limits.idle, is_down=self._why_down)
        opening = asyncio.ensure_future(
            self.raw.create_session(
                lambda: _Session(channel),
                text,
                encoding=None,
                env=None,
                send_env=None,
                request_pty=False,
                x11_forwarding=False,
            )
        )
        try:
            async with asyncio.timeout(self._limits.channel):
                await asyncio.shield(opening)
        except TimeoutError:
            self.abort()
            opening.add_done_callback(partial(_drop_late, channel))
            raise ConnectTimeout(f"the host did not open a channel within {self._limits.channel:g} s") from None
        except asyncssh.ChannelOpenError as error:
            await asyncio.sleep(0)
            raise self._refused(error) from error
        except (asyncssh.Error, OSError) as error:
            raise LinkLost(f"the connection ended: {getattr(error, 'reason', error)}") from error
        except BaseException:
            opening.add_done_callback(partial(_drop_late, channel))
            raise
        return channel

    def _refused(self, error: asyncssh.ChannelOpenError) -> NotSent | LinkLost:
        if (why := self._why_down()) is not None:
            return LinkLost(f"the connection ended: {why}")
        if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
            return GuardUnreachable("the server opens channels and refuses to run a command in them")
        if error.code in (asyncssh.OPEN_CONNECT_FAILED, asyncssh.OPEN_RESOURCE_SHORTAGE):
            return RateLimited(f"the server refused another channel, as sshd does at MaxSessions: {error.reason}")
        return GuardUnreachable(f"the server refused a channel: {error.reason}")

    def _why_down(self) -> str | None:
        if self._login.down is not None:
            return self._login.down
        return "closed" if self.raw.is_closed() else None


def _drop_late(channel: GuardChannel, opening: asyncio.Future[object]) -> None:
    """Give back a channel that was opened when nobody waited for it any more."""
    if not opening.cancelled():
        opening.exception()
    channel.drop()
