"""A missing tool skips on a laptop, and fails where it is declared to be required."""

import os
import shutil
from typing import NoReturn

import pytest

REQUIRED = "SSHOP_REQUIRE_TOOLS"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def find_tool(name: str) -> str | None:
    """The path of a program, looked for in the folders of system programs too; None where it is missing."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":" + SBIN)


def require_tool(name: str) -> str:
    """The path of a program that the calling test cannot do without."""
    path = find_tool(name)
    if path is None:
        missing(f"{name} is not installed")
    return path


def missing(what: str) -> NoReturn:
    """End the calling test: as a skip, or as a failure where SSHOP_REQUIRE_TOOLS is set."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what}, and {REQUIRED} is set", pytrace=False)
    pytest.skip(what)


def require_root() -> None:
    """For tests that need several accounts, mounts or full disks."""
    if os.geteuid() != 0:
        missing("this test needs root")
