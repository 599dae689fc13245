"""How each shipped command is tried: a row of example values, tools, a setting in which its condition is false, and what
must not fool the condition.

Where a command has no row but stands in `ON_A_HOST`, what it needs is not to be had in a namespace.
"""

# ruff: noqa: E501 - shell texts stay whole

import dataclasses
import functools
import hashlib
from collections.abc import Callable

from sshop import catalogue, config
from sshop.core import entry as entries
from sshop.core.command import Command, Secret, Stdin
from tests.support import private_host
from tests.support.tools import find_tool, missing

POLICY = catalogue.load(config.shipped_policies())
OPERATION = "op_01jaaaaaaaaaaaaaaaaaaaaaaa"
OTHER = "op_01jbbbbbbbbbbbbbbbbbbbbbbb"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE1vcmVUaGFuVGhpcnR5VHdvQnl0ZXNPZktleUhlcmU agent@ci"
BLOB = KEY.split()[1]
LISTS = "apt-get -qs install hello >/dev/null || apt-get update -q"
HELLO = "apt-get install -qy hello || { apt-get update -q && apt-get install -qy hello; }"
# the same commits each time: their names are a matter of content, dates and people alone
GIT = (
    "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' "
    "GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org"
)
POSTGRES = (
    "bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1); mkdir -p /run/postgresql /var/backups/postgres /srv; "
    "rm -rf /srv/pg; mkdir /srv/pg; chown postgres /srv/pg /run/postgresql /var/backups/postgres; cd /srv/pg; "
    'setpriv --reuid=postgres --regid=postgres --clear-groups "$bin/initdb" -D /srv/pg/d -A trust -N >/dev/null && '
    'setpriv --reuid=postgres --regid=postgres --clear-groups "$bin/pg_ctl" -D /srv/pg/d -w -l /srv/pg/l '
    "-o \"-F -h '' -k /run/postgresql\" start >/dev/null; "
    "setpriv --reuid=postgres --regid=postgres --clear-groups createdb shop_there"
)


@dataclasses.dataclass(frozen=True)
class Row:
    """How one command is tried.

    `setup` is shell text that leaves its condition (or verify) false. `again` is the status of a second run. `fools`
    are shell texts after each of which the condition must not be true. `count` prints how often the effect is there.
    `env` is set for every step.
    """

    values: dict = dataclasses.field(default_factory=dict)
    tools: tuple = ()
    setup: str = ":"
    again: tuple = (0,)
    fools: tuple = ()
    count: str = ""
    holds: str = ":"
    env: dict = dataclasses.field(default_factory=dict)
    stdin: bytes = b""


