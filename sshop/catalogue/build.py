"""Policy files to policy values: every flaw becomes an error with file, line and column.

The files of one policy are compiled all or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sshop import errors
from sshop.catalogue import schema
from sshop.catalogue.document import Document, Path, read
from sshop.core import entry as entries
from sshop.core import flaws, rules
from sshop.core.entry import Entry, Template, Verify
from sshop.core.param import Param
from sshop.core.policy import Host, Policy
from sshop.core.template import parse_template

Model = TypeVar("Model", bound=BaseModel)

_MESSAGES = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping (name: value)",
    "model_type": "must be a mapping (name: value)",
    "model_attributes_type": "must be a mapping (name: value)",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "does not match {pattern}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
}
_QUOTABLE = frozenset({"string_type"})


def _document_path(document: Document, loc: Iterable[str | int]) -> Path:
    """The part of pydantic's location that stands in the document.

    Pydantic puts in words of its own (the tag of a union, `[key]`), which are left out where what follows them stands.
    """
    path: Path = ()
    for word in loc:
        if (*path, word) in document.values:
            path = (*path, word)
    return path


def _known_fields(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    """The names of the fields at a location, found by walking the JSON schema of the model."""
    whole = model.model_json_schema()

    def resolve(node: dict[str, Any]) -> dict[str, Any]:
        """Through references, and through `X or nothing` to X."""
        while "$ref" in node or "anyOf" in node:
            if "$ref" in node:
                node = whole["$defs"][node["$ref"].rsplit("/", 1)[-1]]
            else:
                node = next((branch for branch in node["anyOf"] if branch.get("type") != "null"), {})
        return node

    node = resolve(whole)
    for word in loc:
        mapping = node.get("discriminator", {}).get("mapping", {})
        if word in mapping:
            node = resolve({"$ref": mapping[word]})
        elif word in node.get("properties", {}):
            node = resolve(node["properties"][word])
        elif isinstance(node.get("additionalProperties"), dict):
            node = resolve(node["additionalProperties"])
        elif "patternProperties" in node:
            node = resolve(next(iter(node["patternProperties"].values())))
        elif "items" in node:
            node = resolve(node["items"])
    return list(node.get("properties", {}))


def _translate(document: Document, model: type[BaseModel], problem: Any) -> errors.PolicyFileError:
    loc, kind, context = problem["loc"], problem["type"], problem.get("ctx") or {}
    path = _document_path(document, loc)
    if kind == "missing":
        owner = f"{path[-1]!r}" if path else "the file"
        return document.error(path, f"{owner} needs {loc[-1]!r}", key=True)
    if kind == "extra_forbidden":
        fields = _known_fields(model, loc[:-1])
        near = entries.near(str(loc[-1]), fields)
        return document.error(path, f"unknown key {loc[-1]!r}", hint=f"{near}known here: {', '.join(fields)}", key=True)
    if kind == "union_tag_not_found":
        return document.error(
            path, f"{path[-1]!r} needs 'type'", hint="one of string integer enum boolean path secret file", key=True
        )
    if kind == "union_tag_invalid":
        path = (*path, "type")
    is_key = "[key]" in loc
    words = _MESSAGES.get(kind)
    message = words.format(**context) if words else problem["msg"][:1].lower() + problem["msg"][1:]
    shown = f"{path[-1]!r} " if path and isinstance(path[-1], str) else ""
    hint = None
    if kind in _QUOTABLE and isinstance(problem["input"], bool | int | float):
        hint = "put it in quotes"
    return document.error(path, shown + message, hint=hint, key=is_key)


def _first(found: list[errors.PolicyFileError]) -> errors.PolicyFileError:
    """The first by line, which tells of the others. A key that is unknown comes before one that is missing: it may be
    the same, mistyped.
    """
    found.sort(key=lambda error: (" needs '" in error.message, error.line or 0, error.column or 0))
    first, *more = found
    if more:
        others = "; ".join(str(error) for error in more[:5])
        rest = f"{len(more)} more: {others}" + (" …" if len(more) > 5 else "")
        first.hint = f"{first.hint}\n{rest}" if first.hint else rest
    return first


def validate(document: Document, model: type[Model]) -> Model:
    """The file as its model; an empty file is one without keys.

    Raises `PolicyFileError`.
    """
    if document.data is not None and not isinstance(document.data, dict):
        raise document.error((), "the file must hold a mapping (name: value)")
    try:
        return model.model_validate(document.data or {})
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise _first([_translate(document, model, problem) for problem in problems]) from error


def _template(document: Document, path: Path, source: str) -> Template:
    try:
        return parse_template(source)
    except errors.UsageError as error:
        raise document.error(path, error.message, hint=error.hint) from error


def _param(model: BaseModel) -> Param:
    fields = model.model_dump(exclude_none=True)
    if "values" in fields:
        fields["values"] = tuple(fields["values"])
    if isinstance(fields.get("default"), bool):
        fields["default"] = "true" if fields["default"] else "false"
    return Param(**fields)


def _entry(document: Document, name: str, model: schema.CommandModel) -> Entry:
    base: Path = ("commands", name)

    def template(source: str, *path: str | int) -> Template:
        return _template(document, (*base, *path), source)

    def argv(words: list[str] | None, *path: str | int) -> tuple[Template, ...]:
        return tuple(template(word, *path, index) for index, word in enumerate(words or []))

    if model.become_user is not None and not model.become:
        raise document.error(
            (*base, "become_user"), "become_user without become: true", hint="add become: true", key=True
        )
    line, _ = document.place(base, key=True)
    return Entry(
        name=name,
        category=model.category,
        argv=argv(model.argv, "argv"),
        summary=template(model.summary, "summary"),
        kind=model.kind or "",
        subject=None if model.subject is None else template(model.subject, "subject"),
        effects=tuple(model.effects),
        params={key: _param(param) for key, param in model.params.items()},
        converged_when=argv(model.converged_when, "converged_when"),
        verify=None
        if model.verify is None
        else Verify(argv(model.verify.argv, "verify", "argv"), model.verify.exit, model.verify.timeout_s),
        timeout_s=model.timeout_s,
        cwd=None if model.cwd is None else template(model.cwd, "cwd"),
        env=tuple((key, template(word, "env", key)) for key, word in model.env.items()),
        stdin=None if model.stdin is None else template(model.stdin, "stdin"),
        become_user=(model.become_user or "root") if model.become else None,
        approval=model.approval,
        budget=model.budget,
        max_output=model.max_output,
        success_exit=tuple(model.success_exit),
        rate_limited_exit=tuple(model.rate_limited_exit),
        temporary_failure_exit=tuple(model.temporary_failure_exit),
        place=f"{document.name}:{line}",
    )


def _catalogue(documents: list[Document]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for document in documents:
        if document.data is None:
            continue
        model = validate(document, schema.CatalogueFile)
        wrong: list[errors.PolicyFileError] = []
        for name, command in model.commands.items():
            made = _entry(document, name, command)
            if name in found:
                raise document.error(
                    ("commands", name), f"command {name!r} is already defined at {found[name].place}", key=True
                )
            found[name] = made
            wrong += [
                document.error(("commands", name, *path), f"{name}: {message}", hint=hint, key=not path)
                for path, message, hint in flaws.find_flaws(made)
            ]
        if wrong:
            raise _first(wrong)
    return found


def _rules(document: Document) -> tuple[rules.Rule, ...]:
    model = validate(document, schema.RulesFile)
    made = []
    for index, rule in enumerate(model.rules):
        line, _ = document.place(("rules", index))
        made.append(
            rules.Rule(
                argv=tuple(rule.argv),
                category=rule.category,
                reason=rule.reason,
                rest=rule.rest,
                options=tuple(rule.options),
                flags=rule.flags,
                match=tuple(map(tuple, rule.examples.match)),
                not_match=tuple(map(tuple, rule.examples.not_match)),
                place=f"{document.name}:{line}",
            )
        )
    wrong = [document.error(("rules", index, *path), message) for index, path, message in rules.find_flaws(made)]
    if wrong:
        raise _first(wrong)
    return tuple(made)


def _hosts(document: Document) -> dict[str, Host]:
    model = validate(document, schema.HostsFile)
    return {
        name: Host(name, host.address, host.port, host.user, host.root, host.authority_ref, tuple(host.groups))
        for name, host in model.hosts.items()
    }


def build(files: Mapping[str, bytes], folder: str = "", digest: str = "") -> Policy:
    """The policy of these files (relative name to bytes).

    Raises `PolicyFileError`.
    """

    def document(name: str) -> Document:
        return read(f"{folder}/{name}" if folder else name, files.get(name, b""), name)

    catalogue = [document(name) for name in files if re.match(r"catalogue/[^/]+\.yaml\Z", name)]
    said = validate(document("policy.yaml"), schema.PolicyFile)
    return Policy(
        entries=_catalogue(catalogue),
        rules=_rules(document("rules.yaml")),
        hosts=_hosts(document("hosts.yaml")),
        digest=digest,
        folder=folder,
        budgets=said.budgets.model_dump(),
        not_sent_tries=said.not_sent_tries,
        backoff_first_s=said.backoff.first_s,
        backoff_most_s=said.backoff.most_s,
        recover=said.recover,
        review_after_s=said.review_after_s,
        minimum_evidence=said.minimum_evidence,
        approval_required=tuple(said.approval_required),
        raw_argv=said.raw.argv,
        raw_shell=said.raw.shell,
        timeout_s=said.timeout_s,
        max_output=said.max_output,
        redact=tuple(said.redact),
        limits=said.limits.model_dump(exclude_none=True),
    )
