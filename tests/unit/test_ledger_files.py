"""Whatever stands where the ledger should be: a clear error of the right class that names the file, or a ledger."""

import errno
import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sshop import errors
from sshop.ledger import driver_errors, schema
from sshop.ledger.fill import fill
from sshop.ledger.sqlite import SqliteLedger
from tests.support.ledger_writer import session
from tests.support.ledgers import REPOSITORY
from tests.support.tools import missing, require_root


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a ledger of 300 events lies, closed."""
    path = str(tmp_path / "ledger.db")
    ledger = SqliteLedger.open(path)
    fill(ledger, 300)
    ledger.close()
    return path


def refused(path: str | Path, cls: type[errors.SshopError], *, act=None, **options) -> errors.SshopError:
    """The error that opening raises, or what is done then; of that very class, naming the file, with a hint."""

    def trial() -> None:
        with closing(SqliteLedger.open(path, **options)) as ledger:
            act(ledger)

    with pytest.raises(errors.SshopError) as caught:
        trial()
    assert type(caught.value) is cls, caught.value
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def append(ledger: SqliteLedger, number: int = 1) -> None:
    ledger.append(lambda view: [session("late", number)])


# -- a new ledger ------------------------------------------------------------------------------------------------------


def test_a_new_ledger_and_its_folders_are_private(tmp_path):
    path = tmp_path / "deep" / "er" / "ledger.db"
    old = os.umask(0)
    try:
        ledger = SqliteLedger.open(path)
        append(ledger)
        ledger.secret_key()
        for folder in (tmp_path / "deep", tmp_path / "deep" / "er"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        names = {entry.name for entry in path.parent.iterdir()}
        assert {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.key"} <= names
        for entry in path.parent.iterdir():
            assert stat.S_IMODE(entry.stat().st_mode) == 0o600, entry
        ledger.close()
    finally:
        os.umask(old)


def test_a_missing_ledger_is_not_made_where_it_should_only_be_read(tmp_path):
    refused(tmp_path / "ledger.db", errors.LedgerError, create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_the_signs_of_an_address_is_a_name(tmp_path):
    for name in ("a?mode=memory", "a#b", "a%20b", "a b", "ü", ":memory:", "-x"):
        ledger = SqliteLedger.open(tmp_path / name)
        append(ledger)
        ledger.close()
        assert (tmp_path / name).stat().st_size > 0


def test_a_relative_name_is_taken_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = SqliteLedger.open("ledger.db")
    append(ledger)
    ledger.close()
    assert (tmp_path / "ledger.db").exists()


def test_an_empty_file_becomes_a_ledger(tmp_path):
    (tmp_path / "ledger.db").touch()
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    append(ledger)
    assert ledger.verify().ok
    ledger.close()


def test_many_who_make_the_same_ledger_at_once_make_one(tmp_path):
    from tests.support.ledgers import writers

    path = str(tmp_path / "ledger.db")
    with writers(path, 12, 3) as started:
        answers = [process.communicate() for process in started]
    assert [error for _, error in answers if error] == []
    ledger = SqliteLedger.open(path, create=False)
    assert ledger.verify().events == 36
    ledger.close()


def test_many_who_ask_for_the_first_secret_key_at_once_get_the_same(tmp_path):
    code = "import sys; from sshop.ledger.key import load_key\nsys.stdin.read(1); print(load_key(sys.argv[1]))"
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "ledger.db")], cwd=REPOSITORY, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(8)
    ]  # fmt: skip
    for process in started:
        process.stdin.write("x")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in started}) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.db.key"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key": "00", "key_id": "k"}', '{"key": 7, "key_id": "k"}', "\xff"])
def test_a_broken_secret_key_is_refused_and_never_replaced(path, text):
    key = Path(f"{path}.key")
    key.write_text(text)
    error = refused(path, errors.LedgerCorrupt, act=SqliteLedger.secret_key)
    assert str(key) in error.message
    assert key.read_text() == text


# -- what cannot be a ledger -------------------------------------------------------------------------------------------


def test_a_folder_in_its_place(tmp_path):
    (tmp_path / "ledger.db").mkdir()
    refused(tmp_path / "ledger.db", errors.LedgerError)


def test_a_file_in_the_place_of_its_folder(tmp_path):
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "ledger.db", errors.LedgerError)


def test_a_link_to_nowhere_and_a_loop_of_links(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / "loop", errors.LedgerReadOnly)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "ledger.db")
    refused(tmp_path / "nowhere", errors.LedgerReadOnly)


def test_a_name_that_is_too_long(tmp_path):
    refused(tmp_path / ("x" * 300), errors.LedgerError)


def test_a_folder_that_nobody_can_make():
    refused("/proc/nowhere/ledger.db", errors.LedgerError)


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"dear diary\n" * 1000)
    refused(path, errors.LedgerCorrupt)
    assert path.read_bytes() == b"dear diary\n" * 1000


@pytest.mark.parametrize("version", [0, schema.VERSION])
def test_a_database_of_another_program_is_left_alone(tmp_path, version):
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.executescript(f"CREATE TABLE diary (day TEXT); PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    refused(path, errors.LedgerCorrupt)
    assert path.read_bytes() == before


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_broken_header(path):
    with open(path, "r+b") as file:
        file.write(b"\0" * 16)
    refused(path, errors.LedgerCorrupt)


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.1])
def test_a_file_that_was_cut_short(path, kept):
    size = os.path.getsize(path)
    os.truncate(path, int(size * kept))
    refused(path, errors.LedgerCorrupt, act=append)
    refused(path, errors.LedgerCorrupt, act=SqliteLedger.verify)


def test_pages_that_were_wiped(path):
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (os.path.getsize(path) - 8192))
    refused(path, errors.LedgerCorrupt, act=SqliteLedger.verify)
    refused(path, errors.LedgerCorrupt, act=append)


def test_tables_that_are_gone(path):
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE operations")
    connection.close()
    refused(path, errors.LedgerCorrupt, act=lambda ledger: ledger.operation("op-1"))


def test_a_projection_or_an_event_that_cannot_be_read_says_what_to_do(path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE operations SET value = '{}'")
    connection.commit()
    connection.close()
    ledger = SqliteLedger.open(path)
    with pytest.raises(errors.LedgerCorrupt) as caught:
        ledger.operations()
    assert "rebuild" in caught.value.hint
    assert ledger.verify().fault[1] == "projection"
    ledger.rebuild()
    assert ledger.verify().ok
    ledger.close()


def crash(path: str, count: int) -> None:
    """Append so many events and die before anything is checkpointed: all of them stand in the -wal file."""
    code = (
        "import os, sys; from sshop.ledger.sqlite import SqliteLedger\n"
        "from tests.support.ledger_writer import session\n"
        "ledger = SqliteLedger.open(sys.argv[1])\n"
        "for n in range(int(sys.argv[2])): ledger.append(lambda view: [session('crash', n)])\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, path, str(count)], cwd=REPOSITORY, check=True)


def test_a_torn_last_record_is_reported_once_and_nothing_else_is_lost(path):
    crash(path, 5)
    wal = f"{path}-wal"
    os.truncate(wal, os.path.getsize(wal) - 1000)
    ledger = SqliteLedger.open(path)
    assert "torn" in ledger.notice
    assert path in ledger.notice
    assert ledger.verify().events == 304
    append(ledger)
    assert ledger.verify().events == 305
    assert next(ledger.events(after=304)).session_id == "ses_late_1"
    again = SqliteLedger.open(path)
    assert again.notice is None
    again.close()
    ledger.close()


@pytest.mark.parametrize("part", range(8))
def test_a_write_ahead_file_that_was_cut_anywhere_leaves_the_events_before_it(path, part):
    crash(path, 5)
    wal = f"{path}-wal"
    os.truncate(wal, os.path.getsize(wal) * part // 8 + part)
    ledger = SqliteLedger.open(path)
    verification = ledger.verify()
    assert verification.ok
    assert 300 <= verification.events <= 305
    append(ledger)
    assert ledger.verify().events == verification.events + 1
    ledger.close()


def test_a_crash_alone_tears_nothing(path):
    crash(path, 5)
    ledger = SqliteLedger.open(path)
    assert ledger.notice is None
    assert ledger.verify().events == 305
    ledger.close()


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(path):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    before = Path(path).read_bytes()
    error = refused(path, errors.LedgerNewer)
    assert str(schema.VERSION + 1) in error.message
    assert Path(path).read_bytes() == before


def test_a_ledger_of_the_first_version_is_migrated_with_all_it_holds(path, tmp_path):
    old = older(path, tmp_path)
    now, then = SqliteLedger.open(path), SqliteLedger.open(old)
    assert list(then.events()) == list(now.events())
    assert then.operations() == now.operations()
    assert then.verify() == now.verify()
    append(then)
    assert then.verify().ok
    assert shape(old) == shape(path)
    for ledger in (now, then):
        ledger.close()


def test_a_migration_that_fails_leaves_the_older_ledger_as_it_was(path, tmp_path, monkeypatch):
    old = older(path, tmp_path)
    before = shape(old)
    monkeypatch.setitem(schema.MIGRATIONS, 1, (*schema.MIGRATIONS[1], "CREATE TABLE events (seq INTEGER)"))
    refused(old, errors.LedgerCorrupt)
    assert shape(old) == before
    monkeypatch.undo()
    ledger = SqliteLedger.open(old)
    assert ledger.verify().ok
    ledger.close()


def older(path: str, folder: Path) -> str:
    """A ledger of version 1 with the events of another."""
    old = str(folder / "old.db")
    connection = sqlite3.connect(old)
    connection.executescript((REPOSITORY / "tests" / "vectors" / "ledger_v1.sql").read_text())
    connection.execute("ATTACH ? AS now", (path,))
    connection.execute("INSERT INTO events SELECT * FROM now.events")
    connection.commit()
    connection.close()
    return old


def shape(path: str) -> set[tuple]:
    connection = sqlite3.connect(path)
    found = {
        (kind, name, " ".join((sql or "").split()))
        for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master")
    }
    found.add(("version", connection.execute("PRAGMA user_version").fetchone()[0]))
    connection.close()
    return found


# -- locked, read-only, full -------------------------------------------------------------------------------------------


def test_a_ledger_that_stays_locked_is_refused_after_the_time_limit_and_can_still_be_read(path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    refused(path, errors.LedgerLocked, act=append, wait=0.2)
    ledger = SqliteLedger.open(path, wait=0.2)
    assert len(ledger.operations()) > 0
    holder.execute("ROLLBACK")
    append(ledger)
    assert ledger.verify().events == 301
    ledger.close()
    holder.close()


def test_who_waits_in_the_queue_for_a_process_that_was_stopped_gives_up_and_takes_nothing_later(path):
    import fcntl

    stopped = os.open(f"{path}-turn", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    first, second = SqliteLedger.open(path, wait=0.2), SqliteLedger.open(path, wait=30)
    with pytest.raises(errors.LedgerLocked, match=r"ledger\.db"):
        append(first)
    os.close(stopped)
    append(second)  # the turn that came too late was given back
    append(first)
    assert first.verify().events == 302
    for ledger in (first, second):
        ledger.close()


def as_nobody(code: str, *arguments: str) -> str:
    """What Python prints as a user who owns nothing."""
    require_root()
    nobody = pwd.getpwnam("nobody")
    prelude = (
        "import sys; sys.dont_write_bytecode = True\n"
        "from sshop import errors; from sshop.ledger.sqlite import SqliteLedger\n"
        "from tests.support.ledger_writer import session\n"
        "import os, sqlite3; path = sys.argv[1]\n"
        f"os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})\n"
        "def trial(act):\n"
        "    try: return act()\n"
        "    except errors.SshopError as e: return type(e).__name__ + ' ' + str(path in e.message and bool(e.hint))\n"
    )
    done = subprocess.run([sys.executable, "-c", prelude + code, *arguments], cwd=REPOSITORY, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.stderr == ""
    return done.stdout


READ = (
    "ledger = SqliteLedger.open(path)\n"
    "print(ledger.verify().events, len(ledger.operations()) > 0, sum(1 for _ in ledger.events()))\n"
    "print(trial(lambda: ledger.append(lambda view: [session('late', 1)])))\n"
    "print(trial(ledger.rebuild))\n"
)


@pytest.fixture
def shared(path, tmp_path_factory):
    """A copy that others may read but not write, in a folder that they may not write either."""
    folder = Path(f"/var/tmp/sshop-ledger-{os.getpid()}")  # pytest's own folders cannot be entered by others
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    shutil.copy(path, folder / "ledger.db")
    os.chmod(folder / "ledger.db", 0o644)
    yield folder / "ledger.db"
    shutil.rmtree(folder)


def test_a_copy_that_may_only_be_read_can_be_read_and_verified(shared):
    assert as_nobody(READ, str(shared)) == "300 True 300\nLedgerReadOnly True\nLedgerReadOnly True\n"


def test_a_file_that_may_only_be_read_in_a_folder_that_may_be_written(shared):
    shared.parent.chmod(0o777)
    assert as_nobody(READ, str(shared)) == "300 True 300\nLedgerReadOnly True\nLedgerReadOnly True\n"


def test_a_ledger_in_use_by_another_account_can_be_read(shared):
    ledger = SqliteLedger.open(shared)
    append(ledger)
    for entry in shared.parent.iterdir():
        entry.chmod(0o644)
    assert as_nobody(READ, str(shared)) == "301 True 301\nLedgerReadOnly True\nLedgerReadOnly True\n"
    ledger.close()


def test_a_copy_whose_newest_events_cannot_be_reached_is_not_read_as_if_it_were_whole(shared):
    crash(str(shared), 5)
    shared.with_name("ledger.db-shm").unlink()
    shared.with_name("ledger.db-wal").chmod(0o644)
    assert as_nobody("print(trial(lambda: SqliteLedger.open(path)))", str(shared)) == "LedgerReadOnly True\n"


def test_a_ledger_that_may_not_be_read_or_made(shared):
    shared.chmod(0o600)
    assert as_nobody("print(trial(lambda: SqliteLedger.open(path)))", str(shared)) == "LedgerReadOnly True\n"
    for name in (shared.with_name("new.db"), shared.parent / "new" / "new.db", Path("/nonexistent/.local/ledger.db")):
        assert as_nobody("print(trial(lambda: SqliteLedger.open(path)))", str(name)) == "LedgerReadOnly True\n"


def test_an_older_ledger_that_may_only_be_read_is_refused(path, tmp_path, shared):
    shutil.copy(older(path, tmp_path), shared)
    shared.chmod(0o644)
    assert as_nobody("print(trial(lambda: SqliteLedger.open(path)))", str(shared)) == "LedgerReadOnly True\n"


FULL = (
    "import sys; from sshop import errors; from sshop.ledger.sqlite import SqliteLedger\n"
    "from tests.support.ledger_writer import session\n"
    "path = sys.argv[1]; ledger = SqliteLedger.open(path); done = 0\n"
    "try:\n"
    "    while True: ledger.append(lambda view: [session('full', done)]); done += 1\n"
    "except errors.LedgerFull as error: assert path in error.message and error.hint, error\n"
    "print(done, ledger.verify().events, ledger.head()[0])\n"
)


def filled(output: str) -> int:
    """How many appends were promised before the space ended; they are all there, and no other."""
    promised, verified, head = map(int, output.split())
    assert promised == verified == head
    return promised


def test_a_file_size_limit_keeps_what_was_promised(tmp_path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n" + FULL
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "ledger.db")], cwd=REPOSITORY, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.stderr == ""
    promised = filled(done.stdout)
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    assert ledger.verify().events == promised
    append(ledger)
    assert ledger.verify().events == promised + 1
    ledger.close()


def test_a_full_disk_keeps_what_was_promised_and_goes_on_when_there_is_space_again(tmp_path):
    require_root()
    unshare = shutil.which("unshare")
    if unshare is None:
        missing("unshare is not installed")
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$1" && "$2" -c "$3" "$1/ledger.db" && '
        'mount -o remount,size=8m "$1" && "$2" -c "$4" "$1/ledger.db"'
    )
    go_on = (
        "import sys; from sshop.ledger.sqlite import SqliteLedger; from tests.support.ledger_writer import session\n"
        "ledger = SqliteLedger.open(sys.argv[1]); ledger.append(lambda view: [session('late', 1)])\n"
        "print(ledger.verify().ok, ledger.head()[0])"
    )
    done = subprocess.run([unshare, "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL, go_on],
                          cwd=REPOSITORY, text=True, capture_output=True, check=False)  # fmt: skip
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert second == f"True {filled(first) + 1}"


def test_a_database_that_may_not_grow_keeps_what_was_promised(path):
    ledger = SqliteLedger.open(path)
    ledger._connection.execute("PRAGMA max_page_count = 1")
    done = 0

    def append_for_ever() -> None:
        nonlocal done
        while True:
            append(ledger, done)
            done += 1

    with pytest.raises(errors.LedgerFull, match=path):
        append_for_ever()
    assert ledger.verify().events == 300 + done
    ledger._connection.execute("PRAGMA max_page_count = 1000000")
    append(ledger)
    assert ledger.verify().ok
    ledger.close()


# -- the tables of errors ----------------------------------------------------------------------------------------------


def codes() -> dict[str, int]:
    """All result codes that this Python knows by name."""
    others = (
        *("SQLITE_OK", "SQLITE_ROW", "SQLITE_DONE", "SQLITE_NOTICE", "SQLITE_WARNING"),
        *("SQLITE_DENY", "SQLITE_IGNORE", "SQLITE_LIMIT", "SQLITE_CREATE", "SQLITE_DROP", "SQLITE_ALTER"),
    )
    return {
        name: code
        for name, code in vars(sqlite3).items()
        if name.startswith("SQLITE_") and isinstance(code, int) and not name.startswith(others)
    }


@pytest.mark.parametrize("name", sorted(codes()))
def test_every_result_code_of_the_driver_has_an_error_of_ours(name):
    cls, words, _ = driver_errors.row_of_sqlite(codes()[name])
    assert issubclass(cls, (errors.LedgerError, errors.Fault))
    assert words


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_error_of_the_system_has_an_error_of_ours(number):
    error = driver_errors.ledger_error("/some/ledger.db", OSError(number, os.strerror(number), "/some"))
    assert isinstance(error, errors.LedgerError)
    assert "/some/ledger.db" in error.message


def test_rows_of_the_tables_have_a_hint_where_a_person_can_do_something():
    for table in (driver_errors.SQLITE, driver_errors.SYSTEM):
        for cls, words, hint in table.values():
            assert hint or (cls is errors.LedgerError and words)
