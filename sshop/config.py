"""Settings: where ledger, policies and caches stand, who we are, and how secrets and files come in.

Options win over the environment, and the environment over defaults. Nothing here reads a policy file, and nothing here
is imported that a start would feel.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Mapping

from sshop import errors
from sshop.core.command import STDIN_LIMIT, Secret, Stdin
from sshop.core.identity import ID_PATTERN
from sshop.ports import Process

SECRET_LIMIT = 131_000


def agent_name(environ: Mapping[str, str]) -> str | None:
    """SSHOP_AGENT, a name for the record.

    Raises `UsageError` for one that is too long or holds control characters.
    """
    name = environ.get("SSHOP_AGENT")
    if not name:
        return None
    if len(name) > 200 or not name.isprintable():
        raise errors.UsageError("SSHOP_AGENT must be at most 200 printable characters")
    return name


def _home(environ: Mapping[str, str]) -> str | None:
    home = environ.get("HOME")
    return home if home and home.startswith("/") else None


def _xdg(environ: Mapping[str, str], variable: str, *below_home: str) -> str | None:
    """The XDG folder; a relative one is ignored (XDG base directory specification)."""
    named = environ.get(variable)
    if named and named.startswith("/"):
        return named
    home = _home(environ)
    return None if home is None else os.path.join(home, *below_home)


def ledger_location(environ: Mapping[str, str], option: str | None = None) -> str:
    """Where the ledger stands: the option, SSHOP_LEDGER, else `sshop/ledger.sqlite` in the user's state folder.

    The folder of the default is made, private. Raises `LedgerError` where there is no home or it cannot be written.
    """
    named = option or environ.get("SSHOP_LEDGER")
    if named:
        return named
    hint = "--ledger FILE or SSHOP_LEDGER names another place"
    state = _xdg(environ, "XDG_STATE_HOME", ".local", "state")
    if state is None:
        raise errors.LedgerError("HOME names no folder, so there is no place for the ledger", hint=hint)
    folder = os.path.join(state, "sshop")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise errors.LedgerError(f"cannot make {folder}: {error.strerror}", hint=hint) from error
    return os.path.join(folder, "ledger.sqlite")


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """The folder of what can be made again; None where there is no home."""
    cache = _xdg(environ, "XDG_CACHE_HOME", ".cache")
    return None if cache is None else os.path.join(cache, "sshop")


def _data_folder(name: str) -> str:
    """A folder that is shipped: beside the package in a checkout, inside it once installed."""
    package = os.path.dirname(os.path.abspath(__file__))
    inside = os.path.join(package, "_data", name)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), name)


def shipped_policies() -> str:
    """The folder of policies that comes with sshop."""
    return _data_folder("policies")


def policies_folder(environ: Mapping[str, str], option: str | None = None, cwd: str | None = None) -> str:
    """The folder of policies: the option, SSHOP_POLICIES, the nearest `policies/` upward that has a `catalogue/`, else
    the shipped one.

    Raises `UsageError` where one that was named is not there.
    """
    named = option or environ.get("SSHOP_POLICIES")
    if named:
        if not os.path.isdir(os.path.join(named, "catalogue")):
            raise errors.UsageError(
                f"no policies at {named}: it holds no folder `catalogue`",
                hint="--policies and SSHOP_POLICIES name a folder with catalogue/*.yaml in it",
            )
        return named
    with contextlib.suppress(OSError):  # the working folder may be gone or closed to us
        here = os.path.join(os.getcwd(), cwd or "")
        while True:
            found = os.path.join(here, "policies")
            if os.path.isdir(os.path.join(found, "catalogue")):
                return found
            above = os.path.dirname(here)
            if above == here:
                break
            here = above
    return shipped_policies()


# --- who we are -------------------------------------------------------------------------------------------------------


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def machine() -> str:
    """What tells this machine, and this PID namespace of it, from others: a process ID means nothing elsewhere."""
    named = _first_line("/etc/machine-id") or "-"
    namespace = "-"
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return f"{os.uname().nodename}/{named[:12]}/{namespace}"


def boot() -> str:
    """What tells this boot from another."""
    return _first_line("/proc/sys/kernel/random/boot_id")[:8] or "-"


def process_start(pid: int) -> str | None:
    """The start of a process, unique with its PID on this machine; None where it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None if os.path.exists("/proc/self/stat") else _start_by_ps(pid)
    fields = content[content.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{boot()}.{fields[19].decode()}"


def _start_by_ps(pid: int) -> str | None:
    """Where there is no /proc."""
    import subprocess

    found = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, check=False, text=True
    )
    state, _, start = found.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else "ps." + "-".join(start.split())


