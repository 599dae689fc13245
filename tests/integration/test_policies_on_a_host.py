"""What `converged_when` of a shipped command sees: false before it, true after it, and nothing that only looks so.

The rows are those of `tests/support/policy_rows.py`; the program texts run as they stand, without the product.
"""

import re
from pathlib import Path

import pytest

from sshop import config
from sshop.core import entry as entries
from sshop.errors import UsageError
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


DOCKER = """cat > /usr/local/bin/docker <<'.'
#!/bin/sh
# one container, called db2, whose ID begins with db
shift
case $1:$* in
inspect:*.State.Running*) echo "/db2 ${STATE-true}" ;;
inspect:*) echo /db2 ;;
ls:*) [ ! -e /srv/down ] || exit 1; echo "db2" ;;
*) echo "$*" >> /srv/acted ;;
esac
.
chmod 755 /usr/local/bin/docker; mkdir -p /srv"""


@pytest.mark.parametrize("name", ["container-stopped", "container-restarted", "container-removed", "container-logs"])
def test_a_container_is_not_taken_for_another_whose_id_begins_like_its_name(name):
    prepare("uptime")
    both = entries.render(POLICY.entries[name], {**values_of(name), "name": "db"})
    looks = [step(both.command, both.command.condition)] if both.command.condition else []
    _, run, acted, *looked = private_host.run([shell(DOCKER), step(both.command), shell("cat /srv/acted"), *looks])
    assert (run["status"], acted["stdout"]) == (1, b"")
    assert all(look["status"] == 1 for look in looked)


def test_a_container_is_gone_where_docker_says_so_and_only_then():
    prepare("uptime")
    entry = POLICY.entries["container-removed"]
    gone, there = (step(entries.render(entry, {"name": name}).verify) for name in ("db", "db2"))
    done = private_host.run([shell(DOCKER), gone, there, shell("touch /srv/down"), gone])
    assert [each["status"] for each in done] == [0, 0, 1, 0, 127]


def test_a_time_zone_that_is_not_there_changes_nothing():
    prepare("timezone-set")
    command = entries.render(POLICY.entries["timezone-set"], {"zone": "Nope/Nope"}).command
    before, run, after = private_host.run([link := shell("readlink /etc/localtime"), step(command), link])
    assert (run["status"], after["stdout"]) == (1, before["stdout"])


@pytest.mark.parametrize(
    ("name", "values", "refused"),
    [
        ("package-removed", {"name": "hello-"}, "must match"),  # apt-get remove hello- would install it
        ("package-removed", {"name": "hello+"}, "must match"),
        ("package-installed", {"name": "a*"}, "must match"),
        ("file-mode-set", {"mode": "0644"}, "must match"),  # stat shows 644, so the condition could never hold
        ("line-present", {"line": "a\nb"}, "must match"),
        ("file-removed", {"path": "/srv/app/"}, "end in a slash"),
        ("mail-sent", {"subject": "a\nBcc: x"}, "must match"),
        ("cron-job-present", {"command": "a\n* * * * * root b"}, "must match"),
        ("backups-pruned", {"name": "*"}, "must match"),
        ("timezone-set", {"zone": "../../etc/shadow"}, "must match"),
        ("user-removed", {"name": "-r"}, "begins with '-'"),
    ],
)
def test_a_value_that_would_mean_something_else_is_refused(name, values, refused):
    with pytest.raises(UsageError, match=re.escape(refused)):
        entries.bind(POLICY.entries[name], {**values_of(name), **values})


def test_a_package_may_end_in_two_plus_signs():
    assert entries.bind(POLICY.entries["package-installed"], {"name": "g++"}) == {"name": "g++"}


def test_every_shipped_command_ends_some_time():
    assert [name for name, entry in POLICY.entries.items() if entry.timeout_s is None] == []


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
