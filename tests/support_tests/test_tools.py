import subprocess
from pathlib import Path

import pytest

from tests.guard.shells import SHELLS
from tests.support.counter import Counter
from tests.support.tools import find_tool, require_tool


def test_a_missing_tool_skips_on_a_laptop(monkeypatch) -> None:
    monkeypatch.delenv("SSHOP_REQUIRE_TOOLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is not installed"):
        require_tool("no-such-tool")


def test_a_missing_tool_fails_where_tools_are_required(monkeypatch) -> None:
    monkeypatch.setenv("SSHOP_REQUIRE_TOOLS", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-tool is not installed"):
        require_tool("no-such-tool")


def test_a_tool_that_is_there_has_a_path() -> None:
    assert Path(require_tool("sh")).is_absolute()
    assert find_tool("no-such-tool") is None


def test_a_counter_counts_each_execution(counter: Counter) -> None:
    assert counter.count == 0
    assert subprocess.run(counter.argv(then="exit 3"), check=False).returncode == 3
    children = [subprocess.Popen(counter.argv()) for _ in range(20)]
    for child in children:
        child.wait()
    assert counter.count == 21
    counter.wait_for(21)
    with pytest.raises(TimeoutError, match="counts 21, not 22"):
        counter.wait_for(22, limit_s=0.01)


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_each_shell_runs_a_script_as_a_posix_shell(shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    # a plain word is split, an unmatched pattern stays, and $0 is the script
    script.write_text('words="a b"\nset -- $words\nprintf "%s %s" "$#" no-such-*-file\n')
    done = subprocess.run([*shell.argv, str(script)], capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout == b"2 no-such-*-file"


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_each_shell_can_stand_first_in_path_as_sh(shell, tmp_path: Path) -> None:
    folder = shell.bin_folder(tmp_path / "bin")
    done = subprocess.run(
        ["sh", "-c", 'printf "%s" "$1"', "x", "a  b"],
        capture_output=True,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        check=True,
    )
    assert done.stdout == b"a  b"
