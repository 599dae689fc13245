"""Every flaw of a policy file is told with file, line and column, and nothing is loaded by halves."""

# ruff: noqa: E501 - a row of the table is one line

import textwrap
from pathlib import Path

import pytest

from sshop import catalogue, errors
from sshop.catalogue.build import build

GOOD = """\
commands:
  hello:
    summary: says hello
    category: read_only
    argv: [echo, hello]
"""

HEAD = "commands:\n  x:\n    summary: s\n"
READ = HEAD + "    category: read_only\n"
ECHO = READ + "    argv: [echo, '{a}']\n"


def word(line: str) -> str:
    return ECHO + "    params:\n      a: " + line + "\n"


# (what is wrong, file, its text, line:column, words of the message, words of the hint)
# fmt: off
FLAWS = [
    # YAML itself
    ("key_twice", "catalogue/a.yaml", GOOD + "  hello:\n    summary: b\n", "6:3", "'hello' stands here twice: the first is at", "keep one"),
    ("field_twice", "catalogue/a.yaml", GOOD + "    category: destructive\n", "6:5", "'category' stands here twice", "keep one"),
    ("merge_key", "catalogue/a.yaml", "commands:\n  a: &a {summary: s}\n  b:\n    <<: *a\n", "4:5", "merge keys are not read here: this one takes in what stands at P/catalogue/a.yaml:2:6", "write the keys out"),
    ("merge_of_many", "catalogue/a.yaml", "commands:\n  b:\n    <<: [1]\n", "3:5", "merge keys are not read here", None),
    ("alias", "catalogue/a.yaml", "commands:\n  a: &a {summary: s}\n  b: *a\n", "3:6", "*a repeats what stands at P/catalogue/a.yaml:2:6", "write it out"),
    ("alias_as_key", "catalogue/a.yaml", "commands: {&k a: {}, *k : {}}\n", "1:22", "aliases are not read here", None),
    ("tag", "catalogue/a.yaml", "commands: !!python/object/apply:os.system [x]\n", "1:11", "tags are not read here", "plainly"),
    ("str_tag", "catalogue/a.yaml", HEAD + "    category: !!str read_only\n", "4:15", "tags are not read here", None),
    ("two_documents", "catalogue/a.yaml", GOOD + "---\ncommands: {}\n", "6:1", "a second document", "remove the '---'"),
    ("tab", "catalogue/a.yaml", "commands:\n\thello: 1\n", "2:1", "not YAML", "spaces"),
    ("unclosed", "catalogue/a.yaml", "commands: [a, b\n", "2:1", "not YAML", None),
    ("unknown_alias", "catalogue/a.yaml", "commands: *nowhere\n", "1:11", "nowhere", None),
    ("not_utf8", "catalogue/a.yaml", b"commands:\n  \xff: 1\n", "2:3", "not UTF-8", "UTF-8"),
    ("control", "catalogue/a.yaml", 'commands:\n  a: "\x01"\n', "2:7", "not YAML", None),
    ("deep", "catalogue/a.yaml", "a: " + "[" * 60 + "]" * 60, "1:44", "nested deeper", None),
    ("null_key", "catalogue/a.yaml", "commands: {~: {}}\n", "1:12", "a key must be text", None),
    ("list_key", "catalogue/a.yaml", "commands: {[a]: {}}\n", "1:12", "a key must be a plain word", None),
    ("number_key", "catalogue/a.yaml", "commands: {1: {}}\n", "1:12", "a key must be text", 'write "1"'),
    ("norway", "catalogue/a.yaml", READ + "    argv: [echo, no]\n", "5:18", "disagree about 'no'", '"no"'),
    ("on", "catalogue/a.yaml", READ + "    argv: [systemctl, on]\n", "5:23", "disagree about 'on'", "true or false"),
    ("octal", "catalogue/a.yaml", READ + "    argv: [chmod, 0644, f]\n", "5:19", "'0644': some take it for a number", '"0644"'),
    ("sexagesimal", "catalogue/a.yaml", READ + "    argv: [at, 12:30]\n", "5:16", "'12:30'", "quotes"),
    ("date", "catalogue/a.yaml", READ + "    argv: [date, 2024-01-01]\n", "5:18", "a date", "quotes"),
    ("hexadecimal", "catalogue/a.yaml", READ + "    argv: [echo, 0x1f]\n", "5:18", "a number", None),
    ("underscores", "catalogue/a.yaml", READ + "    argv: [echo, 1_000]\n", "5:18", "a number", None),
    ("boolean_key", "catalogue/a.yaml", "commands: {off: {}}\n", "1:12", "disagree about 'off'", None),
    # keys and types
    ("no_mapping", "catalogue/a.yaml", "- a\n", "1:1", "must hold a mapping", None),
    ("no_commands", "catalogue/a.yaml", "{}\n", "1:1", "the file needs 'commands'", None),
    ("commands_list", "catalogue/a.yaml", "commands: [a]\n", "1:11", "'commands' must be a mapping", None),
    ("command_text", "catalogue/a.yaml", "commands:\n  x: text\n", "2:6", "'x' must be a mapping", None),
    ("unknown_key", "catalogue/a.yaml", READ + "    argv: [a]\n    timout_s: 5\n", "6:5", "unknown key 'timout_s'", "did you mean 'timeout_s'? known here: summary,"),
    ("unknown_top", "catalogue/a.yaml", GOOD + "comands: {}\n", "6:1", "unknown key 'comands'", "did you mean 'commands'?"),
    ("unknown_in_param", "catalogue/a.yaml", word("{type: string, patern: 'x', pattern: x}"), "7:25", "unknown key 'patern'", "did you mean 'pattern'?"),
    ("unknown_in_verify", "catalogue/a.yaml", READ + "    argv: [a]\n    verify: {argv: [b], exits: 1}\n", "6:25", "unknown key 'exits'", "did you mean 'exit'?"),
    ("missing", "catalogue/a.yaml", "commands:\n  x:\n    summary: s\n    argv: [a]\n", "2:3", "'x' needs 'category'", None),
    ("missing_pattern", "catalogue/a.yaml", word("{type: string}"), "7:7", "'a' needs 'pattern'", None),
    ("missing_type", "catalogue/a.yaml", word("{pattern: x}"), "7:7", "'a' needs 'type'", "integer enum"),
    ("wrong_type", "catalogue/a.yaml", word("{type: text}"), "7:17", "must be one of", None),
    ("category", "catalogue/a.yaml", HEAD + "    category: readonly\n    argv: [a]\n", "4:15", "'category' must be 'read_only'", None),
    ("effect", "catalogue/a.yaml", READ + "    effects: [money]\n    argv: [a]\n", "5:15", "'financial'", None),
    ("empty_argv", "catalogue/a.yaml", READ + "    argv: []\n", "5:11", "'argv' must not be empty", None),
    ("argv_text", "catalogue/a.yaml", READ + "    argv: ls -l\n", "5:11", "'argv' must be a list", None),
    ("argv_boolean", "catalogue/a.yaml", READ + "    argv: [echo, true]\n", "5:18", "must be text", "put it in quotes"),
    ("argv_float", "catalogue/a.yaml", READ + "    argv: [echo, 1.10]\n", "5:18", "must be text", "put it in quotes"),
    ("argv_null", "catalogue/a.yaml", READ + "    argv: [echo, ~]\n", "5:18", "must be text", None),
    ("timeout", "catalogue/a.yaml", READ + "    argv: [a]\n    timeout_s: 0\n", "6:16", "at least 1", None),
    ("timeout_text", "catalogue/a.yaml", READ + "    argv: [a]\n    timeout_s: 5m\n", "6:16", "must be a whole number", None),
    ("become_text", "catalogue/a.yaml", READ + "    argv: [a]\n    become: root\n", "6:13", "must be true or false", None),
    ("become_user", "catalogue/a.yaml", READ + "    argv: [a]\n    become_user: root\n", "6:5", "become_user without become: true", "add become: true"),
    ("exit_status", "catalogue/a.yaml", READ + "    argv: [a]\n    success_exit: [0, 126]\n", "6:23", "at most 125", None),
    ("kind", "catalogue/a.yaml", READ + "    argv: [a]\n    kind: A b\n", "6:11", "does not match", None),
    # what a command means
    ("command_name", "catalogue/a.yaml", GOOD.replace("hello:", "Hello there:", 1), "2:3", "not a name of a command", None),
    ("no_condition", "catalogue/a.yaml", HEAD + "    category: convergent\n    argv: [a]\n", "4:15", "x: a convergent command needs converged_when", "append_only"),
    ("needless_condition", "catalogue/a.yaml", READ + "    argv: [a]\n    converged_when: [b]\n", "6:21", "converged_when has no meaning", "verify"),
    ("placeholder", "catalogue/a.yaml", ECHO + "    params:\n      ab: {type: integer}\n", "5:18", "{a} is not a parameter", "did you mean 'ab'?"),
    ("brace", "catalogue/a.yaml", READ + "    argv: [echo, '{']\n", "5:18", "a single '{'", "{{ and }}"),
    ("brace_content", "catalogue/a.yaml", READ + "    argv: [echo, 'a {B c}']\n", "5:18", "not a placeholder: '{B c}'", None),
    ("program", "catalogue/a.yaml", READ + "    argv: ['{a}']\n    params: {a: {type: integer}}\n", "5:12", "a parameter cannot name the program", None),
    ("in_shell", "catalogue/a.yaml", READ + "    argv: [sh, -c, 'echo {a}']\n    params: {a: {type: integer}}\n", "5:20", "a placeholder stands inside a program text", "'{name}'"),
    ("in_bash_lc", "catalogue/a.yaml", READ + "    argv: [env, bash, -lc, 'echo {a}']\n    params: {a: {type: integer}}\n", "5:28", "inside a program text", None),
    ("in_python", "catalogue/a.yaml", READ + "    argv: [python3, -c, 'print({a})']\n    params: {a: {type: integer}}\n", "5:25", "inside a program text", None),
    ("in_awk", "catalogue/a.yaml", READ + "    argv: [awk, '/{a}/']\n    params: {a: {type: integer}}\n", "5:17", "inside a program text", None),
    ("in_condition", "catalogue/a.yaml", HEAD + "    category: convergent\n    argv: [a]\n    converged_when: [sh, -c, '[ {a} ]']\n    params: {a: {type: integer}}\n", "6:30", "inside a program text", None),
    ("secret_in_argv", "catalogue/a.yaml", word("{type: secret}"), "5:18", "the secret {a} cannot stand here", "env or stdin"),
    ("secret_in_cwd", "catalogue/a.yaml", READ + "    argv: [a]\n    cwd: '/{a}'\n    params: {a: {type: secret}}\n", "6:10", "the secret {a} cannot", None),
    ("secret_in_condition", "catalogue/a.yaml", HEAD + "    category: convergent\n    argv: [a]\n    converged_when: [b, '{a}']\n    params: {a: {type: secret}}\n", "6:25", "the secret {a} cannot", None),
    ("secret_in_verify", "catalogue/a.yaml", READ + "    argv: [a]\n    verify: {argv: [b, '{a}']}\n    params: {a: {type: secret}}\n", "6:24", "the secret {a} cannot", None),
    ("secret_in_subject", "catalogue/a.yaml", READ + "    argv: [a]\n    subject: '{a}'\n    params: {a: {type: secret}}\n", "6:14", "the secret {a} cannot", None),
    ("secret_in_summary", "catalogue/a.yaml", "commands:\n  x:\n    summary: 'of {a}'\n    category: read_only\n    argv: [a]\n    params: {a: {type: secret}}\n", "3:14", "the secret {a} cannot", None),
    ("file_in_argv", "catalogue/a.yaml", word("{type: file}"), "5:18", "the file {a} can only be standard input", None),
    ("file_beside_text", "catalogue/a.yaml", READ + "    argv: [a]\n    stdin: 'x{a}'\n    params: {a: {type: file}}\n", "6:12", "must be the whole standard input", None),
    ("digest_of_text", "catalogue/a.yaml", READ + "    argv: [a, '{a.sha256}']\n    params: {a: {type: integer}}\n", "5:15", "needs a parameter of type file", None),
    ("digest_in_summary", "catalogue/a.yaml", "commands:\n  x:\n    summary: '{a.sha256}'\n    category: read_only\n    argv: [a]\n    params: {a: {type: file}}\n", "3:14", "cannot stand here", None),
    ("id_in_cwd", "catalogue/a.yaml", READ + "    argv: [a]\n    cwd: '/{operation_id}'\n", "6:10", "{operation_id} cannot stand here", None),
    ("id_in_stdin", "catalogue/a.yaml", READ + "    argv: [a]\n    stdin: '{operation_id}'\n", "6:12", "{operation_id} cannot stand here", None),
    ("relative_cwd", "catalogue/a.yaml", READ + "    argv: [a]\n    cwd: srv\n", "6:10", "cwd must be an absolute path", None),
    ("cwd_from_text", "catalogue/a.yaml", READ + "    argv: [a]\n    cwd: '{a}'\n    params: {a: {type: string, pattern: x}}\n", "6:10", "cwd must be an absolute path", None),
    ("env_name", "catalogue/a.yaml", READ + "    argv: [a]\n    env: {A-B: x}\n", "6:16", "environment variable 'A-B' cannot be set", None),
    ("env_reserved", "catalogue/a.yaml", READ + "    argv: [a]\n    env: {BASH_ENV: x}\n", "6:21", "'BASH_ENV' cannot be set", None),
    ("env_placeholder", "catalogue/a.yaml", READ + "    argv: [a]\n    env: {A: '{b}'}\n", "6:14", "{b} is not a parameter", None),
    ("user_name", "catalogue/a.yaml", READ + "    argv: [a]\n    become: true\n    become_user: 'a b'\n", "7:18", "not a user name", None),
    ("exit_twice", "catalogue/a.yaml", READ + "    argv: [a]\n    rate_limited_exit: [7, 0]\n", "6:28", "exit status 0 already stands in success_exit", None),
    ("bad_pattern", "catalogue/a.yaml", word("{type: string, pattern: '['}"), "7:34", "not a regular expression", None),
    ("bad_default", "catalogue/a.yaml", word("{type: string, pattern: 'x+', default: y}"), "7:49", "default: parameter a: 'y' must match x+", None),
    ("bad_example", "catalogue/a.yaml", word("{type: path, example: srv}"), "7:32", "must be an absolute path", None),
    ("dash_default", "catalogue/a.yaml", word("{type: string, pattern: '.*', default: -x}"), "7:49", "begins with '-'", None),
    ("range", "catalogue/a.yaml", word("{type: integer, minimum: 5, maximum: 4}"), "7:35", "minimum 5 is more than maximum 4", None),
    ("enum_twice", "catalogue/a.yaml", word("{type: enum, values: [a, b, a]}"), "7:31", "a value stands twice", None),
    ("enum_empty", "catalogue/a.yaml", word("{type: enum, values: []}"), "7:31", "must not be empty", None),
    ("root", "catalogue/a.yaml", word("{type: path, root: srv}"), "7:29", "root must be an absolute path", None),
    ("param_name", "catalogue/a.yaml", READ + "    argv: [a]\n    params: {A: {type: integer}}\n", "6:17", "not a parameter name: 'A'", None),
    ("param_named_id", "catalogue/a.yaml", READ + "    argv: [a]\n    params: {operation_id: {type: integer}}\n", "6:28", "not a parameter name", None),
    # the other files
    ("rule_twice", "rules.yaml", "rules:\n  - {argv: [ls], category: read_only, reason: r, examples: {match: [ls]}}\n  - {argv: [ls], category: read_only, reason: r, examples: {match: [ls]}}\n", "3:12", "the same words have a rule already, at rules.yaml:2", None),
    ("rule_convergent", "rules.yaml", "rules:\n  - {argv: [ls], category: convergent, reason: r, examples: {match: [ls]}}\n", "2:28", "must be 'read_only'", None),
    ("rule_without_example", "rules.yaml", "rules:\n  - {argv: [ls], category: read_only, reason: r, examples: {}}\n", "2:60", "a rule needs an example", None),
    ("rule_example", "rules.yaml", "rules:\n  - {argv: [ls], category: read_only, reason: r, examples: {match: [ls -x]}}\n", "2:69", "the example does not match: ls -x", None),
    ("rule_counterexample", "rules.yaml", "rules:\n  - {argv: [ls], category: read_only, rest: any, reason: r, examples: {match: [ls], not_match: [ls -x]}}\n", "2:97", "the example matches: ls -x", None),
    ("rule_overruled", "rules.yaml", "rules:\n  - {argv: [a], category: destructive, rest: any, reason: r, examples: {match: [a]}}\n  - {argv: [a, b], category: read_only, reason: r, examples: {match: [a b]}}\n", "3:71", "the rule at rules.yaml:2 makes this destructive, not read_only", None),
    ("rule_key", "rules.yaml", "rules:\n  - {argv: [a], category: destructive, resons: r}\n", "2:40", "unknown key 'resons'", "2 more"),
    ("budget", "policy.yaml", "budgets: {read_only: 0}\n", "1:22", "'read_only' must be at least 1", None),
    ("policy_key", "policy.yaml", "retries: 2\n", "1:1", "unknown key 'retries'", "known here: budgets,"),
    ("recover", "policy.yaml", "recover: always\n", "1:10", "'recover' must be 'auto', 'look' or 'none'", None),
    ("redact_name", "policy.yaml", "redact: ['a b']\n", "1:10", "does not match", None),
    ("host_port", "hosts.yaml", "hosts: {a: {port: 70000}}\n", "1:19", "'port' must be at most 65535", None),
    ("host_name", "hosts.yaml", "hosts: {'a b': {}}\n", "1:9", "'a b' does not match", None),
    ("host_root", "hosts.yaml", "hosts: {a: {root: sshop}}\n", "1:19", "'root' does not match", None),
    ("host_key", "hosts.yaml", "hosts: {a: {adress: b}}\n", "1:13", "unknown key 'adress'", "did you mean 'address'?"),
]
# fmt: on


