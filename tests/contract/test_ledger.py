"""What `sshop.ports.Ledger` promises, of every implementation."""

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sshop import errors
from sshop.core import events, lifecycle
from sshop.core.events import GENESIS, Draft, Event
from sshop.core.operation import Boundary
from sshop.core.value import replace
from sshop.ledger.fill import DECK, Synthesis, fill
from sshop.ports import Ledger, Verification
from tests.support.ledger_writer import session
from tests.support.ledgers import IMPLEMENTATIONS, Implementation, interleave, tell, writers


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.name)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return request.param


@pytest.fixture
def location(implementation: Implementation, tmp_path: Path) -> str:
    return implementation.place(tmp_path)


@pytest.fixture
def ledger(implementation: Implementation, location: str):
    opened = implementation.open(location)
    yield opened
    opened.close()


def put(ledger: Ledger, drafts: list[Draft]) -> tuple[Event, ...]:
    return ledger.append(lambda view: drafts)


def synthesis() -> Synthesis:
    made = Synthesis(7)
    made.session = "ses_test"
    return made


def outcomes(ledger: Ledger) -> dict[str, list[Draft]]:
    """One operation of every kind of outcome, appended; by the name of the kind."""
    world = synthesis()
    told = {DECK[number][1].__name__.strip("_"): tell(world, number) for number in range(len(DECK))}
    for drafts in told.values():
        put(ledger, drafts)
    return told


def id_of(drafts: list[Draft]) -> str:
    return next(draft.operation_id for draft in drafts if draft.operation_id is not None)


# -- appending ---------------------------------------------------------------------------------------------------------


def test_events_are_numbered_from_one_and_each_names_the_hash_before_it(ledger):
    appended = put(ledger, [session("a", 1), session("a", 2)]) + put(ledger, [session("a", 3)])
    assert [event.seq for event in appended] == [1, 2, 3]
    assert [event.prev for event in appended] == [GENESIS, appended[0].hash, appended[1].hash]
    for event, draft in zip(appended, (session("a", 1), session("a", 2), session("a", 3)), strict=True):
        assert event.hash == events.digest(event.seq, draft, events.body_bytes(draft.body), event.prev)
    assert ledger.head() == (3, appended[-1].hash)
    assert tuple(ledger.events()) == appended


def test_the_head_of_an_empty_ledger_is_the_genesis(ledger):
    assert ledger.head() == (0, GENESIS)
    assert ledger.verify() == Verification(ok=True, events=0, head=GENESIS)


def test_a_decision_for_nothing_appends_nothing(ledger):
    assert put(ledger, []) == ()
    assert ledger.head() == (0, GENESIS)


@pytest.mark.parametrize("raised", [ValueError("no"), OSError(5, "no"), KeyboardInterrupt()])
def test_what_a_decision_raises_passes_through_and_nothing_is_appended(ledger, raised):
    def decide(view):
        raise raised

    with pytest.raises(type(raised)) as caught:
        ledger.append(decide)
    assert caught.value is raised
    assert ledger.head() == (0, GENESIS)
    put(ledger, [session("a", 1)])
    assert ledger.head()[0] == 1


def test_a_decision_reads_what_was_appended_before(ledger):
    drafts = tell(synthesis(), 0)
    put(ledger, drafts)
    seen = []

    def decide(view):
        seen.extend([view.operation(id_of(drafts)), view.head()])
        return []

    ledger.append(decide)
    assert seen == [ledger.operation(id_of(drafts)), ledger.head()]


def test_an_event_that_cannot_follow_takes_the_whole_append_with_it(ledger):
    orphan = replace(tell(synthesis(), 0)[-1], operation_id="op-without-an-intent")
    with pytest.raises(errors.Fault, match="op-without-an-intent"):
        put(ledger, [session("a", 1), orphan])
    assert ledger.head() == (0, GENESIS)
    assert not ledger.session_exists("ses_a_1")


def test_a_second_intent_under_one_id_is_refused_by_the_ledger_itself(ledger):
    drafts = tell(synthesis(), 0, operation_id="mine")
    put(ledger, drafts)
    before = ledger.operation("mine")
    with pytest.raises(errors.Fault, match="mine"):
        put(ledger, tell(synthesis(), 1, operation_id="mine"))
    assert ledger.operation("mine") == before


def test_an_append_inside_a_decision_is_a_fault(ledger):
    with pytest.raises(errors.Fault):
        ledger.append(lambda view: put(ledger, [session("a", 1)]))
    assert ledger.head() == (0, GENESIS)


TEXT = 'nul \0, tab \t, quote " \\, del \x7f, \u2028, ü, 漢字, 😀, \ufeff, \x1b[31m'


