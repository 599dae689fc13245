"""What the policy files may hold, as pydantic models: the one source of field names, types and their descriptions.

Imported only when a policy is compiled. What a field means for others (placeholders, conditions) is judged by
`sshop.core`, not here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _word(value: Any) -> Any:
    """A plain decimal number may stand for its own text."""
    return str(value) if type(value) is int else value


Word = Annotated[str, BeforeValidator(_word)]
Argv = Annotated[list[Word], Field(min_length=1)]
CategoryName = Literal["read_only", "convergent", "append_only", "destructive"]
EffectName = Literal["financial", "notification", "credential", "service_restart", "data_loss"]
ExitStatus = Annotated[int, Field(ge=0, le=125)]
Seconds = Annotated[int, Field(ge=1, le=604_800)]


class Strict(BaseModel):
    """No coercion, no unknown key."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Param(Strict):
    about: str = Field(default="", description="What it is, for people.")
    example: Word | None = Field(default=None, description="A value for documents and tests; checked at load.")


class StringParam(_Param):
    """Text that a regular expression matches as a whole."""

    type: Literal["string"]
    pattern: str = Field(description="Python regular expression (ASCII classes) that the whole value must match.")
    default: Word | None = Field(
        default=None, description="Value where none is given; without it the parameter is required."
    )
    allow_dash: bool = Field(default=False, description="Whether a value may begin with `-`.")
    max_length: int = Field(default=4096, ge=1, le=131_000, description="Longest value, in characters.")


class IntegerParam(_Param):
    """A decimal integer without leading zeros."""

    type: Literal["integer"]
    minimum: int | None = Field(default=None, description="Smallest value.")
    maximum: int | None = Field(default=None, description="Largest value.")
    default: Word | None = Field(default=None, description="Value where none is given.")
    allow_dash: bool = Field(default=False, description="Whether negative values, which begin with `-`, are taken.")


class EnumParam(_Param):
    """One of a list of words."""

    type: Literal["enum"]
    values: list[Word] = Field(min_length=1, description="The words; one may begin with `-`, since you wrote it.")
    default: Word | None = Field(default=None, description="Value where none is given.")


class BooleanParam(_Param):
    """`true` or `false`; the element stays, its text changes."""

    type: Literal["boolean"]
    when_true: str = Field(default="true", description="What replaces the placeholder for true.")
    when_false: str = Field(default="false", description="What replaces the placeholder for false.")
    default: bool | None = Field(default=None, description="Value where none is given.")


class PathParam(_Param):
    """An absolute path on the host, without `.`, `..`, needless slashes or control characters."""

    type: Literal["path"]
    root: str | None = Field(
        default=None, description="Folder under which it must stand (by its words; links are followed)."
    )
    pattern: str | None = Field(default=None, description="Regular expression that it must match too.")
    default: Word | None = Field(default=None, description="Value where none is given.")
    max_length: int = Field(default=4096, ge=1, le=4096, description="Longest value, in characters.")


class SecretParam(_Param):
    """A secret, given by reference (`env:NAME`, `file:PATH`, `stdin`); it may stand in `env` and `stdin` alone."""

    type: Literal["secret"]
    default: Word | None = Field(default=None, description="Reference where none is given, such as `env:DB_PASSWORD`.")
    multiline: bool = Field(default=False, description="Whether it may hold line ends.")


class FileParam(_Param):
    """A file of this machine, sent as the whole standard input; `{NAME.sha256}` is its digest."""

    type: Literal["file"]
    default: Word | None = Field(default=None, description="Path where none is given.")


Param = Annotated[
    StringParam | IntegerParam | EnumParam | BooleanParam | PathParam | SecretParam | FileParam,
    Field(discriminator="type"),
]


class VerifyModel(Strict):
    """The result contract: a command that tells by its exit status whether the effect stands."""

    argv: Argv = Field(description="Words with placeholders.")
    exit: ExitStatus = Field(default=0, description="Exit status that means satisfied.")
    timeout_s: Seconds | None = Field(default=None, description="Time limit, in seconds.")


