"""The WebSocket protocol on the wire: frames whole and in pieces, control frames, violations, slow peers."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any

import msgspec
import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.exceptions import ConnectionClosed
from websockets.frames import apply_mask

from turngym.protocol import Answer
from turngym.server.websocket import EXTENSION, DirectWebSocket

HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
STATE = b'{"id":%d,"op":"state","items":[{"session":"nobody%s"}]}'


def frame(payload: bytes, *, first: int = 0x81, masked: bool = True) -> bytes:
    """Encode one client frame."""
    length = len(payload)
    bit = 0x80 if masked else 0
    if length < 126:
        header = bytes((first, bit | length))
    elif length < 1 << 16:
        header = struct.pack(">BBH", first, bit | 126, length)
    else:
        header = struct.pack(">BBQ", first, bit | 127, length)
    mask = os.urandom(4)
    return header + mask + apply_mask(payload, mask) if masked else header + payload


class Raw:
    """A WebSocket client made of bytes."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.socket.sendall(HANDSHAKE)
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(65536)
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.buffer += data
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def read(self) -> tuple[int, bytes]:
        """Read one frame: (first byte, payload)."""
        first, length = self._take(2)
        if length == 126:
            (length,) = struct.unpack(">H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._take(8))
        return first, self._take(length)

    def answer(self) -> Answer:
        first, payload = self.read()
        assert first == 0x81
        return msgspec.json.decode(payload, type=Answer)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()


def test_one_frame_a_packet_many_frames_a_packet_and_one_byte_a_packet(running_hub: Any) -> None:
    with Raw(running_hub.url) as client:
        client.send(frame(STATE % (1, b"")))
        assert client.answer().id == 1
        client.send(b"".join(frame(STATE % (i, b"")) for i in range(50)))
        assert [client.answer().id for _ in range(50)] == list(range(50))
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(STATE % (7, b"")):
            client.send(bytes((byte,)))
        assert client.answer().id == 7


@pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 127, 65535 - 60, 65536, 300_000])
def test_frames_of_every_length_class(running_hub: Any, size: int) -> None:
    with Raw(running_hub.url) as client:
        client.send(frame(STATE % (size, b"x" * size)) + frame(STATE % (1, b"")))
        reply = client.answer()
        assert reply.id == size
        assert reply.items[0].session == "nobody" + "x" * size
        assert client.answer().id == 1


def test_a_large_frame_in_small_pieces_with_a_frame_behind_it(running_hub: Any) -> None:
    data = frame(STATE % (5, b"y" * 100_000)) + frame(STATE % (6, b""))
    with Raw(running_hub.url) as client:
        for start in range(0, len(data), 7001):
            client.send(data[start : start + 7001])
        assert [client.answer().id, client.answer().id] == [5, 6]


def test_fragments_with_control_frames_between_them(running_hub: Any) -> None:
    whole = STATE % (3, b"")
    with Raw(running_hub.url) as client:
        client.send(frame(whole[:10], first=0x01))
        client.send(frame(b"ping?", first=0x89))
        assert client.read() == (0x8A, b"ping?")
        client.send(frame(whole[10:20], first=0x00) + frame(whole[20:], first=0x80) + frame(STATE % (4, b"")))
        assert client.answer().id == 3
        assert client.answer().id == 4


def test_binary_frames_are_read_as_json_too(running_hub: Any) -> None:
    with Raw(running_hub.url) as client:
        client.send(frame(STATE % (2, b""), first=0x82))
        assert client.answer().id == 2
        client.send(frame(bytes(range(256)), first=0x82))
        assert client.answer().error["code"] == "INVALID_REQUEST"


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("early", [0, 1, 9, 40, 1000])
async def test_data_sent_before_the_handshake_is_over_is_not_lost(early: int) -> None:
    given = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        direct = scope["extensions"][EXTENSION]
        given.append(direct.hand_over(direct.send_text))
        while (message := await receive())["type"] == "websocket.receive":
            direct.send_text(message["text"].encode())

    config = uvicorn.Config(app, ws=DirectWebSocket, ws_per_message_deflate=False, log_level="warning")
    protocol = DirectWebSocket(config, ServerState(), {})
    pipe = Pipe()
    protocol.connection_made(pipe)
    protocol.data_received(HANDSHAKE)
    data = frame(b"first") + frame(b"second") + frame(b"third")
    if early:
        protocol.data_received(data[:early])
    for _ in range(5):
        await asyncio.sleep(0)
    protocol.data_received(data[early:])
    for _ in range(10):
        await asyncio.sleep(0)
    assert given == [not early]
    assert pipe.written.partition(b"\r\n\r\n")[2] == b"\x81\x05first\x81\x06second\x81\x05third"
    protocol.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(frame(b"{}", masked=False), 1002, id="not masked"),
        pytest.param(frame(b"{}", first=0xC1), 1002, id="a reserved bit"),
        pytest.param(frame(b"{}", first=0x83), 1002, id="a reserved opcode"),
        pytest.param(frame(b"x" * 126, first=0x89), 1002, id="a long ping"),
        pytest.param(frame(b"{", first=0x01) + frame(b"}", first=0x81), 1002, id="a message inside a fragmented one"),
        pytest.param(frame(b"}", first=0x80), 1002, id="a continuation of nothing"),
        pytest.param(struct.pack(">BBQ", 0x81, 0xFF, 1 << 40), 1009, id="too long"),
        pytest.param(frame(b"", first=0x88), None, id="a farewell"),
    ],
)
def test_violations_close_the_socket_with_the_right_code(running_hub: Any, data: bytes, code: int | None) -> None:
    with Raw(running_hub.url) as client:
        client.send(data)
        first, payload = client.read()
        assert first == 0x88
        if code is not None:
            assert struct.unpack(">H", payload[:2])[0] == code
        with pytest.raises((EOFError, ConnectionError)):
            client.read()