@pytest.mark.parametrize(
    ("file", "text", "place", "message", "hint"), [row[1:] for row in FLAWS], ids=[row[0] for row in FLAWS]
)
def test_a_flaw_is_told_with_its_place(file, text, place, message, hint):
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(errors.PolicyFileError) as caught:
        build({"catalogue/good.yaml": GOOD.replace("hello", "other").encode(), file: content}, "P")
    error = caught.value
    assert str(error).startswith(f"P/{file}:{place}: "), str(error)
    assert message in str(error)
    assert hint is None or hint in (error.hint or "")
    assert (error.file, error.line) == (f"P/{file}", int(place.split(":")[0]))


def test_the_good_file_is_good():
    assert list(build({"catalogue/good.yaml": GOOD.encode()}).entries) == ["hello"]


def test_a_name_in_two_files_names_both(tmp_path):
    with pytest.raises(errors.PolicyFileError) as caught:
        build({"catalogue/a.yaml": GOOD.encode(), "catalogue/b.yaml": b"\n" + GOOD.encode()})
    assert str(caught.value) == "catalogue/b.yaml:3:3: command 'hello' is already defined at catalogue/a.yaml:2"


def test_every_flaw_of_a_file_is_told_the_first_by_line_leading():
    text = GOOD + textwrap.dedent(
        """\
          b:
            summary: b
            category: convergent
            argv: [echo, "{x}"]
        """
    ).replace("\n", "\n  ").join(["  ", ""])
    with pytest.raises(errors.PolicyFileError) as caught:
        build({"catalogue/a.yaml": text.encode()})
    assert caught.value.line == 8
    assert "1 more: catalogue/a.yaml:9:" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["a.yml", "a.YAML"])