ROWS = {
    "user-present": Row(again=(9,), fools=("groupadd deploy", "useradd -M deploy")),
    "user-shell-set": Row(
        setup="useradd -s /bin/sh deploy",
        fools=("usermod -s /bin/bash2 deploy", "usermod -s /usr/bin/bash deploy", "userdel deploy"),
    ),
    "user-in-group": Row(setup="useradd deploy", fools=("groupadd admx; usermod -aG admx deploy", "userdel deploy")),
    "user-locked": Row(setup="useradd deploy; echo deploy:x | chpasswd", fools=("userdel deploy",)),
    "user-password-set": Row(setup="useradd deploy", values={"password": "env:NEW_PASSWORD"}),
    "user-removed": Row(setup="useradd -m deploy", again=(6,)),
    "group-present": Row(again=(9,), fools=("useradd -N builders",)),
    "sudoers-dropin-present": Row(
        tools=("visudo",),
        fools=(
            'echo "deploy ALL=(root) NOPASSWD: ALL" > /etc/sudoers.d/deploy; chmod 440 /etc/sudoers.d/deploy',
            'echo "deploy ALL=(root) NOPASSWD: /usr/bin/systemctl reload nginx" > /etc/sudoers.d/deploy',
            "mkdir /etc/sudoers.d/deploy; chmod 440 /etc/sudoers.d/deploy",
        ),
    ),
    "append-authorized-key": Row(
        setup="mkdir -p ~/.ssh; printf old > ~/.ssh/authorized_keys",
        count=f"grep -cxF '{KEY}' ~/.ssh/authorized_keys",
    ),
    "authorized-key-present": Row(
        setup=f"mkdir -p ~/.ssh; printf '# {KEY}' > ~/.ssh/authorized_keys",
        fools=(
            "rm -rf ~/.ssh",
            f"echo '{KEY}x' > ~/.ssh/authorized_keys",
            f"printf 'x\\000{KEY}\\000x\\n' > ~/.ssh/authorized_keys",
        ),
    ),
    "authorized-key-absent": Row(
        setup=f"mkdir -p ~/.ssh; cd ~/.ssh; (printf 'keep\\377 {BLOB}x\\n'; echo 'from=\"::1\" {KEY}'; echo '{KEY}') "
        f"> authorized_keys; echo '{KEY}' > authorized_keys2; sed -i 's/ .*x$/ {BLOB[:-1]}/' authorized_keys",
        holds=f"cd ~/.ssh; printf 'keep\\377 {BLOB[:-1]}\\n' | cmp - authorized_keys; test ! -s authorized_keys2",
        fools=(
            "rm ~/.ssh/authorized_keys",
            f"rm ~/.ssh/authorized_keys2; echo 'ssh-ed25519 {BLOB}AAAA' > ~/.ssh/authorized_keys",
        ),
    ),
    "package-installed": Row(tools=("apt-get",), setup=LISTS, fools=("useradd hello",)),
    "package-removed": Row(tools=("apt-get",), setup=HELLO),
    "package-purged": Row(tools=("apt-get",), setup=HELLO),
    "package-held": Row(values={"name": "bash"}, tools=("apt-mark",), fools=("apt-mark hold dash",)),
    "package-index-fresh": Row(
        tools=("apt-get",),
        fools=(
            "mkdir -p /var/lib/apt/periodic; touch -d '2 hours ago' /var/lib/apt/periodic/sshop-update-stamp",
            "mkdir -p /var/lib/apt/periodic; touch -d '2 days' /var/lib/apt/periodic/sshop-update-stamp",
        ),
    ),
    "packages-upgradable": Row(tools=("apt-get",)),
    "service-enabled": Row(
        values={"unit": "sshop-test.service"},
        tools=("systemctl",),
        env={"SYSTEMD_OFFLINE": "1"},
        setup="printf '[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' "
        "> /etc/systemd/system/sshop-test.service",
        fools=(
            "rm /etc/systemd/system/sshop-test.service",
            "printf '[Service]\\nExecStart=/bin/true\\n' > /etc/systemd/system/sshop-test.service",  # static
            "mkdir -p /run/systemd/system/multi-user.target.wants; systemctl enable --runtime sshop-test.service",
        ),
    ),
    "service-disabled": Row(
        values={"unit": "sshop-test.service"},
        tools=("systemctl",),
        env={"SYSTEMD_OFFLINE": "1"},
        setup="printf '[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' "
        "> /etc/systemd/system/sshop-test.service; systemctl enable sshop-test.service",
        fools=("rm /etc/systemd/system/sshop-test.service",),
    ),
    "directory-present": Row(
        setup="mkdir -p /srv; rm -rf /srv/app",
        fools=(
            "mkdir /srv/app; chmod 755 /srv/app",
            "mkdir /srv/app; chmod 2750 /srv/app",
            "mkdir /srv/real; chmod 750 /srv/real; ln -s /srv/real /srv/app",
            "touch /srv/app; chmod 750 /srv/app",
            "mkdir /srv/app; chmod 750 /srv/app; chown daemon /srv/app",
        ),
    ),
    "file-mode-set": Row(
        setup="mkdir -p /srv/app/config; chmod 2640 /srv/app/config",  # a folder keeps a bit that has two zeros too few
        fools=("rmdir /srv/app/config",),
    ),
    "file-owner-set": Row(
        setup="mkdir -p /srv/app; touch /srv/app/config",
        fools=("chown daemon:root /srv/app/config", "rm /srv/app/config"),
    ),
    "symlink-present": Row(
        setup="mkdir -p /srv/app/releases/42; rm -f /srv/app/current; ln -s /srv/app/releases/41 /srv/app/current",
        fools=("rm /srv/app/current", "rm /srv/app/current; cp -r /srv/app/releases/42 /srv/app/current"),
    ),
    "line-present": Row(
        values={"file": "/srv/f"},
        setup="printf '# 192.0.2.7 build.internal\\n192.0.2.7 build.internal x\\n192.0.2.7  build.internal' > /srv/f",
        fools=(
            "printf '192a0b2c7 build.internal\\n' > /srv/f",
            "printf 'x\\000192.0.2.7 build.internal\\000x\\n' > /srv/f",
            "rm /srv/f",
            "rm /srv/f; mkdir /srv/f",
        ),
    ),
    "line-absent": Row(
        values={"file": "/srv/f"},
        setup="printf '# 192.0.2.7 build.internal\\n192.0.2.7 build.internal\\n\\377\\000x\\n' > /srv/real; "
        "chmod 640 /srv/real; chown daemon /srv/real; ln -s real /srv/f",
        holds="printf '# 192.0.2.7 build.internal\\n\\377\\000x\\n' | cmp - /srv/real; test -L /srv/f; "
        'test "$(stat -c %a:%U /srv/real)" = 640:daemon; test "$(ls /srv/*.*)" = \'\'',
        fools=("rm /srv/f", "rm /srv/f; mkdir /srv/f"),
    ),
    "append-line": Row(
        values={"file": "/srv/f"},
        setup="printf old > /srv/f",
        holds="head -1 /srv/f | grep -qx old",
        count="grep -c 'moved the database' /srv/f",
    ),
    "file-content": Row(
        values={"content": __file__},
        setup="mkdir -p /srv/app; rm -rf /srv/app/config",
        fools=(
            f"cp {__file__} /srv/app/config; chmod 600 /srv/app/config",
            f"cp {__file__} /srv/app/config; echo >> /srv/app/config; chmod 640 /srv/app/config",
            "mkdir /srv/app/config; chmod 640 /srv/app/config",
        ),
    ),
    "file-removed": Row(setup="mkdir -p /srv/app; touch /srv/app/old", again=(1,)),
    "file-head": Row(),
    "disk-free": Row(),
    "disk-usage": Row(),
    "mount-present": Row(
        setup="mkdir -p /mnt/data; echo 'tmpfs /mnt/data tmpfs size=1m 0 0' >> /etc/fstab",
        again=(0, 32),
        fools=("rmdir /mnt/data", "rmdir /mnt/data; touch /mnt/data"),
    ),
    "mount-absent": Row(
        setup="mkdir -p /mnt/data; mount -t tmpfs tmpfs /mnt/data",
        again=(1, 32),
        fools=("umount /mnt/data; rmdir /mnt/data",),
    ),
    "backup-created": Row(
        count="ls /var/backups/etc-default-op_*.tar.gz | wc -l",
        holds="test -z \"$(find /var/backups -name 'etc-default-op_*' ! -perm 600)\"",
    ),
    "backups-pruned": Row(
        values={"name": "etc"},
        setup=f"cd /var/backups; touch -d '1 year ago' etc-{OPERATION}.tar.gz etc-default-{OPERATION}.tar.gz "
        f"etc-x.tar.gz; touch etc-{OTHER}.tar.gz",
        holds=f"cd /var/backups; test -e etc-default-{OPERATION}.tar.gz; test -e etc-x.tar.gz; test -e etc-{OTHER}.tar.gz",
    ),
    "postgres-database-present": Row(
        tools=("psql", "createdb"), setup=POSTGRES, again=(1,), fools=("rm -rf /run/postgresql/.s*",)
    ),
    "postgres-role-present": Row(tools=("psql", "createuser"), setup=POSTGRES, again=(1,)),
    "postgres-dump-created": Row(
        values={"name": "shop_there"},
        tools=("pg_dump",),
        setup=POSTGRES,
        count="ls /var/backups/postgres | wc -l",
        holds='test -z "$(find /var/backups/postgres -type f ! -perm 600)"',
    ),
    "postgres-activity": Row(tools=("psql",), setup=POSTGRES),
    "drop-database": Row(values={"name": "shop_there"}, tools=("dropdb",), setup=POSTGRES, again=(1,)),
    "sqlite-at-version": Row(
        values={"file": "/srv/a.sqlite", "script": "SCRIPT"},
        stdin=b"BEGIN; CREATE TABLE IF NOT EXISTS t (x); PRAGMA user_version = 2; COMMIT;\n",
        setup="echo '.mode line' > ~/.sqliterc",
        tools=("sqlite3",),
        fools=(
            "sqlite3 /srv/a.sqlite 'PRAGMA user_version=1'",
            "sqlite3 /srv/a.sqlite 'PRAGMA user_version=22'",
            "echo 2 > /srv/a.sqlite",
        ),
    ),
    "cron-job-present": Row(
        setup="mkdir -p /etc/cron.d",
        fools=(
            "cd /etc/cron.d; echo '15 3 * * * root /usr/local/bin/report --daily' > nightly-report; chmod 666 n*",
            "echo '15 3 * * * root /usr/local/bin/report' > /etc/cron.d/nightly-report",
            "mkdir /etc/cron.d/nightly-report; chmod 644 /etc/cron.d/nightly-report",
            "ln -s /etc/passwd /etc/cron.d/nightly-report",
        ),
    ),
    "cron-job-absent": Row(
        setup="mkdir -p /etc/cron.d; touch /etc/cron.d/nightly-report",
        fools=("ln -sf /nowhere /etc/cron.d/nightly-report",),
    ),
    "cron-list": Row(setup="mkdir -p /etc/cron.d; echo '1 1 * * * root x' > /etc/crontab"),
    "log-tail": Row(setup="echo x > /var/log/dpkg.log"),
    "uptime": Row(tools=("uptime",)),
    "processes": Row(tools=("ps",)),
    "memory": Row(tools=("free",)),
    "timezone-set": Row(
        setup="ln -sf /usr/share/zoneinfo/Etc/UTC /etc/localtime",
        fools=("rm /etc/localtime", "rm /etc/localtime /usr/share/zoneinfo/Europe/Berlin"),
    ),
    "ports-listening": Row(tools=("ss",)),
    "name-resolves": Row(),
    "http-status": Row(
        values={"url": "http://127.0.0.1:8931/"},
        tools=("curl",),
        setup="mkdir /srv/web; cd /srv/web; python3 -m http.server -b 127.0.0.1 8931 >/dev/null 2>&1 & "
        "echo output=/srv/told > ~/.curlrc; i=0; until curl -sqo /dev/null http://127.0.0.1:8931/ || [ $i = 100 ]; do "
        "i=$((i + 1)); sleep 0.05; done",
    ),
    # the one number in /proc/sys that belongs to a namespace of this host
    "sysctl-set": Row(
        values={"key": "kernel.domainname"}, tools=("sysctl",), fools=("sysctl -w kernel.domainname=100",)
    ),
    "host-reachable": Row(tools=("ping",)),
    "git-at-commit": Row(
        values={"path": "/srv/source", "commit": "9643128ed1ff7f8e302720903a16c596673873c7"},
        tools=("git",),
        setup=f"{GIT}; git init -q /srv/origin; cd /srv/origin; echo 1 > f; git add f; git commit -qm one; "
        "git clone -q /srv/origin /srv/source; echo 2 > f; git commit -qam two",
        fools=(
            "cd /srv/source; git pull -q; echo 3 > f",
            "cd /srv/source; git pull -q; rm -r .git",
            "cd /srv/source; git pull -q; mv .git f /srv",
        ),
    ),
    "git-log": Row(
        values={"path": "/srv/source"},
        tools=("git",),
        setup=f"{GIT}; git init -q /srv/source; cd /srv/source; git commit -q --allow-empty -m x",
    ),
    "mail-sent": Row(
        setup="printf '#!/bin/sh\\n{ echo \"to $3\"; cat; } >> /srv/mail\\n' > /usr/sbin/sendmail; "
        "chmod 755 /usr/sbin/sendmail",
        count="grep -c '^to ops@example.org' /srv/mail",
    ),
}

