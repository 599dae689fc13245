import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.relay import Relay

SIZE = 200_000


class Echo:
    """Sends back what it gets; remembers how much that was, and how each connection ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.received = 0
        self.ends: list[str] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += len(data)
                    connection.sendall(data)
                self.ends.append("fin")
            except OSError as error:
                self.ends.append(type(error).__name__)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.listener.close()


@pytest.fixture
def line(echo: Echo) -> Iterator[Relay]:
    with Relay(echo.port) as relay:
        yield relay


def connect(line: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", line.port), timeout=5)


def read_all(client: socket.socket) -> tuple[int, str]:
    """How many bytes come, and how it ends: `fin`, `rst` or `silence`."""
    got = 0
    try:
        while data := client.recv(65536):
            got += len(data)
    except ConnectionResetError:
        return got, "rst"
    except TimeoutError:
        return got, "silence"
    return got, "fin"


def read_exactly(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (data := client.recv(size - len(got))):
        got += data
    return got


def wait_until(true) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_an_undisturbed_relay_passes_everything_and_counts_it(line: Relay, echo: Echo) -> None:
    with connect(line) as client:
        client.sendall(b"x" * 5000)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == (5000, "fin")
    assert (line.connections, line.bytes_up, line.bytes_down) == (1, 5000, 5000)
    assert not line.fired.is_set()


@pytest.mark.parametrize("at", [0, 1, 999, 65536, SIZE - 1])
def test_a_cut_upwards_lets_exactly_n_bytes_reach_the_server(line: Relay, echo: Echo, at: int) -> None:
    line.arm(at=at, direction="up")
    with connect(line) as client:
        try:
            client.sendall(b"x" * SIZE)
        except OSError:
            pass
        assert read_all(client)[1] in ("rst", "fin")
    wait_until(lambda: echo.ends)
    assert line.fired.is_set()
    assert line.bytes_up == at
    assert echo.received == at


@pytest.mark.parametrize("at", [0, 1, 1234, 5000])
@pytest.mark.parametrize(("action", "end"), [("rst", "rst"), ("fin", "fin")])
def test_a_cut_downwards_lets_exactly_n_bytes_reach_the_client(line: Relay, at: int, action, end: str) -> None:
    line.arm(at=at, direction="down", action=action)
    with connect(line) as client:
        client.sendall(b"x" * 6000)
        assert read_all(client) == (at, end)


def test_positions_count_from_the_moment_of_arming(line: Relay) -> None:
    with connect(line) as client:
        client.sendall(b"x" * 100)
        assert read_exactly(client, 100) == b"x" * 100
        line.arm(at=50, direction="down")
        client.sendall(b"x" * 100)
        assert read_all(client) == (50, "rst")
    assert line.bytes_down == 150


def test_a_new_connection_after_a_cut_is_served(line: Relay) -> None:
    line.arm(at=0, direction="up")
    with connect(line) as client:
        client.sendall(b"x")
        assert read_all(client)[0] == 0
    with connect(line) as client:
        client.sendall(b"x" * 10)
        assert read_exactly(client, 10) == b"x" * 10
    assert line.connections == 2


def test_a_stalled_line_stays_open_and_silent_until_it_is_resumed(line: Relay) -> None:
    line.arm(at=10, direction="down", action="stall")
    with connect(line) as client:
        client.sendall(b"x" * 30)
        client.settimeout(0.3)
        assert read_all(client) == (10, "silence")
        line.resume()
        client.settimeout(5)
        assert read_exactly(client, 20) == b"x" * 20


def test_a_half_closed_line_still_carries_the_other_direction(line: Relay, echo: Echo) -> None:
    line.arm(at=7, direction="up", action="half_close")
    with connect(line) as client:
        client.sendall(b"x" * 30)
        assert read_all(client) == (7, "fin")
    assert echo.ends == ["fin"]


def test_a_delay_holds_bytes_up_once_and_loses_none(line: Relay) -> None:
    line.arm(at=5, direction="up", action="delay", delay_s=0.3)
    with connect(line) as client:
        begun = time.monotonic()
        client.sendall(b"x" * 20)
        assert read_exactly(client, 20) == b"x" * 20
        assert time.monotonic() - begun >= 0.3


def test_a_cut_on_demand_ends_every_connection(line: Relay, echo: Echo) -> None:
    with connect(line) as one, connect(line) as two:
        for client in (one, two):
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        line.cut_now()
        assert [read_all(one), read_all(two)] == [(0, "rst"), (0, "rst")]
    wait_until(lambda: len(echo.ends) == 2)


def test_a_cut_happens_as_soon_as_a_file_exists(line: Relay, tmp_path) -> None:
    marker = tmp_path / "marker"
    line.act_when(marker)
    with connect(line) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        marker.touch()
        assert read_all(client) == (0, "rst")


def test_a_pulled_cable_leaves_the_server_without_news(echo: Echo) -> None:
    with Relay(echo.port, keep_server=True) as line:
        with connect(line) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            line.cut_now()
            assert read_all(client)[0] == 0
        time.sleep(0.2)
        assert echo.ends == []


def test_a_server_that_is_not_there_is_a_reset_for_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Relay(port) as line:
        try:  # the reset may be quicker than the end of connecting
            with connect(line) as client:
                assert read_all(client) == (0, "rst")
        except ConnectionResetError:
            pass


def test_what_is_held_arrives_though_its_sender_has_left_and_new_connections_are_served(
    line: Relay, echo: Echo
) -> None:
    with connect(line) as client:
        client.sendall(b"x" * 10)
        assert read_exactly(client, 10) == b"x" * 10
        line.hold()
        client.sendall(b"y" * 5)
        time.sleep(0.1)
    with connect(line) as other:
        other.sendall(b"z" * 7)
        assert read_exactly(other, 7) == b"z" * 7
    assert echo.received == 17
    line.release()
    wait_until(lambda: echo.received == 22)
