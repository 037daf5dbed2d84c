"""API keys: who calls, and what needs no key."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

from ..errors import Unauthorized
from .sessions import Account

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Paths that need no key: what a load balancer asks."""
COOKIE = "turngym-ticket"
"""Cookie in which a browser keeps its ticket: forms and links cannot send headers."""
TICKET_S = 7 * 24 * 3600
"""Seconds that a ticket is good for."""


class Keyring:
    """Maps API keys to accounts.

    Keys are compared by their SHA-256 digests, so that the time taken tells nothing about a key.

    Args:
        keys: key name -> key; empty means that everyone shares one account and no key is asked for.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._by_digest = {_digest(key.encode()): Account(name) for name, key in keys.items()}
        self._everyone = None if keys else Account("")

    @property
    def asks(self) -> bool:
        """Whether a key is asked for."""
        return self._everyone is None

    @property
    def accounts(self) -> list[Account]:
        """All accounts."""
        return list(self._by_digest.values()) if self._everyone is None else [self._everyone]

    def account(self, headers: Iterable[tuple[bytes, bytes]], *, ticket: bool = False) -> Account:
        """Return the account of a request's raw headers (lower-case names).

        Args:
            headers: what was sent.
            ticket: whether a ticket in a cookie is as good as a key.

        Raises:
            Unauthorized: no key was sent, or one that is not known.
        """
        if self._everyone is not None:
            return self._everyone
        sent = False
        for name, value in headers:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                key = value[7:].strip()
            elif name == b"x-api-key":
                key = value.strip()
            elif name == b"cookie" and ticket and (holder := self._holder(value)) is not None:
                return holder
            else:
                continue
            sent = True
            account = self._by_digest.get(_digest(key))
            if account is not None:
                return account
        raise Unauthorized(
            "The API key is not known." if sent else "No API key was sent.",
            hint='Send the header "Authorization: Bearer KEY" or "X-API-Key: KEY".',
        )

    def ticket(self, key: str) -> str:
        """Return the ticket for a key: who, until when, and a signature by the key's digest.

        It tells nothing about the key, outlives a restart, and is void as soon as the key is changed or removed.

        Raises:
            Unauthorized: the key is not known.
        """
        account = self.account([(b"x-api-key", key.strip().encode("utf-8", "replace"))])
        digest = _digest(key.strip().encode("utf-8", "replace"))
        said = f"{account.name}.{int(time.time()) + TICKET_S}"
        return f"{said}.{_signature(digest, said)}"

    def _holder(self, cookies: bytes) -> Account | None:
        """Return the account whose ticket is among the cookies."""
        try:
            jar = SimpleCookie(cookies.decode("latin-1"))
        except CookieError:
            return None
        said, _, signature = jar[COOKIE].value.rpartition(".") if COOKIE in jar else ("", "", "")
        name, _, until = said.rpartition(".")
        if not (until.isascii() and until.isdigit()) or len(until) > 15 or int(until) < time.time():
            return None
        for digest, account in self._by_digest.items():
            good = hmac.compare_digest(_signature(digest, said).encode(), signature.encode("latin-1", "replace"))
            if account.name == name and good:
                return account
        return None


def _signature(digest: bytes, said: str) -> str:
    return hmac.new(digest, said.encode(), hashlib.sha256).hexdigest()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