def test_any_text_comes_back_as_it_was(ledger):
    draft = Draft("ev_1", "2026-01-01T00:00:00.000000Z", "ses_ü", events.SessionOpened(TEXT, 1, "1", TEXT, TEXT, "0"))
    put(ledger, [draft])
    (event,) = ledger.events()
    assert event.body == draft.body
    assert event.hash == events.digest(1, draft, events.body_bytes(draft.body), GENESIS)
    assert ledger.verify().ok


def test_text_that_is_no_unicode_is_refused_and_nothing_is_appended(ledger):
    bad = replace(session("a", 1), body=events.SessionOpened("\udcff", 1, "1", "m", "u", "0"))
    with pytest.raises(errors.Fault):
        put(ledger, [bad])
    assert ledger.head() == (0, GENESIS)


def test_what_was_appended_is_there_for_another_opener_at_once_and_after_closing(implementation, location, ledger):
    other = implementation.open(location)
    put(ledger, [session("a", 1)])
    assert other.session_exists("ses_a_1")
    put(other, [session("b", 1)])
    assert ledger.session_exists("ses_b_1")
    other.close()
    again = implementation.open(location)
    assert [event.session_id for event in again.events()] == ["ses_a_1", "ses_b_1"]
    again.close()


def test_an_operation_that_another_opener_changed_is_not_answered_from_memory(implementation, location, ledger):
    other = implementation.open(location)
    drafts = tell(synthesis(), 0)
    name = id_of(drafts)
    for index, draft in enumerate(drafts):
        put(ledger if index % 2 else other, [draft])
        assert ledger.operation(name) == other.operation(name)
    assert ledger.operation(name) == lifecycle.fold(ledger.events(name))
    other.close()


# -- reading -----------------------------------------------------------------------------------------------------------


def test_an_operation_is_the_fold_of_its_events(ledger):
    for drafts in outcomes(ledger).values():
        name = id_of(drafts)
        assert [event.id for event in ledger.events(name)] == [d.id for d in drafts if d.operation_id == name]
        assert ledger.operation(name) == lifecycle.fold(ledger.events(name))
    assert ledger.operation("op-nobody-knows") is None


def test_events_can_be_read_from_any_place_on(ledger):
    appended = put(ledger, list(islice(synthesis().history(), 1203)))
    assert tuple(ledger.events(after=700)) == appended[700:]
    assert tuple(ledger.events(after=1203)) == ()
    name = next(event.operation_id for event in appended if event.operation_id is not None)
    own = [event for event in appended if event.operation_id == name]
    assert list(ledger.events(name, after=own[2].seq)) == own[3:]


def test_appending_while_reading_is_allowed(ledger):
    put(ledger, [session("a", number) for number in range(1200)])
    for count, _ in enumerate(ledger.events()):
        if count == 3:
            put(ledger, [session("b", 1)])
    assert ledger.head()[0] == 1201


def test_the_same_request_is_found_until_it_is_resolved(ledger):
    told = outcomes(ledger)
    for kind, drafts in told.items():
        operation = ledger.operation(id_of(drafts))
        found = ledger.same_request(operation.account.key, operation.fingerprint)
        pending = kind in ("never_dispatched", "unknown")
        assert found == ([operation] if pending else []), kind
        assert ledger.same_request("somebody@else:22", operation.fingerprint) == []
        assert ledger.same_request(operation.account.key, "0" * 64) == []


def test_twins_come_oldest_first(ledger):
    world = synthesis()
    number = next(i for i, row in enumerate(DECK) if row[1].__name__ == "_unknown")
    drafts = tell(world, number)
    names = ["z-first", "a-second", "m-third"]
    for name in names:
        put(ledger, [replace(d, operation_id=name if d.operation_id else None) for d in drafts])
    operation = ledger.operation("z-first")
    assert [o.operation_id for o in ledger.same_request(operation.account.key, operation.fingerprint)] == names
    assert [o.operation_id for o in ledger.operations(unresolved=True)] == names
    assert [o.operation_id for o in ledger.operations()] == names[::-1]


def test_an_unknown_operation_is_found_by_its_subject(ledger):
    told = outcomes(ledger)
    for drafts in told.values():
        operation = ledger.operation(id_of(drafts))
        if operation.subject_ref is not None:
            found = ledger.unknown_on_subject(operation.account.key, operation.subject_ref)
            assert found == ([operation] if operation.state == "unknown" else [])
            assert ledger.unknown_on_subject("somebody@else:22", operation.subject_ref) == []


def test_sessions_are_known_by_their_opening(ledger):
    put(ledger, [session("a", 1), replace(session("b", 1), body=events.PolicyLoaded("d", None))])
    assert ledger.session_exists("ses_a_1")
    assert not ledger.session_exists("ses_b_1")


