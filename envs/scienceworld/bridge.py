"""A connection to a py4j gateway that sends several calls in one message and reads their answers together.

py4j's own client waits for every answer before it sends the next call and, with a time limit, first looks at the
socket for a tenth of a millisecond. A step of the simulator is seven calls, so that this is worth speaking the
protocol ourselves; it is one line of text a word. The Java side is py4j's, unchanged.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

STATIC = "z:"


class Ref(NamedTuple):
    """An object that the gateway keeps for us until it is told to forget it."""

    id: str


class BridgeLost(Exception):
    """The gateway is gone, or did not answer in time; the connection cannot be used again."""


class JavaError(Exception):
    """Java threw; the text names the exception."""


def call(target: Ref | str, method: str, *args: Any) -> str:
    """Return the message that calls a method of an object, or a static one of the class named."""
    name = target.id if isinstance(target, Ref) else STATIC + target
    return f"c\n{name}\n{method}\n{''.join(map(_encoded, args))}e\n"


def construct(name: str, *args: Any) -> str:
    """Return the message that makes an object of a class."""
    return f"i\n{name}\n{''.join(map(_encoded, args))}e\n"


def forget(ref: Ref) -> str:
    """Return the message that lets go of an object."""
    return f"m\nd\n{ref.id}\ne\n"


def array(name: str, size: int) -> str:
    """Return the message that makes an empty array of a class."""
    return f"a\nc\ns{name}\ni{size}\ne\n"


def _encoded(value: Any) -> str:
    match value:
        case None:
            return "n\n"
        case bool():
            return f"b{value}\n"
        case int():
            return f"i{value}\n"
        case Ref(id):
            return f"r{id}\n"
    escaped = str(value).replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
    # Lone surrogates have no UTF-8 form; nothing in the simulator is named by one.
    return f"s{escaped.encode('utf-8', 'replace').decode()}\n"


def _decoded(line: str) -> Any:
    """Return the value of one answer, ``!y`` (done) or ``!x`` (thrown) and then a letter for the kind."""
    kind, text = line[2:3], line[3:]
    match kind:
        case "s":
            return _unescaped(text)
        case "i" | "L":
            return int(text)
        case "d":
            return float(text)
        case "b":
            return text == "true"
        case "n" | "v" | "":
            return None
    return Ref(text)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    # In pieces at the escaped backslashes, so that what follows one is not read as an escape.
    pieces = (piece.replace("\\n", "\n").replace("\\r", "\r") for piece in text.split("\\\\"))
    return "\\".join(pieces)


class Bridge:
    """One connection.

    Args:
        port: port of the gateway on this machine.
        token: the gateway's password.
        limit: seconds that any answer may take.

    Raises:
        BridgeLost: there is no gateway, or it does not know the token.
    """

    def __init__(self, port: int, token: str, limit: float) -> None:
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=limit)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise BridgeLost(f"no connection: {error}") from error
        self._answers = self._socket.makefile("r", encoding="utf-8", newline="\n")
        try:
            self.send(f"A\n{token}\n")
        except (BridgeLost, JavaError) as error:
            self.close()
            raise BridgeLost(f"not let in: {error}") from error

    def send(self, *messages: str) -> list[Any]:
        """Send messages together and return what each gave: text, a number, a truth value, None or a :class:`Ref`.

        Raises:
            JavaError: one of them threw; the others were executed all the same.
            BridgeLost: the gateway is gone or late.
        """
        try:
            self._socket.sendall("".join(messages).encode())
            lines = [self._answers.readline() for _ in messages]
        except (OSError, ValueError) as error:
            raise BridgeLost(str(error) or type(error).__name__) from error
        if not all(line.endswith("\n") for line in lines):
            raise BridgeLost("the connection was closed")
        values = [_decoded(line[:-1]) for line in lines]
        for line, value in zip(lines, values, strict=True):
            if not line.startswith("!y"):
                if isinstance(value, Ref):
                    value, _ = self.send(call(value, "toString"), forget(value))
                raise JavaError(str(value).partition("\n")[0])  # the rest is where in Java
        return values

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()
