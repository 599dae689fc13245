"""docs/POLICY.md describes every field as the models that read the files do."""

import inspect
import re

import pytest

from sshop.catalogue import schema
from sshop.catalogue.build import build
from sshop.core.lint import CHECKS
from tests.support.policy_reference import DOCUMENT, named, written

TEXT = DOCUMENT.read_text()


def test_the_tables_are_those_of_the_models():
    assert written(TEXT) == TEXT, "python -m tests.support.policy_reference writes them anew"


def test_every_model_has_its_table():
    models = {
        name
        for name, model in inspect.getmembers(schema, inspect.isclass)
        if issubclass(model, schema.Strict) and model is not schema.Strict and not name.startswith("_")
    }
    assert named(TEXT) == models


def test_every_finding_of_lint_is_explained():
    assert {code for _, code, _ in CHECKS} <= set(re.findall(r"`([a-z_]+)`", TEXT))


@pytest.mark.parametrize(
    "block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL), ids=lambda block: block.split("\n")[0]
)
def test_every_example_loads(block):
    name = re.match(r"# (\S+)\n", block).group(1)
    build({name: block.encode()})
