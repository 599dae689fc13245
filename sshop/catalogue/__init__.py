"""The folder of policies as a value: read, compiled once for each content, and found again without yaml or pydantic.

`load` computes the digest of all files each time, and asks the compiled cache for that digest. `build`, `schema` and
`document`, which import pydantic and yaml, are imported only where there is nothing compiled.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from sshop import errors
from sshop.catalogue import compiled
from sshop.catalogue.commit import find_commit
from sshop.core.policy import Policy
from sshop.core.value import replace

SINGLE = ("hosts.yaml", "policy.yaml", "rules.yaml")


def read_files(folder: str) -> dict[str, bytes]:
    """The bytes of every policy file by its name within the folder, in the order of names.

    Raises `PolicyFileError`.
    """
    root = Path(folder)
    paths = [root / name for name in SINGLE if (root / name).exists()]
    catalogue = root / "catalogue"
    try:
        for path in catalogue.iterdir():
            if path.suffix in (".yml", ".YAML", ".YML") and not path.name.startswith("."):
                raise errors.PolicyFileError(
                    "this file would not be read", file=str(path), hint="its name must end in .yaml"
                )
            if path.suffix == ".yaml" and not path.name.startswith("."):
                paths.append(path)
    except OSError as error:
        raise errors.PolicyFileError(
            f"no folder of commands can be read here: {error.strerror}",
            file=str(catalogue),
            hint="--policies names a folder that holds catalogue/*.yaml",
        ) from error
    files = {}
    for path in sorted(paths):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not hold us up
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                files[path.relative_to(root).as_posix()] = file.readall() or b""
        except OSError as error:
            raise errors.PolicyFileError(f"cannot be read: {error.strerror}", file=str(path)) from error
    return files


def digest_of(files: dict[str, bytes]) -> str:
    """SHA-256 over names, sizes and bytes, in hexadecimal."""
    made = hashlib.sha256(b"sshop policy 1\n")
    for name, content in sorted(files.items()):
        made.update(b"%s\0%d\n" % (name.encode("utf-8", "surrogateescape"), len(content)))
        made.update(content)
    return made.hexdigest()


def load(folder: str, cache: str | None = None) -> Policy:
    """The policy of a folder. `cache` is the folder of compiled policies; None compiles anew and stores nothing.

    Raises `PolicyFileError` with file, line and column; nothing is loaded by halves.
    """
    files = read_files(folder)
    digest = digest_of(files)
    policy = None if cache is None else compiled.load(cache, digest)
    if policy is None:
        from sshop.catalogue.build import build

        policy = build(files, folder, digest)
        if cache is not None:
            compiled.store(cache, policy)
    return replace(policy, commit=find_commit(folder), folder=folder)