def test_a_file_that_would_be_passed_over_is_an_error(tmp_path, name):
    folder = tmp_path / "catalogue"
    folder.mkdir()
    (folder / name).write_text(GOOD)
    with pytest.raises(errors.PolicyFileError, match="would not be read"):
        catalogue.load(str(tmp_path))


def test_a_folder_without_a_catalogue_is_an_error(tmp_path):
    with pytest.raises(
        errors.PolicyFileError, match=r"catalogue: no folder of commands can be read here: No such file"
    ):
        catalogue.load(str(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "catalogue" / "a.yaml").mkdir(parents=True)
    with pytest.raises(errors.PolicyFileError, match=r"a\.yaml: cannot be read: Is a directory"):
        catalogue.load(str(tmp_path))


def test_a_catalogue_of_comments_is_empty(tmp_path):
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue" / "a.yaml").write_text("# nothing yet\n")
    assert len(catalogue.load(str(tmp_path)).entries) == 0


def test_numbers_stand_for_their_text_in_an_argv():
    text = READ + "    argv: [head, -n, 5, -5, 0]\n"
    (entry,) = build({"catalogue/a.yaml": text.encode()}).entries.values()
    assert [part for template in entry.argv for _, part in template] == ["head", "-n", "5", "-5", "0"]


def test_quoted_words_mean_themselves():
    text = READ + "    argv: [echo, 'no', \"0644\", '~', 'null', '1e3', 1e3]\n"
    (entry,) = build({"catalogue/a.yaml": text.encode()}).entries.values()
    assert [part for template in entry.argv for _, part in template][1:] == ["no", "0644", "~", "null", "1e3", "1e3"]


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path):
    text = "\ufeff" + GOOD.replace("\n", "\r\n")
    assert "hello" in build({"catalogue/a.yaml": text.encode()}).entries
