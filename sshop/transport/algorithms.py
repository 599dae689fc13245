"""Which algorithms are asked for, in which order: ours, as changed by the OpenSSH configuration. Names only."""

from __future__ import annotations

from fnmatch import fnmatchcase

from sshop.errors import UsageError

# A handshake that costs little goes first; sshd's own favourite costs 70 ms of processor time more.
KEX = [
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
    "mlkem768x25519-sha256",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group-exchange-sha256",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group18-sha512",
    "diffie-hellman-group14-sha256",
]
CIPHERS = [
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
]
HOST_KEYS = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
]


def choose(setting: str | None, known: list[bytes], default: list[str]) -> list[str]:
    """A list of ssh_config(5): names and patterns, or `+ - ^` and a list to change the default. What the library does
    not know is left out.
    """
    available = [each.decode() for each in known]
    usable = [each for each in default if each in available]
    if not setting:
        return usable
    sign, names = (setting[0], setting[1:]) if setting[0] in "+-^" else ("", setting)
    chosen = [each for pattern in names.split(",") for each in available if fnmatchcase(each, pattern)]
    match sign:
        case "+":
            result = [*usable, *chosen]
        case "-":
            result = [each for each in usable if each not in chosen]
        case "^":
            result = [*chosen, *usable]
        case _:
            result = chosen
    if not result:
        raise UsageError(f"SSH configuration: none of these algorithms can be used: {setting[:200]}")
    return list(dict.fromkeys(result))


def signatures(algorithm: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if algorithm == "ssh-rsa" else (algorithm,)