def process_alive(pid: int, start: str, where: str) -> bool | None:
    """Whether that very process lives; None where it is another machine's."""
    if where != machine():
        return None
    return process_start(pid) == start


def session_id(environ: Mapping[str, str], owner_pid: int, owner_start: str) -> str:
    """SSHOP_SESSION, or an ID made of the owner's process.

    Raises `UsageError` for a name that is no ID.
    """
    named = environ.get("SSHOP_SESSION")
    if named:
        if not ID_PATTERN.match(named):
            raise errors.UsageError(
                f"SSHOP_SESSION is not an ID: {named[:140]!r}",
                hint="1 to 128 of A-Z a-z 0-9 . _ - and a letter or digit first",
            )
        return named
    made = hashlib.sha256(f"{machine()} {owner_pid} {owner_start}".encode()).hexdigest()
    return f"ses_{owner_pid}-{made[:20]}"


def this_process(environ: Mapping[str, str]) -> Process:
    """This process and its owner, which is the parent: the agent or the shell that started us.

    Raises `UsageError` for a SSHOP_SESSION or SSHOP_AGENT that cannot stand.
    """
    pid, owner = os.getpid(), os.getppid()
    owner_start = process_start(owner) or "-"
    return Process(
        session_id=session_id(environ, owner, owner_start),
        agent=agent_name(environ),
        pid=pid,
        pid_start=process_start(pid) or "-",
        owner_pid=owner,
        owner_pid_start=owner_start,
        machine=machine(),
        user=_user(),
    )


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


# --- secrets and files ------------------------------------------------------------------------------------------------


def secret_reader(environ: Mapping[str, str], read_stdin: Callable[[], bytes]) -> Callable[[str], bytes]:
    """A function from a secret's reference to the secret: `env:NAME`, `file:PATH` (without its last newline), `stdin`.

    It raises `UsageError` for what is no reference, and `InputUnavailable` where the secret is not at hand.
    """

    def read(reference: str) -> bytes:
        kind, colon, rest = reference.partition(":")
        if reference == "stdin":
            found = read_stdin()
        elif kind == "env" and rest:
            if rest not in environ:
                raise errors.InputUnavailable(f"the secret is not at hand: no variable {rest} in the environment")
            return os.fsencode(environ[rest])
        elif kind == "file" and rest:
            found = _bytes_of(rest, SECRET_LIMIT)
        else:
            shown = f"{kind}:" if colon and kind in ("env", "file") else "what was given"
            raise errors.UsageError(
                f"a secret is given by reference, and {shown} is none",
                hint="env:NAME, file:PATH or stdin; the secret itself would stand in the process list",
            )
        return found.removesuffix(b"\n").removesuffix(b"\r")

    return read


def _bytes_of(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise errors.InputUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise errors.UsageError(f"{path} is longer than {limit:,} bytes")
    return content


def read_stdin_file(path: str) -> Stdin:
    """A file as standard input, read once: what is hashed is what is sent.

    Raises `InputUnavailable` where it cannot be read, and `UsageError` where it is no plain file or too long.
    """
    try:
        with open(path, "rb") as file:
            if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                raise errors.UsageError(f"{path} is a folder")
            content = file.read(STDIN_LIMIT + 1)
    except IsADirectoryError as error:
        raise errors.UsageError(f"{path} is a folder") from error
    except OSError as error:
        raise errors.InputUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > STDIN_LIMIT:
        raise errors.UsageError(f"{path} is longer than {STDIN_LIMIT:,} bytes")
    return Stdin(len(content), hashlib.sha256(content).hexdigest(), Secret(content), os.path.abspath(path))