class CommandModel(Strict):
    """One command of the catalogue."""

    summary: str = Field(min_length=1, description="What will be so afterwards, in a sentence; may hold placeholders.")
    category: CategoryName = Field(description="What an unknown outcome may lead to.")
    effects: list[EffectName] = Field(
        default=[], description="What else it touches; `financial` and `notification` recover as append_only at least."
    )
    kind: str | None = Field(
        default=None, pattern=r"^[a-z][a-z0-9_.-]{0,63}$", description="Machine word for the intent; default the name."
    )
    subject: str | None = Field(
        default=None,
        description="What it acts on, such as `account:{name}`; other writes to it wait while it is unknown.",
    )
    argv: Argv = Field(description="Program and arguments, with placeholders. No shell reads them.")
    params: dict[str, Param] = Field(default={}, description="Typed parameters by name.")
    converged_when: Argv | None = Field(
        default=None, description="Convergent only, and required there: exit 0 says that the effect already stands."
    )
    verify: VerifyModel | None = Field(default=None, description="The result contract.")
    timeout_s: Seconds | None = Field(
        default=None, description="Time limit on the host, in seconds, for the whole process group."
    )
    cwd: str | None = Field(default=None, description="Working folder, absolute; default the account's home.")
    env: dict[str, Word] = Field(default={}, description="Environment variables; the place for secrets.")
    stdin: str | None = Field(default=None, description="Text of standard input, or one `file` parameter alone.")
    become: bool = Field(default=False, description="Run as another user through `sudo -n`.")
    become_user: str | None = Field(default=None, description="Which user; default root. Needs `become: true`.")
    approval: Literal["none", "required"] = Field(default="none", description="Whether a person must approve each run.")
    budget: int | None = Field(
        default=None, ge=1, le=100, description="Dispatched attempts over the operation's life; default by category."
    )
    max_output: int | None = Field(
        default=None, ge=0, le=1 << 30, description="Bytes of each output stream that are fetched."
    )
    success_exit: list[ExitStatus] = Field(default=[0], min_length=1, description="Exit statuses that mean success.")
    rate_limited_exit: list[ExitStatus] = Field(
        default=[], description="Exit statuses by which the command says: too often, nothing done."
    )
    temporary_failure_exit: list[ExitStatus] = Field(
        default=[], description="Exit statuses by which it says: not now, nothing done."
    )


class CatalogueFile(Strict):
    """`catalogue/*.yaml`."""

    commands: dict[str, CommandModel] = Field(description="Commands by name; names are unique across files.")


def _words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


Example = Annotated[list[Word], BeforeValidator(_words), Field(min_length=1)]


class ExamplesModel(Strict):
    """Command lines that show what a rule means; checked whenever the policy loads."""

    match: list[Example] = Field(
        default=[], description="Lists of words, or text cut at blanks, that the rule matches."
    )
    not_match: list[Example] = Field(default=[], description="The same, that it does not match.")


class RuleModel(Strict):
    """How one form of a raw command is sorted."""

    argv: Argv = Field(description="The first words, exactly.")
    category: Literal["read_only", "append_only", "destructive"] = Field(description="What it is.")
    reason: str = Field(min_length=1, description="Why, for people.")
    rest: Literal["none", "operands", "any"] = Field(
        default="none", description="Which further words may stand: none, words that do not begin with `-`, or any."
    )
    options: list[Word] = Field(
        default=[], description="Further words that may stand, exactly, such as `--human-readable`."
    )
    flags: str = Field(
        default="", pattern=r"^[A-Za-z0-9]*$", description="Letters of which words like `-la` may be made."
    )
    examples: ExamplesModel = Field(description="What it matches and what not.")


class RulesFile(Strict):
    """`rules.yaml`."""

    rules: list[RuleModel] = Field(default=[], description="Rules for raw commands; the strictest that matches counts.")


