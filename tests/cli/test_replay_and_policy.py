"""Authority must stand now: what the policy forbids a run today, it forbids a replay of yesterday's operation."""

import re
from pathlib import Path

import pytest

from tests.support.program import CATALOGUE, Program, write_policies

ADDED = "    summary: One more byte in {path}\n"
TODAY = {
    "the entry is gone": (CATALOGUE.replace("  add:\n", "  add-no-more:\n"), 3, "policy_forbids"),
    "the entry needs an approval": (
        CATALOGUE.replace(ADDED, ADDED + "    approval: required\n", 1),
        4,
        "approval_required",
    ),
    "the entry is sorted otherwise": (
        CATALOGUE.replace(ADDED, ADDED + "    effects: [financial]\n", 1),
        3,
        "policy_forbids",
    ),
}


def without_key(config: Path, folder: Path) -> str:
    """The same hosts, with no credential that they take."""
    text = re.sub(r"(?m)^(\s*IdentityFile) .*$", r"\1 /nonexistent", config.read_text())
    other = folder / "no_key_config"
    other.write_text(text)
    return str(other)


@pytest.mark.parametrize("today", TODAY.values(), ids=TODAY.keys())
def test_a_replay_asks_the_policy_of_today(program: Program, sshd, tmp_path: Path, today):
    catalogue, code, error = today
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    unsent = program.with_environ(SSHOP_SSH_CONFIG=without_key(sshd.ssh_config_path, tmp_path))
    done = unsent("run", alias, "add", f"path={counter.path}", "--op", "op-p")
    assert done.code == 8, done.text
    write_policies(program.policies, catalogue)
    done = program("replay", "op-p", "--json")
    assert done.code == code, done.text
    [row] = done.json["operations"]
    assert (row["error"]["code"], counter.count) == (error, 0)
    write_policies(program.policies)
    assert program("replay", "op-p").code == 0
    assert counter.count == 1


def test_a_raw_operation_that_the_policy_forbids_by_now_is_not_replayed(program: Program, sshd, tmp_path: Path):
    alias, counter = sshd.accounts[sshd.user].alias, sshd.counter()
    unsent = program.with_environ(SSHOP_SSH_CONFIG=without_key(sshd.ssh_config_path, tmp_path))
    assert unsent("run", alias, "--op", "op-r", "--", "tee", "-a", str(counter.path)).code == 8
    write_policies(program.policies, policy="raw: {argv: refused, shell: refused}\n")
    done = program("replay", "op-r", "--json")
    assert (done.code, counter.count) == (3, 0), done.text
