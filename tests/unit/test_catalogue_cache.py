"""A run finds the policy compiled, never a stale one, and without yaml or pydantic."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sshop import catalogue, errors
from sshop.catalogue import compiled
from sshop.config import shipped_policies
from sshop.core.value import replace

ONE = """\
commands:
  a: {summary: one, category: read_only, argv: [echo, "{x}"], params: {x: {type: integer}}}
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "policies"
    (made / "catalogue").mkdir(parents=True)
    (made / "catalogue" / "a.yaml").write_text(ONE)
    return made


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "home" / "cache" / "sshop")


def files(cache):
    return sorted(Path(cache).glob("*")) if Path(cache).is_dir() else []


def everything(policy):
    return replace(policy, entries=dict(policy.entries), rules=tuple(policy.rules))


def test_the_compiled_policy_is_the_policy(cache):
    folder = shipped_policies()
    first, second = catalogue.load(folder, cache), catalogue.load(folder, cache)
    assert len(files(cache)) == 1
    assert type(second.entries) is compiled.LazyEntries
    assert everything(first) == everything(second) == everything(catalogue.load(folder))
    assert list(second.entries) == list(first.entries)


def test_what_a_policy_says_survives_compiling(folder, cache):
    (folder / "policy.yaml").write_text(
        "budgets: {destructive: 1}\napproval_required: [destructive]\nlimits: {login: 3}\nredact: [pin]\ntimeout_s: 5\n"
    )
    (folder / "hosts.yaml").write_text("hosts: {a: {port: 2222, groups: [x, y]}, b: {}}\n")
    (folder / "rules.yaml").write_text(
        "rules: [{argv: [ls], category: read_only, reason: r, rest: operands, flags: l, examples: {match: [ls -l]}}]\n"
    )
    first, second = catalogue.load(str(folder), cache), catalogue.load(str(folder), cache)
    assert everything(first) == everything(second)
    assert second.hosts["a"].groups == ("x", "y")
    assert second.limits == {"login": 3.0}


@pytest.mark.parametrize("name", ["catalogue/a.yaml", "catalogue/b.yaml", "policy.yaml", "rules.yaml", "hosts.yaml"])
def test_any_change_of_any_file_is_another_policy(folder, cache, name):
    first = catalogue.load(str(folder), cache)
    path = folder / name
    path.write_text(path.read_text() + "# a word\n" if path.exists() else "# nothing\n")
    os.utime(path, (1, 1))
    second = catalogue.load(str(folder), cache)
    assert first.digest != second.digest


def test_a_change_of_the_same_size_and_time_is_seen(folder, cache):
    path = folder / "catalogue" / "a.yaml"
    os.utime(path, (1, 1))
    catalogue.load(str(folder), cache)
    path.write_text(ONE.replace("one", "two"))
    os.utime(path, (1, 1))
    (entry,) = catalogue.load(str(folder), cache).entries.values()
    assert entry.summary == (("text", "two"),)


def test_the_digest_does_not_depend_on_where_the_folder_stands(folder, tmp_path, cache):
    shutil.copytree(folder, tmp_path / "other")
    first, second = catalogue.load(str(folder), cache), catalogue.load(str(tmp_path / "other"), cache)
    assert first.digest == second.digest
    assert second.folder == str(tmp_path / "other")
    assert second.entries["a"].place == "catalogue/a.yaml:2"


def test_bytes_cannot_move_from_one_file_to_the_next():
    assert catalogue.digest_of({"a": b"x", "b": b""}) != catalogue.digest_of({"a": b"", "b": b"x"})
    assert catalogue.digest_of({"a": b"xb"}) != catalogue.digest_of({"a": b"x", "b": b""})


def test_another_version_compiles_anew(folder, cache, monkeypatch):
    catalogue.load(str(folder), cache)
    monkeypatch.setattr("sshop.__version__", "9.9")
    assert compiled.load(cache, catalogue.load(str(folder)).digest) is None


@pytest.mark.parametrize("cut", [0, 1, 30, -1, -20])
def test_a_torn_file_is_passed_over_and_made_again(folder, cache, cut):
    first = catalogue.load(str(folder), cache)
    (path,) = files(cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert everything(catalogue.load(str(folder), cache)) == everything(first)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"{}\n[]\n", b"null\nnull\n", b"[1]\n\n", b"\xff\n\n", b'{"format":1}\n\n']
)
def test_a_file_that_is_something_else_is_passed_over(folder, cache, content):
    catalogue.load(str(folder), cache)
    (path,) = files(cache)
    path.write_bytes(content)
    assert "a" in catalogue.load(str(folder), cache).entries


