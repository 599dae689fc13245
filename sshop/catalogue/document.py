"""YAML as data with a place (line, column) for every key and value, and nothing of YAML that surprises.

Refused with both places named: keys that stand twice, aliases, merge keys. Refused with a word on what to
write: tags, several documents, and plain words that readers of YAML take for different things (`no`, `0644`, `1:30`, a
date). What you see in a policy file is what there is.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import yaml

from sshop import errors

Path = tuple[str | int, ...]
Place = tuple[int, int]
DEPTH_LIMIT = 40
SIZE_LIMIT = 8_000_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML_1_1 = yaml.SafeLoader.yaml_implicit_resolvers
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+\Z")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One file: its data, and where each value (`values`) and each key (`keys`) stands, from 1.

    `file` is its path for people, `name` its name within the folder of policies.
    """

    file: str
    name: str
    data: Any
    values: dict[Path, Place]
    keys: dict[Path, Place]

    def place(self, path: Path, *, key: bool = False) -> Place:
        """Where a path stands; the nearest that exists above it where it is missing."""
        known = [self.keys, self.values] if key else [self.values, self.keys]
        while path:
            for places in known:
                if path in places:
                    return places[path]
            path = path[:-1]
            known = [self.keys, self.values]
        return self.values.get((), (1, 1))

    def error(self, path: Path, message: str, *, hint: str | None = None, key: bool = False) -> errors.PolicyFileError:
        """The error of what stands at a path."""
        line, column = self.place(path, key=key)
        return errors.PolicyFileError(message, file=self.file, line=line, column=column, hint=hint)


class _Reader:
    """Takes the parser's events apart; one for each file."""

    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.loader = _LOADER(source)
        self.anchors: dict[str, Place] = {}
        self.values: dict[Path, Place] = {}
        self.keys: dict[Path, Place] = {}

    def fail(self, event: Any, message: str, hint: str | None = None) -> errors.PolicyFileError:
        line, column = _place(event)
        return errors.PolicyFileError(message, file=self.file, line=line, column=column, hint=hint)

    def next(self) -> Any:
        return self.loader.get_event()

    def document(self) -> Any:
        self.next()  # the stream starts
        event = self.next()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        data = self.value(self.next(), ())
        self.next()  # the document ends
        event = self.next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.fail(event, "a second document begins here", "one file holds one document; remove the '---'")
        return data

    def value(self, event: Any, path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent):
            raise self.alias(event)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self.anchors.setdefault(anchor, _place(event))
        if getattr(event, "tag", None):
            raise self.fail(event, f"tags are not read here: {event.tag}", "write the value plainly")
        if len(path) > DEPTH_LIMIT:
            raise self.fail(event, f"nested deeper than {DEPTH_LIMIT} levels")
        self.values[path] = _place(event)
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(path)
        return self.mapping(path)

    def alias(self, event: Any) -> errors.PolicyFileError:
        line, column = self.anchors.get(event.anchor, (0, 0))
        return self.fail(
            event,
            f"aliases are not read here: *{event.anchor} repeats what stands at {self.file}:{line}:{column}",
            "write it out: a reviewer must see what each command does where it stands",
        )

    def sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self.next(), yaml.SequenceEndEvent):
            items.append(self.value(event, (*path, len(items))))
        return items

    def mapping(self, path: Path) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            if isinstance(event, yaml.AliasEvent):
                raise self.alias(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.fail(event, "a key must be a plain word")
            if event.value == "<<" and event.implicit[0]:
                target = self.next()
                line, column = self.anchors.get(getattr(target, "anchor", None) or "", _place(target))
                raise self.fail(
                    event,
                    f"merge keys are not read here: this one takes in what stands at {self.file}:{line}:{column}",
                    "write the keys out: a reviewer must see what each command does where it stands",
                )
            name = self.scalar(event)
            if not isinstance(name, str):
                raise self.fail(event, f"a key must be text, and {event.value!r} is not", f'write "{event.value}"')
            here = (*path, name)
            if name in items:
                line, _ = self.keys[here]
                raise self.fail(
                    event, f"{name!r} stands here twice: the first is at {self.file}:{line}", "keep one of the two"
                )
            self.keys[here] = _place(event)
            items[name] = self.value(self.next(), here)
        return items

    def scalar(self, event: Any) -> Any:
        word: str = event.value
        if not event.implicit[0]:
            return word
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if _INTEGER.match(word):
            return int(word) if len(word) < 20 else word
        if _FLOAT.match(word):
            return float(word)
        tag = _resolve_1_1(word)
        if tag is not None:
            raise self.fail(
                event,
                f"readers of YAML disagree about {word!r}: some take it for {tag}, some for text",
                f'write "{word}" in quotes for text' + (", or true or false" if tag == "a boolean" else ""),
            )
        return word


def _resolve_1_1(word: str) -> str | None:
    kinds = {"bool": "a boolean", "int": "a number", "float": "a number", "timestamp": "a date", "null": "nothing"}
    for tag, pattern in _YAML_1_1.get(word[:1], []):
        if pattern.match(word):
            return kinds.get(tag.rsplit(":", 1)[-1], "a special value")
    return None


def _place(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def read(file: str, content: bytes, name: str = "") -> Document:
    """The document of a file's bytes.

    Raises `PolicyFileError` with line and column.
    """
    if len(content) > SIZE_LIMIT:
        raise errors.PolicyFileError(f"longer than {SIZE_LIMIT:,} bytes", file=file)
    try:
        source = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise errors.PolicyFileError(
            "not UTF-8 text", file=file, line=line, column=column, hint="save the file as UTF-8"
        ) from error
    try:
        reader = _Reader(file, source)
        data = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise errors.PolicyFileError(
            f"not YAML: {words}",
            file=file,
            line=mark.line + 1 if mark else None,
            column=mark.column + 1 if mark else None,
            hint="indent with spaces, two for each level",
        ) from error
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0) or 0
        before_text = source[:position]
        raise errors.PolicyFileError(
            f"not YAML: {getattr(error, 'reason', error)}",
            file=file,
            line=before_text.count("\n") + 1,
            column=position - (before_text.rfind("\n") + 1) + 1,
        ) from error
    return Document(file, name or file, data, reader.values, reader.keys)
