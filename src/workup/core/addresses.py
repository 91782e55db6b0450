"""Addresses of servers: http or https, without anything that may be a secret."""

from __future__ import annotations

from urllib.parse import urlsplit


def plain_address(url: str) -> str:
    """`url` without the slash at its end.

    Raises ValueError for what is no http or https address of a host, and for one with a user, a
    password, a query or a fragment. The reason quotes nothing of it.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none, or half of a bracket
        sound = False
    if not sound or " " in url:
        raise ValueError("no http:// or https:// address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "an address with a user, a password or a query may hold a secret; only environment "
            "variables may"
        )
    return url.rstrip("/")
