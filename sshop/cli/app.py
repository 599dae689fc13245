"""The typer application, made from the option table; the light commands are in it too, for `--help`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from sshop import errors
from sshop.cli.options import COMMANDS, COMMON, Argument, Command, Option

# typer brings its own click; this is the base of all its errors about words that cannot be parsed.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_GROUPS = {"ledger": "Check, rebuild or fill the ledger.", "policy": "Check the policy files."}
_TYPES: dict[str, type] = {"text": str, "integer": int, "number": float, "flag": bool}


def _option(option: Option) -> inspect.Parameter:
    kind: Any = Literal[option.choices] if option.choices else _TYPES[option.kind]
    annotation = kind if option.default is not None else kind | None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[annotation, typer.Option(*option.flags, help=option.help, metavar=option.metavar)],
    )


def _argument(argument: Argument) -> inspect.Parameter:
    kind: Any = {"one": str, "optional": str | None, "many": list[str] | None}[argument.count]
    default = inspect.Parameter.empty if argument.count == "one" else None
    return inspect.Parameter(
        argument.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=Annotated[kind, typer.Argument(help=argument.help)],
    )


def _function(command: Command, call: Callable[[str, dict[str, Any]], int]) -> Callable[..., int]:
    def function(**values: Any) -> int:
        return call(
            command.name, {name: [] if name == "words" and value is None else value for name, value in values.items()}
        )

    function.__name__ = command.name.replace(" ", "_")
    function.__doc__ = command.help
    parameters = [_argument(argument) for argument in command.arguments]
    parameters += [_option(option) for option in (*command.options, *COMMON)]
    function.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def build(call: Callable[[str, dict[str, Any]], int]) -> typer.Typer:
    """The application; each command hands its name and its options to `call`, whose answer is the exit code."""
    app = typer.Typer(
        name="sshop",
        help="Run commands on hosts over SSH so that one intended action has at most one effect.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    groups: dict[str, typer.Typer] = {}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        target = app
        if group:
            if group not in groups:
                groups[group] = typer.Typer(no_args_is_help=True, help=_GROUPS[group], rich_markup_mode=None)
                app.add_typer(groups[group], name=group)
            target = groups[group]
        target.command(name, help=command.help)(_function(command, call))
    return app


def main(words: list[str], call: Callable[[str, dict[str, Any]], int]) -> int:
    """Parse and call; `--help` is printed here. Raises `UsageError`. A command that is not whole (`sshop ledger`) gets
    its help on standard output, and 2.
    """
    try:
        code = typer.main.get_command(build(call)).main(words, prog_name="sshop", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _UsageError as error:
        where = getattr(error, "ctx", None)
        message = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(message + "\n")
            return 2
        hint = f"{where.command_path if where else ' '.join(('sshop', *words[:1]))} --help"
        raise errors.UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint) from error
    return code if isinstance(code, int) else 0
