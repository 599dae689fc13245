"""What a run costs in processes and syncs: counts, which do not depend on the machine. The bench counts the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import bench_counts
from tests.support.program import Program
from tests.support.sshd import Sshd

# Rows 3 and 12 of the goals.
FLOOR = {"forks": 7, "execs": 10, "syncs": 7}
# What a run does without.
UNUSED = {"cryptography.x509", "uuid", "sshop.ledger.fill", "sshop.cli.app", "sshop.demo", "sshop.catalogue.build"}


@pytest.fixture
def program(tmp_path: Path, sshd: Sshd) -> Program:
    return Program(tmp_path, sshd.ssh_config_path)


def run_words(sshd: Sshd) -> tuple[str, ...]:
    return "run", sshd.accounts[sshd.user].alias, "add", f"path={sshd.home() / 'count'}"


def test_a_run_that_acts_starts_no_process(program: Program, sshd: Sshd, tmp_path: Path):
    assert program(*run_words(sshd)).code == 0  # the guard is installed, and the policy compiled
    argv = [sys.executable, "-m", "sshop.cli.entry", *run_words(sshd)]
    assert bench_counts.of_start(argv, program.environ, tmp_path) == 0
    assert sshd.counter().count == 2


def test_the_guard_claims_runs_and_records_within_its_budget(tmp_path: Path):
    counted = bench_counts.of_guard(tmp_path)
    assert {name: count for name, count in counted.items() if count > FLOOR[name]} == {}
    assert all(counted.values()), "nothing was counted"


def test_a_run_that_acts_imports_nothing_that_it_does_not_use(program: Program, sshd: Sshd):
    assert program(*run_words(sshd)).code == 0
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sshop.cli.entry", *run_words(sshd)],
        env=program.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "asyncssh" in names
    assert names & UNUSED == set()
