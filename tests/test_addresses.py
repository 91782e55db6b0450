"""Addresses of servers: what is taken, and that a refusal quotes nothing."""

from __future__ import annotations

import pytest

from workup.core.addresses import plain_address


@pytest.mark.parametrize(
    "url", ["http://localhost:8000/v1", "https://x.example", "http://[::1]:8/", "http://1.2.3.4"]
)
def test_an_address_of_a_host_is_taken_without_its_last_slash(url: str) -> None:
    assert plain_address(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "ftp://x", "http://", "http://x:0", "http://x:99999"),
        *("http://x:port", "http://[::1", "http://x y", "https://user:secret@x"),
        *("http://x?k=secret", "http://x#secret"),
    ],
)
def test_anything_else_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        plain_address(url)
    assert "secret@" not in str(caught.value)
    assert "k=secret" not in str(caught.value)