def test_a_compiled_policy_of_other_files_is_never_taken(folder, cache):
    first = catalogue.load(str(folder), cache)
    (path,) = files(cache)
    (folder / "catalogue" / "a.yaml").write_text(ONE.replace("one", "two"))
    second = catalogue.load(str(folder))
    path.rename(path.with_name(f"policy-{compiled.key(second.digest)}.json"))
    assert compiled.load(cache, second.digest) is None
    assert first.digest != second.digest


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_could_write_is_not_believed(folder, cache, mode):
    digest = catalogue.load(str(folder), cache).digest
    (path,) = files(cache)
    path.chmod(mode)
    assert compiled.load(cache, digest) is None
    catalogue.load(str(folder), cache)
    assert compiled.load(cache, digest) is not None


def test_a_link_is_not_followed(folder, cache, tmp_path):
    digest = catalogue.load(str(folder), cache).digest
    (path,) = files(cache)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert compiled.load(cache, digest) is None


def test_a_cache_folder_that_cannot_be_made_is_no_error(folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert "a" in catalogue.load(str(folder), str(tmp_path / "file" / "sshop")).entries


def test_what_is_wrong_is_never_cached(folder, cache):
    (folder / "catalogue" / "a.yaml").write_text("commands: 1\n")
    for _ in range(2):
        with pytest.raises(errors.PolicyFileError):
            catalogue.load(str(folder), cache)
    assert files(cache) == []


def test_old_ones_are_forgotten_and_nothing_is_left_aside(folder, cache):
    for number in range(compiled.KEEP + 5):
        (folder / "policy.yaml").write_text(f"not_sent_tries: {number + 1}\n")
        catalogue.load(str(folder), cache)
    assert len(files(cache)) == compiled.KEEP
    assert all(path.suffix == ".json" and path.stat().st_mode & 0o077 == 0 for path in files(cache))


def test_a_compiled_policy_is_loaded_without_yaml_and_pydantic(folder, cache):
    catalogue.load(str(folder), cache)
    code = f"""
import sys
from sshop import catalogue
from sshop.core import entry, policy
loaded = catalogue.load({str(folder)!r}, {cache!r})
decision = policy.evaluate(loaded, policy.Request(name="a"))
entry.render(decision.entry, {{"x": "1"}})
unwanted = {{"yaml", "pydantic", "dataclasses", "subprocess", "platformdirs", "sshop.core.rules"}}
print(sorted(unwanted & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the commit -------------------------------------------------------------------------------------------------------


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(folder):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(folder.parent, "init", "--quiet", "policies")
    return folder


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


def test_outside_git_and_before_the_first_commit_there_is_no_commit(repository, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert catalogue.find_commit(str(tmp_path / "elsewhere")) is None
    assert catalogue.find_commit(str(repository)) is None


def test_the_commit_is_what_git_says(repository):
    made = commit(repository)
    assert catalogue.load(str(repository)).commit == made
    assert catalogue.find_commit(str(repository / "catalogue")) == made
    git(repository, "pack-refs", "--all")
    assert catalogue.find_commit(str(repository)) == made
    git(repository, "checkout", "--quiet", "--detach")
    assert catalogue.find_commit(str(repository)) == made
    git(repository, "checkout", "--quiet", "-b", "feature/x")
    assert catalogue.find_commit(str(repository)) == made


def test_a_loose_ref_wins_over_a_packed_one(repository):
    commit(repository)
    git(repository, "pack-refs", "--all")
    second = commit(repository)
    assert catalogue.find_commit(str(repository)) == second


def test_a_worktree_has_its_own_head(repository, tmp_path):
    first = commit(repository)
    git(repository, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
    second = commit(tmp_path / "side")
    assert (catalogue.find_commit(str(repository)), catalogue.find_commit(str(tmp_path / "side"))) == (first, second)
    git(repository, "pack-refs", "--all")
    assert catalogue.find_commit(str(tmp_path / "side")) == second


def test_a_head_that_leads_out_of_refs_is_not_followed(repository, tmp_path):
    commit(repository)
    (tmp_path / "bait").write_text("0" * 40)
    (repository / ".git" / "HEAD").write_text("ref: refs/../../../bait\n")
    assert catalogue.find_commit(str(repository)) is None
