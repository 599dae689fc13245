"""Commands of any kind, for tests of what must hold for all of them."""

import hashlib
from typing import Any

from hypothesis import strategies as st

from sshop.core.command import RESERVED_NAMES, Command, Piece, Secret, Stdin

chunks = st.binary(max_size=40).map(lambda value: value.replace(b"\0", b"\n"))
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED_NAMES)
pieces = st.one_of(
    chunks.map(lambda value: Piece("text", value)),
    st.just(Piece("id")),
    st.builds(lambda name, value: Piece("hidden", name=name, value=Secret(value)), names, chunks),
)
elements = st.lists(pieces, max_size=4).map(tuple)


@st.composite
def commands_of_any_kind(draw: Any) -> Command:
    env = draw(st.dictionaries(names, elements, max_size=3))
    secrets = draw(st.dictionaries(names.filter(lambda name: name not in env), chunks, max_size=2))
    body = draw(st.none() | chunks)
    sealed = draw(st.booleans())
    digest = None if body is None or sealed else hashlib.sha256(body).hexdigest()
    return Command(
        argv=tuple(draw(st.lists(elements, min_size=1, max_size=4))),
        cwd=draw(st.none() | chunks),
        env=tuple(env.items()),
        secrets=tuple((name, Secret(value)) for name, value in secrets.items()),
        become_user=draw(st.none() | st.just("web")),
        stdin=None if body is None else Stdin(len(body), digest, Secret(body)),
        condition=tuple(draw(st.lists(elements, max_size=3))),
    )
