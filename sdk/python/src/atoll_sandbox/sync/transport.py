# Made from ../aio/transport.py by scripts/generate.py; do not edit.

"""HTTP: one connection pool, errors by kind, retries, streams. Knows no noun of the API."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import AtollError, ConnectionFailedError, InternalError, RequestTimeoutError, error_of, error_of_event
from ..retries import is_passing, wait_s
from ..server_events import EventParser, ServerEvent
from ..version import USER_AGENT
from ..waiting import sleep

if TYPE_CHECKING:
    import ssl

    import httpx

# The read timeout of calls whose answer comes when the work is done: a create that pulls an image, a snapshot, a fork.
LONG_S = 600.0
CONNECT_S = 10.0

Query = Mapping[str, Any]


class Transport:
    """Sends requests. The pool of connections is opened by the first one."""

    def __init__(self, url: str, api_key: str, timeout: float, max_retries: int, ca: str | None) -> None:
        self.url = url
        self.timeout = timeout
        self._ca = ca
        # Threads share a client.
        self._opening = threading.Lock()
        self.headers = {"Authorization": f"Bearer {api_key}", "User-Agent": USER_AGENT}
        self._max_retries = max_retries
        self._client: httpx.Client | None = None

    def client(self) -> httpx.Client:
        """The pool of connections."""
        with self._opening:
            if self._client is None:
                # Imported here: it takes longer than the whole rest of this package.
                import httpx

                limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
                self._client = httpx.Client(
                    base_url=self.url, headers=self.headers, verify=self.tls() or False, limits=limits
                )
            return self._client

    def tls(self) -> ssl.SSLContext | None:
        """Whom to trust, for an address with TLS. Loading the certificates takes 20 ms, which a plain one does not need."""
        if not self.url.startswith("https:"):
            return None
        import ssl

        return ssl.create_default_context(cafile=self._ca)

    def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def json(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends a request and returns the JSON of the answer, `None` if there is none."""
        answer = self.request(
            method,
            path,
            query=query,
            body=body,
            content=content,
            headers=headers,
            idempotent=idempotent,
            timeout=timeout or self.timeout,
        )
        return decode(answer) if answer.content else None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        timeout: float | None,
    ) -> httpx.Response:
        """Sends a request and returns the whole answer. Sends it again if that is safe and may help.

        `timeout` is how long the server may be silent; `None` is without end.
        """
        replayable = content is None or isinstance(content, bytes)
        safe = replayable and (method in ("GET", "PUT", "DELETE") if idempotent is None else idempotent)
        for attempt in range(self._max_retries + 1):
            try:
                response = self._send(method, path, query, body, content, headers, timeout)
                read_body(response)
                if response.is_success or (attempt > 0 and method == "DELETE" and response.status_code == 404):
                    # A repeated DELETE that finds nothing: the first one arrived after all.
                    return response
                error, retry_after = failure(response), response.headers.get("retry-after")
            except AtollError as failed:
                error, retry_after = failed, None
            wait = wait_s(attempt + 1, retry_after) if attempt < self._max_retries else None
            if wait is None or not replayable or not may_help(error, safe):
                raise error
            sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[httpx.Response, None]:
        """Sends a request and gives the answer before its body has come."""
        response = self.open(method, path, query=query, body=body, headers=headers)
        try:
            yield response
        finally:
            response.close()

    def open(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The same for an answer that outlives the call; the caller closes it. There is no limit on silence."""
        response = self._send(method, path, query, body, None, headers, None)
        if not response.is_success:
            try:
                read_body(response)
                raise failure(response)
            finally:
                response.close()
        return response

    def events(
        self, method: str, path: str, *, query: Query | None = None, body: Any = None
    ) -> Generator[ServerEvent, None]:
        """Follows server-sent events until the server ends them. The event `error` is raised."""
        with self.stream(method, path, query=query, body=body) as response:
            for event in parse_events(response):
                yield event

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Any,
        content: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> httpx.Response:
        import httpx

        client = self.client()
        request = client.build_request(
            method,
            path,
            params={name: text(value) for name, value in query.items() if value is not None} if query else None,
            json=body,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_S),
        )
        try:
            return client.send(request, stream=True)
        except httpx.TransportError as cause:
            raise translated(cause, self.url) from cause


def read_body(response: httpx.Response) -> bytes:
    """Reads the whole body."""
    import httpx

    try:
        return response.read()
    except httpx.TransportError as cause:
        raise translated(cause, str(response.url)) from cause


def read_chunks(response: httpx.Response) -> Iterator[bytes]:
    """The body as it comes."""
    import httpx

    try:
        for chunk in response.iter_bytes():
            yield chunk
    except httpx.TransportError as cause:
        raise translated(cause, str(response.url)) from cause


def parse_events(response: httpx.Response) -> Iterator[ServerEvent]:
    """The events of an answer."""
    parser = EventParser()
    for chunk in read_chunks(response):
        for event in parser.feed(chunk):
            if event.name == "error":
                raise error_of_event(event.json(), response.headers.get("x-request-id"))
            yield event


def may_help(error: AtollError, safe: bool) -> bool:
    """Whether the request should be sent again; `safe` says that a second one does no more than the first."""
    if isinstance(error, ConnectionFailedError):
        return safe or not error.sent
    return safe and is_passing(error)


def translated(cause: httpx.TransportError, url: str) -> AtollError:
    """The error for what went wrong below HTTP."""
    import httpx

    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
        hint = "is the server running? `atoll serve` starts one, ATOLL_URL names another"
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            hint = "pass the file that `atoll tls init` names as ca, or set ATOLL_CA"
        error = ConnectionFailedError(f"cannot connect to {url}: {cause}", code="connection_failed", hint=hint)
        error.sent = False
        return error
    if isinstance(cause, httpx.TimeoutException):
        hint = "pass a larger timeout to the client, or timeout_s to the call"
        return RequestTimeoutError(f"no answer from {url} in time", code="request_timeout", hint=hint)
    return ConnectionFailedError(f"the connection to {url} broke: {cause!r}", code="connection_failed")


def failure(response: httpx.Response) -> AtollError:
    """The error of an answer whose body was read."""
    try:
        body: Any = json.loads(response.content)
    except ValueError:
        body = response.text
    return error_of(response.status_code, body, response.headers.get("x-request-id"))


def decode(response: httpx.Response) -> Any:
    """The JSON of an answer."""
    try:
        return json.loads(response.content)
    except ValueError as cause:
        request_id = response.headers.get("x-request-id")
        hint = "is there something else than Atoll at this address?"
        raise InternalError("the answer is not JSON", code="bad_answer", hint=hint, request_id=request_id) from cause


def text(value: Any) -> Any:
    """A value of a query: switches are 0 or 1, lists are repeated."""
    return int(value) if isinstance(value, bool) else value
