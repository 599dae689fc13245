"""What `converged_when` of a shipped command sees: false before it, true after it, and nothing that only looks so.

The rows are those of `tests/support/policy_rows.py`; the program texts run as they stand, without the product.
"""

import re
from pathlib import Path

import pytest

from sshop import config
from sshop.core import entry as entries
from tests.support import private_host
from tests.support.policy_rows import (
    ON_A_HOST,
    POLICY,
    ROWS,
    Row,
    of_category,
    prepare,
    read_secret,
    render,
    shell,
    step,
    values_of,
)
from tests.support.tools import missing


def test_every_shipped_command_has_its_row():
    assert set(ROWS) | set(ON_A_HOST) == set(POLICY.entries)
    assert not set(ROWS) & set(ON_A_HOST)


def on_private_host(row: Row, steps: list[dict]) -> list[dict]:
    results = private_host.run([{**each, "env": {**each.get("env", {}), **row.env}} for each in steps])
    if results[0]["status"] and "apt-get" in row.tools:
        missing("packages cannot be had from here")
    assert results[0]["status"] == 0, results[0]
    return results


@pytest.mark.parametrize("name", of_category("convergent"))
def test_a_convergent_command_makes_its_condition_true(name):
    row = prepare(name)
    command = render(name)
    condition = step(command, command.condition)
    run = step(command)
    results = on_private_host(row, [shell(row.setup), condition, run, condition, run, condition])
    _, before, first, after, again, still = results
    assert before["status"] not in (0, 126, 127), before
    assert first["status"] in POLICY.entries[name].success_exit, first
    assert after["status"] == 0, after
    assert again["status"] in row.again, again
    assert still["status"] == 0, still


@pytest.mark.parametrize(
    ("name", "fool"), [(name, fool) for name in of_category("convergent") for fool in ROWS[name].fools]
)
def test_nothing_fools_a_condition(name, fool):
    row = prepare(name)
    command = render(name)
    _, _, looked = on_private_host(row, [shell(row.setup), shell(fool), step(command, command.condition)])
    assert looked["status"] != 0, looked


@pytest.mark.parametrize("name", of_category("convergent"))
def test_a_condition_without_its_programs_is_not_true(name):
    row = prepare(name)
    command = render(name)
    blind = step(command, command.condition)
    if blind["argv"][0] == "sh":
        blind["argv"][0] = "/bin/sh"
    else:
        blind["argv"] = ["/bin/sh", "-c", '"$@"', "sh", *blind["argv"]]
    blind["env"] = {**blind["env"], "PATH": "/nowhere"}
    _, looked = on_private_host(row, [shell(row.setup), blind])
    assert looked["status"] != 0, looked


@pytest.mark.parametrize("name", sorted(POLICY.entries))
def test_every_shipped_command_renders_with_its_examples(name, tmp_path):
    made = POLICY.entries[name]
    values = values_of(name)
    row = ROWS.get(name, Row())
    file = tmp_path / "f"
    file.write_bytes(row.stdin or b"x")
    command = entries.render(made, values, read_secret, lambda _: config.read_stdin_file(str(file))).command
    described = entries.describe(made, values)
    assert command.argv
    assert described.summary
    assert not re.search(r"[{}]", described.summary + (described.subject_ref or ""))
    assert (described.subject_ref is None) == (made.category == "read_only")
    assert Path(config.shipped_policies(), made.place.split(":")[0]).is_file()
