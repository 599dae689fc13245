"""One option table makes both parsers: the same lines mean the same to both."""

import pytest
from typer import main as typer_main

from sshop import errors
from sshop.cli import app, light
from sshop.cli.entry import LIGHT
from sshop.cli.options import COMMANDS, COMMON, command

LINES = [
    ["run", "h", "disk-usage"],
    ["run", "h", "user-present", "name=anna", "shell=/bin/sh"],
    ["run", "h", "user-present", "name=-x"],
    ["run", "h", "user-present", "name=a=b=c", "empty="],
    ["run", "h", "--op", "op-1", "x", "--json"],
    ["run", "--op=op-1", "h", "x"],
    ["run", "h", "x", "--new", "--follow", "--exit-passthrough"],
    ["run", "--json", "h", "--new", "x", "--wait", "0", "a=1"],
    ["run", "h", "x", "--wait", "1.5", "--dead-after", "3"],
    ["run", "h", "x", "--wait", "-1"],
    ["run", "h", "--shell", "echo a; echo b"],
    ["run", "h", "--shell", ""],
    ["run", "h", "x", "--stdin", "-"],
    ["run", "h", "x", "--stdin", "a file"],
    ["run", "h", "x", "--recover", "none", "--note", "why\nnot"],
    ["run", "h", "x", "--ledger", "/l", "--policies", "/p", "--log-format", "json"],
    ["run", "h"],
    ["run", "ü@host:22", "x", "k=ü\udcff"],
    ["ops"],
    ["ops", "--state", "unknown", "--host", "h", "--limit", "3", "--before", "op-1", "--json"],
    ["show", "op-1"],
    ["show", "--json", "op-1"],
]

BAD = [
    ["run"],
    ["run", "h", "x", "--nope"],
    ["run", "h", "x", "--op"],
    ["run", "h", "x", "--wait", "soon"],
    ["run", "h", "x", "--wait", ""],
    ["run", "h", "x", "--recover", "maybe"],
    ["run", "h", "x", "--log-format", "xml"],
    ["run", "h", "x", "--js"],
    ["run", "h", "x", "--new=1"],
    ["ops", "extra"],
    ["ops", "--limit", "1.5"],
    ["ops", "--state", "lost"],
    ["show"],
    ["show", "a", "b"],
]


def by_light(words):
    return light.parse(command(words[0]), words[1:])


def by_typer(words):
    seen = []
    app.main(words, lambda name, options: seen.append((name, options)) or 0)
    [(name, options)] = seen
    assert name == words[0]
    return options


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_both_parsers_read_the_same_line_alike(words):
    assert by_light(words) == by_typer(words)


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_both_parsers_refuse_the_same_line_as_usage(words):
    for parse in (by_light, by_typer):
        with pytest.raises(errors.UsageError) as caught:
            parse(words)
        assert (caught.value.hint or "").endswith(f"sshop {words[0]} --help")


def test_every_light_command_is_marked_and_known_to_both():
    assert {item.name for item in COMMANDS if item.light} == LIGHT
    group = typer_main.get_command(app.build(lambda *_: 0))
    assert {item.name.split()[0] for item in COMMANDS} == set(group.commands)


def test_every_option_of_the_table_is_in_both_parsers():
    group = typer_main.get_command(app.build(lambda *_: 0))
    for item in COMMANDS:
        found = group
        for word in item.name.split():
            found = found.commands[word]
        flags = {flag for parameter in found.params for flag in parameter.opts if flag.startswith("-")}
        wanted = {flag for option in (*item.options, *COMMON) for flag in option.flags}
        assert flags - {"--help"} == wanted, item.name


def test_no_two_options_of_a_command_share_a_name_or_flag():
    for item in COMMANDS:
        options = (*item.options, *COMMON)
        names = [option.name for option in options] + [argument.name for argument in item.arguments]
        assert len(names) == len(set(names))
        flags = [flag for option in options for flag in option.flags]
        assert len(flags) == len(set(flags))


def test_the_short_help_of_every_command_is_not_cut_off():
    for item in COMMANDS:
        assert len(item.help) <= 62, item.name
