"""Where a hub is: what the user's URL and API key mean."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from ..errors import InvalidRequest
from ..protocol import PREFIX

API_KEY_VARIABLE = "TURNGYM_API_KEY"
_SCHEMES = {"http": False, "ws": False, "https": True, "wss": True}


@dataclass(frozen=True)
class Address:
    """A hub's address.

    Attributes:
        secure: TLS is used.
        host: name or IP address.
        port: TCP port.
        path: where the hub is mounted, "" or "/prefix".
        api_key: key sent with every request; None sends none.
    """

    secure: bool
    host: str
    port: int
    path: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def base(self) -> str:
        """URL of the hub, without a slash at the end."""
        return f"http{self._rest}"

    @property
    def websocket(self) -> str:
        """URL of the multiplexed WebSocket."""
        return f"ws{self._rest}{PREFIX}/ws"

    @property
    def _rest(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'s' if self.secure else ''}://{host}:{self.port}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that carry the API key."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


def parse_address(url: str, env: str | None = None, api_key: str | None = None) -> tuple[Address, str | None]:
    """Take a URL apart into the hub's address and the environment it names, if it names one.

    Without ``env``, the last segment of the path is an environment ("http://host:8000/sokoban"), unless the path
    ends with a slash ("https://host/hub/"): then all of it is where the hub is mounted.

    Args:
        url: "http://host:8000", "host:8000", or with https, ws or wss.
        env: environment id named beside the URL.
        api_key: None takes the key from the environment variable TURNGYM_API_KEY.

    Raises:
        InvalidRequest: the URL or the key cannot be used.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    hint = 'Give a URL like "http://127.0.0.1:8000" or "http://127.0.0.1:8000/sokoban".'
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"{url!r:.200}: {error}.", hint=hint) from error
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(f"{url!r:.200} is no address of a hub.", hint=hint)
    path = parts.path
    if env is None and not path.endswith("/"):
        path, _, name = path.rpartition("/")
        env = name or None
    secure = _SCHEMES[parts.scheme]
    address = Address(secure, parts.hostname, port or (443 if secure else 80), path.rstrip("/"))
    key = os.environ.get(API_KEY_VARIABLE) if api_key is None else api_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidRequest("The API key holds characters that no HTTP header can carry.", hint="Check the key.")
    return replace(address, api_key=key or None), env