# What these need is not to be had in a namespace: a booted systemd with its journal, a daemon, or the network.
ON_A_HOST = {
    "service-running": "systemd",
    "service-stopped": "systemd",
    "service-restarted": "systemd",
    "service-status": "systemd",
    "journal-show": "systemd",
    "journal-vacuumed": "systemd",
    "log-note": "systemd",
    "hostname-set": "systemd",
    "reboot-scheduled": "systemd",
    "image-present": "docker",
    "container-running": "docker",
    "container-stopped": "docker",
    "container-restarted": "docker",
    "container-removed": "docker",
    "container-logs": "docker",
    "podman-container-running": "podman",
    "mysql-database-present": "mysql",
}


def values_of(name: str) -> dict:
    made = POLICY.entries[name]
    values = {key: param.example for key, param in made.params.items() if param.example is not None}
    return {**values, **(ROWS[name].values if name in ROWS else {})}


def read_secret(_: str) -> bytes:
    return b"S3CR3T"


def read_file_of(row: Row) -> Callable[[str], Stdin]:
    """The file parameter's reader: it reads the row's bytes, or the file."""
    made = Stdin(len(row.stdin), hashlib.sha256(row.stdin).hexdigest(), Secret(row.stdin))
    return (lambda _: made) if row.stdin else config.read_stdin_file


