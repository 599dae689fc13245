"""Which guard a host gets, and how it gets there: text, digest, path, the installer, and the installer's answer.

Source: PROTOCOL.md, sections 2 and 10.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from sshop.errors import Fault, GuardUnreachable, UsageError

NAME = "guard.sh"
DEFAULT_ROOT = "~/.sshop"
_ROOT = re.compile(r"(?:~|/[A-Za-z0-9._-]+)(?:/[A-Za-z0-9._-]+)*\Z")
_NOISE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
_SHOWN = 2000


def load(name: str = NAME) -> bytes:
    """The guard's text: from the installed package, or from the checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data" / "remote_scripts", package.parent / "remote_scripts"):
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            continue
    raise Fault(f"the guard {name} is missing from this installation of sshop")


def digest(text: bytes) -> str:
    """The guard's own SHA-256, in hexadecimal: its name on the host."""
    return hashlib.sha256(text).hexdigest()


def check_root(root: str) -> str:
    """`root`, when every login shell reads it alike.

    Raises `UsageError`.
    """
    if not _ROOT.match(root) or ".." in root.split("/"):
        raise UsageError(
            f"not a folder for the guard: {root[:200]!r}", hint="~/.sshop, or an absolute path of A-Z a-z 0-9 . _ - /"
        )
    return root


def command(text: bytes, root: str = DEFAULT_ROOT) -> str:
    """The command line that starts the guard: plain words and a leading `~/`."""
    return f"/bin/sh {check_root(root)}/guard/{digest(text)}"


def installer(text: bytes, root: str, token: str) -> bytes:
    """A script for the standard input of `/bin/sh` that puts the guard in its place and says so in one line.

    It stands in one brace group, so that a truncated copy is a syntax error. The guard stands in it between quotes and
    not in a here-document, which some shells keep in a file of /tmp. `token` (letters and digits) is fresh each time.
    """
    if b"\0" in text or b"\r" in text or not text.isascii() or not text.endswith(b"\n"):
        raise Fault("the guard's text cannot travel: it must be ASCII lines without NUL or carriage return")
    place = check_root(root)
    folder = '"$HOME"' + place[1:] if place.startswith("~") else place
    head = _INSTALLER.replace("@FOLDER@", folder).replace("@TOKEN@", token)
    head = head.replace("@DIGEST@", digest(text)).replace("@LENGTH@", str(len(text)))
    before, after = head.split("@TEXT@")
    quoted = b"'" + text.replace(b"'", b"'\\''") + b"'"
    return before.encode() + quoted + after.encode()


def check_installed(output: bytes, noise: bytes, token: str) -> None:
    """Take the installer's answer.

    Raises `GuardUnreachable` with what the host said.
    """
    found = re.search(rb"(?:^|\n)sshop-install %b (ok|failed)(?: ([^\n]*))?\n" % token.encode(), output)
    said = show_noise(output[: found.start()] if found else output, noise)
    if not found:
        raise GuardUnreachable(
            "the guard could not be installed: " + (f"the host answered: {said}" if said else "the host said nothing"),
            hint="the account needs a login shell that runs /bin/sh, and no forced command",
        )
    if found[1] == b"failed":
        why = found[2].decode("utf-8", "replace") if found[2] else "it did not say why"
        raise GuardUnreachable(
            f"the guard could not be installed: {why}" + (f" ({said})" if said else ""),
            hint="look for space, quota and permissions there (df, ls -ld), or name another root in hosts.yaml",
        )


def show_noise(*pieces: bytes) -> str:
    """What a host printed beside the protocol, made fit for a message: one line, no control characters, its end."""
    text = "\n".join(piece.decode("utf-8", "replace") for piece in pieces if piece)
    lines = [" ".join(_NOISE.sub("", line).split()) for line in text.splitlines()]
    shown = "; ".join(line for line in lines if line)
    return shown if len(shown) <= _SHOWN else "…" + shown[-_SHOWN:]


# Every step answers for itself. `ls -n` tells the owner on every system; `test -O` does not exist in all.
_INSTALLER = """{
set -f
umask 077
LC_ALL=C
export LC_ALL
PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:$PATH
unset CDPATH
say() {
	printf '\\nsshop-install @TOKEN@ %s\\n' "$*"
}
give_up() {
	test -z "$aside" || rm -f "$aside"
	say failed "$*"
	exit 1
}
owned() {
	test ! -h "$1" || give_up "$1 is a symbolic link"
	test -d "$1" || give_up "$1 is not a folder"
	set -- "$1" $(ls -ldn "$1")
	test "$4" = "$(id -u)" || give_up "$1 belongs to another account (uid $4)"
	test -w "$1" || give_up "$1 cannot be written"
}
make() {
	test -d "$1" || mkdir -p "$1" || give_up "$1 cannot be made"
	owned "$1"
}
aside=
root=@FOLDER@
case $root in
/.sshop | /.sshop/*) test -n "${HOME-}" || give_up 'HOME is not set' ;;
esac
case $root in
"${HOME-}"/*) test -d "$HOME" || give_up "the home folder $HOME does not exist" ;;
esac
make "$root"
make "$root/guard"
guard=$root/guard/@DIGEST@
aside=$root/guard/.@DIGEST@.@TOKEN@
test ! -d "$guard" || give_up "$guard is a folder"
printf %s @TEXT@ >"$aside" || give_up "$aside cannot be written"
length=$(($(wc -c <"$aside")))
test "$length" = @LENGTH@ || give_up "only $length of @LENGTH@ bytes of the guard could be written"
made=
if command -v sha256sum >/dev/null 2>&1; then
	made=$(sha256sum <"$aside")
elif command -v sha256 >/dev/null 2>&1; then
	made=$(sha256 -q <"$aside")
fi
case $made in
'' | @DIGEST@*) ;;
*) give_up 'what arrived is not the guard: its SHA-256 differs' ;;
esac
sync "$aside" 2>/dev/null || sync
mv -f "$aside" "$guard" || give_up "$guard cannot be written"
aside=
sync "$root/guard" 2>/dev/null || sync
say ok
exit 0
}
"""
