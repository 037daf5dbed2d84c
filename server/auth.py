"""API keys: who calls, and what needs no key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from ..errors import Unauthorized
from .sessions import Account

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Paths that need no key: what a load balancer asks."""


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
    def accounts(self) -> list[Account]:
        """All accounts."""
        return list(self._by_digest.values()) if self._everyone is None else [self._everyone]

    def account(self, headers: Iterable[tuple[bytes, bytes]]) -> Account:
        """Return the account of a request's raw headers (lower-case names).

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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
