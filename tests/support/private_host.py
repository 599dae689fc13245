"""A host of its own for commands that change one: the machine's folders under overlays, in a private mount namespace.

What runs there is gone when it ends; `/run` begins empty. As a program it reads a JSON list of steps and prints a JSON
list of results; it must be started in namespaces of its own, which `run` does.
"""

import base64
import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

BASE = Path("/tmp/private-host")  # seen by nobody outside: what is mounted there is in the namespace alone
CHANGES = BASE / "u"  # what was written, below the folders' own names
FOLDERS = ("/etc", "/usr", "/var", "/home", "/root", "/srv", "/opt", "/mnt")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(steps: list[dict], timeout: float = 300) -> list[dict]:
    """The results of the steps: status, stdout, stderr (bytes). A step has argv, and may have env, cwd, stdin, user."""
    steps = [{**step, "stdin": base64.b64encode(step.get("stdin") or b"").decode()} for step in steps]
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", sys.executable, __file__],
        input=json.dumps(steps).encode(),
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return [
        {
            "status": result["status"],
            "stdout": base64.b64decode(result["stdout"]),
            "stderr": base64.b64decode(result["stderr"]),
        }
        for result in json.loads(done.stdout)
    ]


def possible() -> bool:
    """Whether this machine lets us have one: root, namespaces, overlays."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    try:
        return run([{"argv": ["touch", "/etc/private-host-was-here"]}])[0]["status"] == 0
    except (RuntimeError, OSError, subprocess.TimeoutExpired):
        return False


def _cover() -> None:
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    BASE.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(BASE)], check=True)
    for folder in FOLDERS:
        if not Path(folder).is_dir():
            continue
        upper, work = Path(f"{CHANGES}{folder}"), Path(f"{BASE}/w{folder}")
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        shutil.copystat(folder, upper)
        os.chown(upper, Path(folder).stat().st_uid, Path(folder).stat().st_gid)
        options = f"lowerdir={folder},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, folder], check=True)


def _step(step: dict) -> dict:
    user = step.get("user") or "root"
    home = pwd.getpwnam(user).pw_dir
    environ = {"PATH": PATH, "HOME": home, "USER": user, "LANG": "C.UTF-8", **step.get("env", {})}
    done = subprocess.run(
        step["argv"],
        input=base64.b64decode(step["stdin"]),
        env=environ,
        cwd=step.get("cwd") or home,
        user=None if user == "root" else user,
        group=None if user == "root" else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user == "root" else [],
        capture_output=True,
        timeout=250,
        check=False,
    )
    return {
        "status": done.returncode,
        "stdout": base64.b64encode(done.stdout).decode(),
        "stderr": base64.b64encode(done.stderr).decode(),
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    _cover()
    os.environ["PATH"] = PATH
    print(json.dumps([_step(step) for step in asked]))