class BudgetsModel(Strict):
    """Dispatched attempts of one operation over its life, by category."""

    read_only: int = Field(default=3, ge=1, le=100, description="Of read_only.")
    convergent: int = Field(default=3, ge=1, le=100, description="Of convergent.")
    append_only: int = Field(default=3, ge=1, le=100, description="Of append_only.")
    destructive: int = Field(default=3, ge=1, le=100, description="Of destructive.")


class BackoffModel(Strict):
    """Spacing of attempts, with jitter; it never makes one allowed."""

    first_s: float = Field(default=0.5, ge=0, le=3600, strict=False, description="Mean of the first pause, in seconds.")
    most_s: float = Field(default=30.0, ge=0, le=3600, strict=False, description="Longest pause, in seconds.")


class RawModel(Strict):
    """Whether commands that are not in the catalogue may run."""

    argv: Literal["allowed", "refused"] = Field(default="allowed", description="`-- ARGV…`.")
    shell: Literal["allowed", "refused"] = Field(default="allowed", description="`--shell TEXT`.")


class LimitsModel(Strict):
    """Time limits of a connection, in seconds."""

    connect: float | None = Field(default=None, gt=0, le=3600, strict=False, description="Until TCP stands.")
    handshake: float | None = Field(
        default=None, gt=0, le=3600, strict=False, description="Until the host key is proved."
    )
    login: float | None = Field(default=None, gt=0, le=3600, strict=False, description="Until the login stands.")
    idle: float | None = Field(
        default=None, ge=0, le=86_400, strict=False, description="Without a byte; 0 is no limit."
    )
    dead_after: float | None = Field(
        default=None, gt=0, le=86_400, strict=False, description="How long a dead peer goes unnoticed."
    )


class PolicyFile(Strict):
    """`policy.yaml`."""

    budgets: BudgetsModel = Field(default=BudgetsModel(), description="Attempts by category.")
    not_sent_tries: int = Field(default=5, ge=1, le=1000, description="Tries in one call that were provably not sent.")
    backoff: BackoffModel = Field(default=BackoffModel(), description="Spacing of attempts.")
    recover: Literal["auto", "look", "none"] = Field(
        default="auto", description="What `run` does about a lost answer unless `--recover` says otherwise."
    )
    review_after_s: int = Field(
        default=3600, ge=1, le=31_536_000, description="After how long an unresolved operation is due for review."
    )
    minimum_evidence: Literal["file_synced", "all_synced", "unsynced"] = Field(
        default="unsynced", description="Weakest durability of a marker that is accepted."
    )
    approval_required: list[CategoryName] = Field(
        default=[], description="Categories of which every command needs an approval."
    )
    raw: RawModel = Field(default=RawModel(), description="Commands outside the catalogue.")
    timeout_s: Seconds | None = Field(default=None, description="Time limit where an entry has none.")
    max_output: int = Field(
        default=1_048_576,
        ge=0,
        le=1 << 30,
        description="Bytes of each output stream that are fetched where an entry says nothing.",
    )
    redact: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]] = Field(
        default=[],
        description="Further names whose values are hidden in raw commands (`pin` hides `--pin=…` and `PIN=…`).",
    )
    limits: LimitsModel = Field(default=LimitsModel(), description="Time limits of connections.")


class HostModel(Strict):
    """What is said here wins over the OpenSSH configuration; all is optional."""

    address: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9.:%_-]*$", description="Name or address to connect to."
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="TCP port.")
    user: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", description="Account.")
    root: str | None = Field(
        default=None,
        pattern=r"^/[A-Za-z0-9._/-]+$",
        description="Folder of the marker store, absolute; default `~/.sshop`.",
    )
    authority_ref: str | None = Field(default=None, description="Reference to the credential, never the credential.")
    groups: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]] = Field(
        default=[], description="Groups it belongs to."
    )


class HostsFile(Strict):
    """`hosts.yaml`."""

    hosts: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], HostModel] = Field(
        default={}, description="Hosts by name."
    )