def test_operations_are_listed_newest_first_by_sequence_and_paged(ledger):
    fill(ledger, 3000)
    every = ledger.operations()
    first = {name: seq for seq, name in reversed([(e.seq, e.operation_id) for e in ledger.events()])}
    assert [o.operation_id for o in every] == sorted((o.operation_id for o in every), key=lambda n: -first[n])
    for filters in ({}, {"state": "succeeded"}, {"host": every[0].account.host}, {"unresolved": True},
                    {"state": "failed", "host": every[7].account.host}):  # fmt: skip
        expected = [
            o
            for o in every
            if o.state == filters.get("state", o.state)
            and o.account.host == filters.get("host", o.account.host)
            and (o.unresolved or "unresolved" not in filters)
        ]
        if "unresolved" in filters:
            expected.reverse()
        assert ledger.operations(**filters) == expected
        pages, before = [], None
        while page := ledger.operations(**filters, limit=7, before=before):
            assert len(page) <= 7
            pages += page
            before = page[-1].operation_id
        assert pages == expected


def test_paging_from_an_operation_that_is_not_there_is_refused(ledger):
    with pytest.raises(errors.UsageError, match="op-nobody-knows"):
        ledger.operations(before="op-nobody-knows")


def test_a_clock_that_goes_back_changes_no_order_and_no_state(ledger):
    world = synthesis()
    for index, year in enumerate(("2099", "1970", "2026")):
        drafts = tell(world, index)
        put(ledger, [replace(d, at=year + d.at[4:], operation_id=d.operation_id and f"op-{year}") for d in drafts])
    assert [o.operation_id for o in ledger.operations()] == ["op-2026", "op-1970", "op-2099"]
    assert {o.state for o in ledger.operations()} == {"succeeded", "failed"}
    assert ledger.verify().ok


# -- marker stores -----------------------------------------------------------------------------------------------------


def claim(world: Synthesis, name: str) -> list[Draft]:
    """An operation whose claim was seen; all on one account."""
    return [
        draft
        for draft in tell(world, 0, operation_id=name)
        if not isinstance(draft.body, events.BoundarySeen) or draft.body.boundary == Boundary.CLAIMED
    ]


@pytest.fixture
def one_account(monkeypatch):
    """A world of one host, and writes only."""
    from sshop.ledger import fill as room

    monkeypatch.setattr(room, "HOSTS", 1)
    world = synthesis()
    monkeypatch.setattr(world.random, "choice", lambda options: options[-1])
    return world


KEY = "ops@192.0.2.0:22"
OLD, NEW = "op_01kdvdn9tsg6h3d4rn5b3v0000", "op_01kdvdnrq24b5v2j9r9cdv0000"


def test_a_store_that_was_never_met_is_unknown(ledger):
    assert ledger.store(KEY) is None


def test_the_newest_minted_witness_is_kept_and_the_last_brought_one(ledger, one_account):
    held = []
    for name in ("mine-1", NEW, OLD, "mine-2"):
        put(ledger, claim(one_account, name))
        store = ledger.store(KEY)
        held.append((store.witness_minted, store.witness_brought))
    assert held == [(None, "mine-1"), (NEW, "mine-1"), (NEW, "mine-1"), (NEW, "mine-2")]


def test_another_store_has_no_witness_yet_and_the_same_keeps_its_own(ledger, one_account):
    put(ledger, claim(one_account, "mine-1"))
    store = ledger.store(KEY)
    met = events.StoreMet(KEY, store.store_id, "other-machine", "unsynced")
    put(ledger, [one_account.draft(met)])
    assert ledger.store(KEY) == replace(store, machine="other-machine", grade="unsynced")
    put(ledger, [one_account.draft(replace(met, store_id="f" * 32))])
    assert ledger.store(KEY).witness_brought is None
    assert ledger.store(KEY).store_id == "f" * 32
    assert ledger.verify().ok


def test_a_claim_seen_in_another_store_or_without_a_record_is_no_witness(ledger, one_account):
    put(ledger, claim(one_account, "mine-1"))
    before = ledger.store(KEY)
    for name, change in (("mine-2", {"store_id": "f" * 32}), ("mine-3", {"record_id": None}),
                         ("mine-4", {"seen_by": "runner"}), ("mine-5", {"boundary": "request_sent"})):  # fmt: skip
        drafts = [
            replace(d, body=replace(d.body, **change)) if isinstance(d.body, events.BoundarySeen) else d
            for d in claim(one_account, name)
        ]
        put(ledger, drafts)
        assert ledger.store(KEY) == before, name


# -- the secret key ----------------------------------------------------------------------------------------------------


