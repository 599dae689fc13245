"""The tables of docs/POLICY.md, made of the models that read the files; as a program it writes them there."""

import re
from pathlib import Path

from pydantic import BaseModel

from sshop.catalogue import schema

DOCUMENT = Path(__file__).parents[2] / "docs" / "POLICY.md"
_PLACE = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}


def _takes(node: dict, definitions: dict) -> str:
    if "$ref" in node:
        return _takes(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    if "anyOf" in node:
        return " or ".join(_takes(branch, definitions) for branch in node["anyOf"] if branch.get("type") != "null")
    if "const" in node or "enum" in node:
        return " ".join(f"`{word}`" for word in node.get("enum", [node.get("const")]))
    if node.get("type") == "array":
        return "list of " + _takes(node["items"], definitions)
    words = _NAMES.get(node.get("type", ""), "mapping")
    low, high = node.get("minimum", node.get("exclusiveMinimum")), node.get("maximum")
    bounds = f" {'' if low is None else low:,}..{'' if high is None else high:,}" if (low, high) != (None, None) else ""
    return words + bounds.replace(",", " ")


def _default(field: object) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value in ("", [], {}) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return f"`{str(value).lower()}`"


def table(name: str) -> str:
    """One model as a table; the field that only tells its type is left out."""
    model = getattr(schema, name)
    whole = model.model_json_schema()
    rows = ["| field | takes | default | meaning |", "| -- | -- | -- | -- |"]
    for field, info in model.model_fields.items():
        if field != "type":
            takes = _takes(whole["properties"][field], whole.get("$defs", {}))
            rows.append(f"| `{field}` | {takes} | {_default(info)} | {info.description} |")
    return "\n".join(rows)


def written(text: str) -> str:
    """The document with its tables as they must be."""
    return _PLACE.sub(lambda match: f"<!-- {match.group(1)} -->\n{table(match.group(1))}\n<!-- end -->", text)


def named(text: str) -> set[str]:
    """The models whose tables stand in the document."""
    return {match.group(1) for match in _PLACE.finditer(text)}


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