def test_a_message_over_the_limit_is_refused(start_hub: Any) -> None:
    with start_hub(envs=("bandit",), max_body_bytes=10_000) as hub:
        with hub.socket() as client:
            client.send("x" * 10_001)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(10)
            assert closed.value.rcvd.code == 1009

        def talk(client: Any) -> None:
            client.send(["x" * 6000, "x" * 6000])  # the first half may be refused before the second is sent
            client.recv(10)

        with hub.socket() as client, pytest.raises(ConnectionClosed) as closed:
            talk(client)
        assert closed.value.rcvd.code == 1009


def test_a_peer_that_does_not_read_is_not_read_from(running_hub: Any, tools: Any) -> None:
    request = frame(STATE % (1, b"z" * 60_000))
    with Raw(running_hub.url) as client:
        client.socket.settimeout(0.5)
        sent = 0
        try:
            while sent < 400 * len(request):
                sent += client.socket.send(request[sent % len(request) :])
        except TimeoutError:
            pass
        # Buffers on the way hold some megabytes; then the hub stops reading.
        assert sent < 400 * len(request)
        client.socket.settimeout(10)
        whole, rest = divmod(sent, len(request))
        for _ in range(whole):
            assert client.answer().id == 1
        client.send(request[rest:])
        assert client.answer().id == 1


def test_a_vanished_peer_is_forgotten(running_hub: Any, tools: Any) -> None:
    tools.wait_for(lambda: not running_hub.hub.links)
    with Raw(running_hub.url) as client:
        tools.wait_for(lambda: len(running_hub.hub.links) == 1)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tools.wait_for(lambda: not running_hub.hub.links)


def test_an_answer_after_the_peer_left_is_dropped(running_hub: Any, tools: Any) -> None:

    gate = tools.gate("left")
    session = running_hub.one("create", env="odd-process", reset=True).session
    with running_hub.socket() as client:
        item = {"session": session, "action": "wait left"}
        client.send(msgspec.json.encode({"id": 1, "op": "step", "items": [item]}).decode())
        tools.wait_for(lambda: running_hub.hub.accounts[0].sessions[session].pending == 1)
    gate.open()
    tools.wait_for(lambda: running_hub.one("state", session=session).step_index == 1)


def test_no_compression_is_agreed_on(running_hub: Any) -> None:
    with running_hub.socket(compression="deflate") as client:
        assert "Sec-WebSocket-Extensions" not in client.response.headers


def test_the_plain_asgi_way_gives_the_same_answers() -> None:
    from fastapi.testclient import TestClient

    from turngym.server.app import create_app
    from turngym.server.settings import HubSettings

    with (
        TestClient(create_app(HubSettings(envs=("bandit", "odd-process")))) as client,
        client.websocket_connect("/v1/ws") as socket,
    ):
        create = {"env": "bandit", "session": "a", "reset": True, "seed": 1}
        socket.send_json({"id": 1, "op": "create", "items": [create]})
        assert socket.receive_json()["items"][0]["session"] == "a"
        socket.send_bytes(b'{"id":2,"op":"step","items":[{"session":"a","action":"Teacher"}]}')
        assert socket.receive_json()["items"][0]["terminated"]
        socket.send_json({"id": 3, "op": "create", "items": [{"env": "odd-process", "session": "b", "reset": True}]})
        assert socket.receive_json()["id"] == 3
        for number in range(300):
            item = {"session": "b" if number % 5 else "a", "action": "go"}
            socket.send_json({"id": number, "op": "step", "items": [item]})
        assert sorted(socket.receive_json()["id"] for _ in range(300)) == list(range(300))


def test_sockets_have_tcp_keep_alive(running_hub: Any, tools: Any) -> None:
    listeners = running_hub.server.servers[0].sockets
    assert listeners[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    tools.wait_for(lambda: not running_hub.hub.links)
    with running_hub.socket():
        tools.wait_for(lambda: bool(running_hub.hub.links))
        link = next(iter(running_hub.hub.links))
        accepted = link._direct.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
