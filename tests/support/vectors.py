"""The byte-exact examples of docs/PROTOCOL.md, which the runner's side and the guard's are both held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "vectors"


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text())


def raw(text: str) -> bytes:
    return text.encode("latin-1")


REQUESTS = load("requests.json")
ANSWERS = load("answers.json")
