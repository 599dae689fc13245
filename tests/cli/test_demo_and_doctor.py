"""The first two things that a person tries."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.program import Program
from tests.support.tools import require_root


def leftovers() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("sshop-demo-*")}


def test_the_demo_is_true_and_leaves_nothing(alone: Program):
    before = leftovers()
    done = alone("demo", timeout=120)
    assert done.code == 0, done.stdout.decode() + done.text
    text = done.stdout.decode()
    assert "NOT " not in text
    assert "exit 5" in text
    assert "the book has one line" in text
    assert "response.lost" in text
    assert done.text == ""
    assert leftovers() == before
    assert not alone.ledger.exists()
    assert not list(Path(alone.environ["HOME"]).rglob("*ledger*"))


def test_the_demo_as_one_object(alone: Program):
    done = alone("demo", "--json", timeout=120)
    assert done.code == 0, done.text
    assert done.json["ok"] is True
    assert all(check["ok"] for check in done.json["checks"])
    assert len(done.json["checks"]) >= 8


def test_a_demo_that_is_not_true_says_so(alone: Program, tmp_path):
    # a disk that keeps nothing: the demo's own folder cannot be what it should be
    script = (
        "from sshop.demo import stage; stage._CATALOGUE = stage._CATALOGUE.replace('sleep 1; ', 'sleep 1; exit 3; ');"
    )
    script += "from sshop.cli.entry import main; import sys; sys.exit(main(['demo']))"
    environ = alone.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NOT  the book has one line" in done.stdout
    assert "did not show what it should" in done.stderr


def test_the_demo_for_a_user_that_no_file_knows(alone: Program, tmp_path):
    require_root()
    home = tmp_path / "nobody"
    home.mkdir()
    os.chown(home, 54_321, 54_321)
    as_nobody = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    again = [*as_nobody, "sh", "-c", '"$0" -c "import asyncssh"', sys.executable]
    reach = subprocess.run(again, capture_output=True, check=False)
    if reach.returncode:
        pytest.skip("this interpreter stands in a folder that only root may enter")
    environ = {
        "PATH": alone.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": "/tmp",
        "PYTHONPATH": alone.environ["PYTHONPATH"],
    }
    argv = [*as_nobody, sys.executable, "-m", "sshop.cli.entry", "demo"]
    done = subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(home.iterdir())


def names(done) -> dict[str, str]:
    return {check["name"]: check["status"] for check in done.json["checks"]}


def test_doctor_finds_a_good_host_good(program: Program, sshd):
    alias = sshd.accounts[sshd.user].alias
    done = program("doctor", alias, "--json")
    assert done.code == 0, done.text
    found = names(done)
    assert {"python", "ledger", "policies", "connection", "host key", "guard", "store", "clock", "sudo"} <= set(found)
    assert "fail" not in found.values()
    assert "was put there" in done.stdout.decode()
    program("run", alias, "add", f"path={sshd.home() / 'count'}")
    done = program("doctor", alias, "--json")
    assert "as this ledger knows it" in done.stdout.decode()


def test_doctor_names_another_store(program: Program, sshd):
    alias = sshd.accounts[sshd.user].alias
    assert program("run", alias, "add", f"path={sshd.home() / 'count'}").code == 0
    sshd.reset()
    assert program("run", alias, "see", f"path={sshd.home() / 'count'}").code == 0
    done = program("doctor", alias, "--json")
    assert done.code == 1
    assert names(done)["store"] == "fail"


def test_doctor_of_a_host_that_is_not_there_says_what_fails(alone: Program):
    done = alone("doctor", "nowhere", "--json")
    assert done.code == 1
    assert names(done)["connection"] == "fail"
    done = alone("doctor", "nowhere")
    assert done.code == 1
    assert "fail  connection" in done.stdout.decode()


def test_doctor_of_an_unknown_host_key_gives_the_command_that_trusts_it(program: Program, sshd, tmp_path):
    config = tmp_path / "strangers"
    text = sshd.ssh_config_path.read_text().replace(str(sshd.known_hosts_path), str(tmp_path / "none"))
    config.write_text(text)
    alias = sshd.accounts[sshd.user].alias
    done = program.with_environ(SSHOP_SSH_CONFIG=str(config))("doctor", alias, "--json")
    assert done.code == 1
    [check] = [each for each in done.json["checks"] if each["name"] == "host key"]
    assert check["status"] == "fail"
    assert "SHA256:" in check["seen"]
    assert str(tmp_path / "none") in check["advice"]
    assert "when the owner of the host confirms" in check["advice"]  # never the bare command
    # and so does a run, to people as well
    done = program.with_environ(SSHOP_SSH_CONFIG=str(config))("run", alias, "see", "path=/x", "--recover", "none")
    assert done.code == 8
    assert f">> {tmp_path / 'none'}" in done.text


def test_doctor_reports_a_ledger_that_is_broken(alone: Program):
    alone("ledger", "fill", "100")
    alone.ledger.write_bytes(b"\0" * 10_000)
    done = alone("doctor", "--json")
    assert done.code == 1
    assert names(done)["ledger"] == "fail"
    assert names(done)["python"] == "ok"


@pytest.mark.parametrize("ahead", [-400 * 86_400, 400 * 86_400])
def test_a_clock_a_year_off_loses_nothing(program: Program, sshd, ahead, tmp_path):
    """The runner's clock is moved by a module that Python loads first; IDs and events carry the wrong time."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import time, datetime\n"
        f"off = {ahead}\n"
        f"real_ns, real = time.time_ns, time.time\n"
        f"time.time_ns = lambda: real_ns() + off * 10**9\n"
        f"time.time = lambda: real() + off\n"
        f"class Moved(datetime.datetime):\n"
        f"    @classmethod\n"
        f"    def now(cls, tz=None): return cls.fromtimestamp(time.time(), tz)\n"
        f"datetime.datetime = Moved\n"
    )
    moved = program.with_environ(PYTHONPATH=f"{tmp_path / 'site'}{os.pathsep}{program.environ['PYTHONPATH']}")
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    words = ("run", alias, "add", f"path={counter.path}", "--json")
    ids = []
    for each in (program, moved, program, moved):
        done = each(*words)
        assert done.code == 0, done.text
        ids.append(done.json["operation_id"])
    assert counter.count == 4
    assert program("ledger", "verify").code == 0
    done = moved(*words, "then=exit 3")
    assert done.code == 1
    assert moved("show", ids[0]).code == 0
    assert program("unresolved").code == 0
    done = moved("doctor", alias, "--json")
    assert names(done)["clock"] == "warn"
    for operation_id in ids:
        events = json.loads(program("show", operation_id, "--json").stdout)["events"]
        assert [event["sequence"] for event in events] == sorted(event["sequence"] for event in events)
