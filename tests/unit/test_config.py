"""Options win over the environment, the environment over defaults; what is missing is said clearly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sshop import config, errors


def test_the_ledger_is_where_option_environment_and_state_folder_say(tmp_path):
    home = {"HOME": str(tmp_path)}
    assert config.ledger_location({**home, "SSHOP_LEDGER": "e"}, "o") == "o"
    assert config.ledger_location({**home, "SSHOP_LEDGER": "e"}) == "e"
    assert config.ledger_location({**home, "XDG_STATE_HOME": str(tmp_path / "s")}) == str(
        tmp_path / "s/sshop/ledger.sqlite"
    )
    assert config.ledger_location({**home, "XDG_STATE_HOME": "relative"}) == str(
        tmp_path / ".local/state/sshop/ledger.sqlite"
    )
    assert (tmp_path / ".local/state/sshop").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_home_there_is_no_place_for_a_ledger(environ):
    with pytest.raises(errors.LedgerError, match="HOME names no folder") as caught:
        config.ledger_location(environ)
    assert "--ledger" in caught.value.hint


def test_a_home_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(errors.LedgerError, match=r"cannot make .*: Not a directory"):
        config.ledger_location({"HOME": str(tmp_path / "home")})


def test_policies_are_the_named_ones_then_the_nearest_then_the_shipped(tmp_path):
    for name in ("a", "b", "work/policies"):
        (tmp_path / name / "catalogue").mkdir(parents=True)
    (tmp_path / "work/x/policies").mkdir(parents=True)  # not ours: it has no catalogue
    (tmp_path / "work/x/y").mkdir()
    deep, environ = str(tmp_path / "work/x/y"), {"SSHOP_POLICIES": str(tmp_path / "b")}
    assert config.policies_folder(environ, str(tmp_path / "a"), deep) == str(tmp_path / "a")
    assert config.policies_folder(environ, None, deep) == str(tmp_path / "b")
    assert config.policies_folder({}, None, deep) == str(tmp_path / "work/policies")
    assert config.policies_folder({}, None, str(tmp_path / "a")) == config.shipped_policies()
    assert (Path(config.shipped_policies()) / "catalogue").is_dir()
    with pytest.raises(errors.UsageError, match="no policies at"):
        config.policies_folder({}, str(tmp_path / "work"), deep)


def test_a_working_folder_that_is_gone_is_no_error(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sshop.config as c; os.rmdir(os.getcwd()); print(c.policies_folder({}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=gone,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(config.__file__).parents[1])},
    )
    assert done.stdout.strip() == config.shipped_policies()


@pytest.mark.parametrize("name", ["a b", "-x", "../x", "x\n", "x" * 129, "é"])
def test_a_session_that_is_no_id_is_refused(name):
    with pytest.raises(errors.UsageError, match="SSHOP_SESSION is not an ID"):
        config.this_process({"SSHOP_SESSION": name})


def test_a_session_is_named_or_made_of_the_parent():
    named, made = config.this_process({"SSHOP_SESSION": "ses_x"}), config.this_process({})
    assert named.session_id == "ses_x"
    assert made.session_id == config.this_process({}).session_id
    assert (made.pid, made.owner_pid) == (os.getpid(), os.getppid())
    assert made.session_id.startswith(f"ses_{os.getppid()}-")


def test_an_agent_is_a_name_for_the_record():
    assert config.agent_name({}) is None
    assert config.agent_name({"SSHOP_AGENT": "Claude 4"}) == "Claude 4"
    for name in ("a\nb", "\x1b[31m", "x" * 201):
        with pytest.raises(errors.UsageError):
            config.agent_name({"SSHOP_AGENT": name})


def test_a_process_is_known_by_its_start():
    me = config.this_process({})
    assert config.process_alive(me.pid, me.pid_start, me.machine) is True
    assert config.process_alive(me.pid, "other", me.machine) is False
    assert config.process_alive(me.pid, me.pid_start, "elsewhere") is None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = config.process_start(child.pid)
    assert config.process_alive(child.pid, start, me.machine) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    assert config.process_alive(child.pid, start, me.machine) is False
    child.communicate()
    assert config.process_start(child.pid) is None


def test_a_secret_comes_by_reference(tmp_path):
    (tmp_path / "pw").write_bytes(b"from file\n")
    read = config.secret_reader({"PW": "from environment"}, lambda: b"from input\r\n")
    assert read("env:PW") == b"from environment"
    assert read(f"file:{tmp_path / 'pw'}") == b"from file"
    assert read("stdin") == b"from input"


@pytest.mark.parametrize("reference", ["S3CR3T", "", "env:", "file:", "S3CR3T:x", "-"])
def test_what_is_no_reference_is_refused_and_not_repeated(reference):
    with pytest.raises(errors.UsageError, match="by reference") as caught:
        config.secret_reader({}, bytes)(reference)
    assert "S3CR3T" not in str(caught.value) + caught.value.hint


def test_a_secret_that_is_not_at_hand_is_named(tmp_path):
    read = config.secret_reader({}, bytes)
    with pytest.raises(errors.InputUnavailable, match="no variable NOPE"):
        read("env:NOPE")
    with pytest.raises(errors.InputUnavailable, match="No such file"):
        read(f"file:{tmp_path}/nope")


def test_a_file_becomes_standard_input(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"\0\xff")
    made = config.read_stdin_file(str(path))
    assert (made.length, made.data.value, made.path) == (2, b"\0\xff", str(path))
    with pytest.raises(errors.InputUnavailable):
        config.read_stdin_file(str(tmp_path / "nope"))
    with pytest.raises(errors.UsageError, match="is a folder"):
        config.read_stdin_file(str(tmp_path))
