"""Who may read the pages: whoever has the link, from a browser that uses the server's own name.

Every request needs the token of a link; the first one that has it gets a cookie instead. A page
of another site can neither read ours nor have them read by the browser of somebody who is let in:
`Host` and `Origin` are checked, and a page of ours runs no script and loads nothing but our own
files. Where something can be written, it takes a request that names our own site as its `Origin`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workup.retrieval.server import known_host

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A report is one page without scripts, with its style and its figures in it.
DOCUMENT = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers would send the origin of our own forms as "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN = "token"
READER = "workup.reader"  # in a request's scope: whose link it came by
READING, WRITING = ("GET", "HEAD"), ("GET", "HEAD", "POST")  # methods
LONGEST = 16_384  # bytes of an address


@dataclass(frozen=True, slots=True)
class Gate:
    """The tokens and whose each is, the port that names the cookie, and the server's names.

    An application behind it finds in `scope[READER]` whose token a request has.
    """

    tokens: Mapping[str, str]
    port: int
    names: Collection[str]
    methods: Collection[str] = READING

    @property
    def cookie(self) -> str:
        """The cookie's name. It holds the port: browsers send cookies to all ports of a host."""
        return f"workup_view_{self.port}"

    def reader(self, text: str) -> str | None:
        """Whose token it is; None for no token. All are compared, which takes the same time."""
        given = text.encode()
        found = [
            name
            for token, name in self.tokens.items()
            if secrets.compare_digest(given, token.encode())
        ]
        return found[0] if found else None

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """`app` for those who are let in, with the headers of `HEADERS` on every answer."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            answer = self._refusal(scope) or self._welcome(scope) or app
            await answer(scope, receive, _armoured(send))

        return guarded

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not answered, if it is not."""
        headers = _headers(scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not known_host(host, self.names):
            said = f"this server is not called {host[:200]!r}; --name lets it be\n"
            return PlainTextResponse(said, 421)
        if origin is not None and origin != f"http://{host}":
            return PlainTextResponse("pages of other sites may not ask this server\n", 403)
        if scope["method"] not in self.methods:
            allowed = {"Allow": ", ".join(self.methods)}
            return PlainTextResponse("there is nothing to write here\n", 405, allowed)
        if scope["method"] not in READING and origin is None:
            return PlainTextResponse("what is written must come from a page of this server\n", 403)
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST:
            return PlainTextResponse(f"an address has at most {LONGEST} bytes\n", 414)
        return None

    def _welcome(self, scope: Scope) -> Response | None:
        """What sets the cookie or says how to get in; None if the request has the cookie."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == TOKEN]
        if given and self.reader(given[0]) is not None:
            rest = urlencode([pair for pair in query if pair[0] != TOKEN])
            # "//host" would be another site; a path of ours begins with one slash.
            path = "/" + quote(scope["path"].lstrip("/"))
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self.cookie, given[0], httponly=True, samesite="lax", path="/")
            return answer
        # Ours is a token, so that its value is not quoted. Of two of one name the first counts.
        pairs = (each.partition("=") for each in _headers(scope).get("cookie", "").split(";"))
        ours = (value.strip() for name, _, value in pairs if name.strip() == self.cookie)
        if (reader := self.reader(next(ours, ""))) is not None:
            scope[READER] = reader
            return None
        said = "this page needs the link that `workup view` printed, with its token\n"
        return PlainTextResponse(said, 403)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _armoured(send: Send) -> Callable[[Message], Awaitable[None]]:
    """Sends `HEADERS` with every answer; one that asks for the policy `DOCUMENT` gets that."""
    added = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
    asked = (b"content-security-policy", DOCUMENT.encode())

    async def armoured(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = [(name.lower(), value) for name, value in message.get("headers", ())]
            own = [pair for pair in given if pair[0] not in added]
            policy = dict([asked]) if asked in given else {}
            message = {**message, "headers": [*own, *(added | policy).items()]}
        await send(message)

    return armoured
