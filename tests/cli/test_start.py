"""What a start imports: the hot path pays for nothing that it does not use."""

import os
import subprocess
import sys

import pytest

from tests.support.program import Program

# never on the hot path, whatever is done
HEAVY = {"typer", "click", "pydantic", "pydantic_core", "rich", "yaml", "rfc8785", "dataclasses", "inspect"}
# never where only the ledger is read
SPEAKS = {"asyncio", "asyncssh", "cryptography", "subprocess", "logging", "ssl", "socket", "pathlib", "shutil"}


def imported(program: Program, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sshop.cli.entry", *words],
        env=program.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stderr.decode().splitlines()
    names = {line.rsplit("|", 1)[1].strip() for line in lines if line.startswith("import time:")}
    bare = subprocess.run([sys.executable, "-X", "importtime", "-c", ""], capture_output=True, check=True, text=True)
    return names - {line.rsplit("|", 1)[1].strip() for line in bare.stderr.splitlines()}


def heads(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.fixture
def filled(alone: Program) -> tuple[Program, str]:
    assert alone("ledger", "fill", "100").code == 0
    return alone, alone("ops", "--json").json["operations"][0]["operation_id"]


def test_version_imports_next_to_nothing(alone: Program):
    names = imported(alone, "--version")
    assert {name for name in names if name.startswith("sshop")} == {"sshop", "sshop.cli"}
    assert not heads(names) & (HEAVY | SPEAKS | {"argparse", "json", "sqlite3"})


def test_ops_and_show_import_no_parser_library_no_network_and_no_policy(filled: tuple[Program, str]):
    program, operation_id = filled
    for words in (["ops"], ["ops", "--json"], ["show", operation_id], ["show", operation_id, "--json"]):
        names = imported(program, *words)
        assert not heads(names) & (HEAVY | SPEAKS), words
        assert not {name for name in names if name.startswith(("sshop.transport", "sshop.catalogue", "sshop.runner"))}


def test_help_of_run_is_printed_without_typer(alone: Program):
    names = imported(alone, "run", "--help")
    assert not heads(names) & (HEAVY | SPEAKS)


def test_run_imports_no_parser_library_and_no_yaml_once_its_policy_is_compiled(program: Program, sshd):
    alias = sshd.accounts[sshd.user].alias
    words = ("run", alias, "see", f"path={sshd.home() / 'count'}")
    assert program(*words).code == 0
    names = imported(program, *words)
    assert not heads(names) & (HEAVY - {"inspect", "dataclasses"})


def test_a_run_starts_no_child_process(program: Program, sshd, tmp_path):
    strace = subprocess.run(["sh", "-c", "command -v strace"], capture_output=True, check=False)
    if strace.returncode:
        from tests.support.tools import missing

        missing("strace is not installed")
    alias = sshd.accounts[sshd.user].alias
    words = ("run", alias, "see", f"path={sshd.home() / 'count'}")
    assert program(*words).code == 0
    log = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-e", "trace=execve", "-o", log, sys.executable, "-m", "sshop.cli.entry", *words],
        env=program.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert log.read_text().count("execve(") == 1


def test_help_is_printed_on_standard_output(alone: Program):
    for words in ([], ["--help"], ["help"], ["run", "--help"], ["ledger", "--help"], ["replay", "--help"]):
        done = alone(*words)
        assert done.code == 0, words
        assert b"usage: sshop" in done.stdout.lower()
        assert done.stderr == b""
    done = alone("ledger")
    assert done.code == 2
    assert b"verify" in done.stdout


def test_version_names_the_package(alone: Program):
    from sshop import __version__

    assert alone("--version").stdout.decode() == f"sshop {__version__}\n"


def test_help_needs_no_home_no_ledger_and_no_policies(tmp_path):
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Program.__init__.__globals__["sshop"].__path__[0]) + "/.."}
    environ |= {"SSHOP_POLICIES": "/nonexistent", "SSHOP_LEDGER": "/nonexistent/l"}
    for words in (["--help"], ["run", "--help"], ["--version"]):
        argv = [sys.executable, "-m", "sshop.cli.entry", *words]
        assert subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, check=False).returncode == 0