def render(name: str) -> Command:
    rendered = entries.render(POLICY.entries[name], values_of(name), read_secret, read_file_of(ROWS.get(name, Row())))
    return rendered.command


def of_category(category: str) -> list[str]:
    """The commands with a row, of that category."""
    return [name for name in ROWS if POLICY.entries[name].category == category]


def prepare(name: str) -> Row:
    """The row; ends the calling test where a tool or a private host cannot be had."""
    if not _possible():
        missing("a private mount namespace with overlays cannot be had")
    row = ROWS[name]
    for tool in row.tools:
        if find_tool(tool) is None:
            missing(f"{tool} is not installed")
    return row


@functools.cache
def _possible() -> bool:
    return private_host.possible()


def words(elements, operation=OPERATION):
    return [
        b"".join(piece.text if piece.kind == "text" else operation.encode() for piece in element).decode(
            "utf-8", "surrogateescape"
        )
        for element in elements
    ]


def step(command: Command, elements=None, operation=OPERATION, path=None) -> dict:
    env = dict(zip([name for name, _ in command.env], words([e for _, e in command.env], operation), strict=True))
    env |= {name: secret.value.decode() for name, secret in command.secrets} | ({"PATH": path} if path else {})
    return {
        "argv": words(command.argv if elements is None else elements, operation),
        "env": env,
        "cwd": command.cwd.decode() if command.cwd else None,
        "user": command.become_user,
        "stdin": command.stdin.data.value if command.stdin and elements is None else b"",
    }


def shell(text: str) -> dict:
    return {"argv": ["/bin/sh", "-c", text]}