def test_the_secret_key_is_made_once_and_stands_nowhere_in_the_history(implementation, location, ledger):
    key_id, key = ledger.secret_key()
    assert len(key) == 32
    assert ledger.secret_key() == (key_id, key)
    other = implementation.open(location)
    assert other.secret_key() == (key_id, key)
    other.close()
    assert list(ledger.events()) == []


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_a_good_ledger_verifies_against_every_head_that_it_ever_had(ledger):
    heads = [ledger.head()]
    world = synthesis()
    for number in range(len(DECK)):
        put(ledger, tell(world, number))
        heads.append(ledger.head())
    for head in heads:
        assert ledger.verify(head=head) == Verification(ok=True, events=heads[-1][0], head=heads[-1][1])


def test_a_head_that_was_another_is_an_edited_history_and_one_beyond_the_end_a_cut_off_one(ledger):
    put(ledger, [session("a", 1), session("a", 2)])
    assert ledger.verify(head=(1, "0" * 64)).fault == (1, "edited")
    assert ledger.verify(head=(4, "0" * 64)).fault == (3, "cut_off")


def test_rebuilding_changes_nothing_that_was_right(ledger):
    told = outcomes(ledger)
    before = ledger.operations()
    stores = {o.account.key: ledger.store(o.account.key) for o in before}
    assert ledger.rebuild() == len(told)
    assert ledger.operations() == before
    assert {key: ledger.store(key) for key in stores} == stores
    assert ledger.verify().ok


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kinds=st.lists(st.integers(0, len(DECK) - 1), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    group=st.integers(1, 30),
    cut=st.integers(0, 12),
    brought=st.booleans(),
)
def test_fold_projection_and_rebuilt_agree_for_any_history(  # noqa: PLR0917 -- what hypothesis chooses
    implementation, tmp_path_factory, kinds, seed, group, cut, brought
):
    location = implementation.place(tmp_path_factory.mktemp("any"))
    ledger = implementation.open(location)
    world = Synthesis(seed)
    world.session = "ses_any"
    told = [tell(world, kind, operation_id=f"own-{i}" if brought else None) for i, kind in enumerate(kinds)]
    drafts = list(interleave(told, seed))
    drafts = drafts[: len(drafts) - cut]
    for start in range(0, len(drafts), group):
        put(ledger, drafts[start : start + group])
    verification = ledger.verify()
    assert verification.ok, verification
    assert verification.events == len(drafts)
    names = list(dict.fromkeys(d.operation_id for d in drafts if d.operation_id is not None))
    kept = [ledger.operation(name) for name in names]
    fresh = implementation.open(location)  # which has nothing in memory
    assert [fresh.operation(name) for name in names] == kept
    assert kept == [lifecycle.fold(ledger.events(name)) for name in names]
    assert ledger.rebuild() == len(names)
    assert [fresh.operation(name) for name in names] == kept
    assert ledger.verify() == verification
    for opened in (fresh, ledger):
        opened.close()


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("processes", "count"), [(8, 50), (32, 25)])
def test_many_processes_write_one_line_of_links_while_others_verify_and_list(
    implementation, location, ledger, processes, count
):
    told = 0
    with writers(location, processes, count) as started:
        while any(process.poll() is None for process in started):
            verification = ledger.verify()
            assert verification.ok, verification
            assert verification.events >= told
            told = verification.events
            assert ledger.operations() == []
        answers = [process.communicate() for process in started]
    assert [error for _, error in answers if error] == []
    assert [process.returncode for process in started] == [0] * processes
    written = sorted(int(line) for output, _ in answers for line in output.split())
    assert written == list(range(1, processes * count + 1))
    assert ledger.verify().events == processes * count
    assert len({event.id for event in ledger.events()}) == processes * count


def test_writers_that_are_killed_leave_a_whole_chain_with_all_that_they_had_promised(ledger, location):
    promised = set()
    with writers(location, 6, 100_000) as started:
        for round_, process in enumerate(started):
            for _ in range(15 + round_ * 7):
                promised.add(int(process.stdout.readline()))
            process.kill()
            promised.update(int(line) for line in process.stdout.read().split("\n")[:-1])
    verification = ledger.verify()
    assert verification.ok
    assert promised <= set(range(1, verification.events + 1))
    put(ledger, [session("after", 1)])
    assert ledger.verify().events == verification.events + 1


def test_a_decision_is_made_on_what_no_other_writer_can_change(implementation, location, ledger):
    with writers(location, 1, 200) as (process,):
        for number in range(50):

            def decide(view, number=number):
                before = view.head()
                assert view.head() == before
                return [session("mine", number)]

            ledger.append(decide)
        assert process.wait(60) == 0
    assert ledger.verify().events == 250
