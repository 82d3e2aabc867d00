"""Errors: one class per kind, each with the server's code, its hint and the id of the request."""

from __future__ import annotations

from typing import Any, cast

from .generated.codes import STATUS

__all__ = [
    "AtollError",
    "AuthenticationError",
    "CommandFailedError",
    "ConflictError",
    "ConnectionFailedError",
    "ExhaustedError",
    "ForbiddenError",
    "InternalError",
    "InvalidError",
    "NotFoundError",
    "RequestTimeoutError",
    "UnavailableError",
    "UnsupportedError",
]


class AtollError(Exception):
    """Base of all errors of this package.

    `code` is one of the closed list of the server, or a word of this package (`missing_key`, `connection_failed`,
    `request_timeout`, `missing_extra`). `request_id` is also in the server's log.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "internal",
        status: int | None = None,
        hint: str | None = None,
        request_id: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.hint = hint
        self.request_id = request_id
        self.field = field

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        request = f", request {self.request_id}" if self.request_id else ""
        return f"{self.message}{hint} ({self.code}{request})"


class InvalidError(AtollError):
    """The request is malformed, or a field is wrong (400, 405, 413, 415, 416)."""


class AuthenticationError(AtollError):
    """There is no key, or an invalid one (401)."""


class ForbiddenError(AtollError):
    """The key is valid but may not do this (403)."""


class NotFoundError(AtollError):
    """The object does not exist, or belongs to another tenant (404)."""


class ConflictError(AtollError):
    """The state of the object does not allow this (409, 421)."""


class ExhaustedError(AtollError):
    """A quota, a limit or a disk is used up (429, 507)."""


class UnavailableError(AtollError):
    """The server, the sandbox or something that they need does not answer now (502, 503)."""


class UnsupportedError(AtollError):
    """This machine, provider or template cannot do it; the hint says what is missing (501)."""


class InternalError(AtollError):
    """An error of the server, or an answer that is not understood (500, 508)."""


class RequestTimeoutError(AtollError):
    """The operation took longer than its deadline, at the server (408, 504) or in this client."""


class ConnectionFailedError(AtollError):
    """The server cannot be reached (`sent` is false: it has not seen the request), or the connection broke."""

    sent: bool = True


class CommandFailedError(AtollError):
    """A command ended with a code other than 0; raised only by `check()`."""

    def __init__(self, message: str, *, exit_code: int, stdout: str, stderr: str) -> None:
        super().__init__(message, code="command_failed")
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


_BY_STATUS: dict[int, type[AtollError]] = {
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    408: RequestTimeoutError,
    409: ConflictError,
    421: ConflictError,
    429: ExhaustedError,
    500: InternalError,
    501: UnsupportedError,
    502: UnavailableError,
    503: UnavailableError,
    504: RequestTimeoutError,
    507: ExhaustedError,
    508: InternalError,
}


def error_of(status: int, body: Any, request_id: str | None = None) -> AtollError:
    """The error for an answer: `body` is its JSON object, or its text if it has none (a proxy answered)."""
    fields: dict[str, Any] = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    kind = _BY_STATUS.get(status, InternalError if status >= 500 else InvalidError)
    said = f": {body[:200]}" if isinstance(body, str) and body else ""
    # Calls for several files at a Daytona server have a list of reasons instead of a message.
    reasons = cast("list[object]", fields["errors"]) if isinstance(fields.get("errors"), list) else []
    said = said or (": " + "; ".join(str(reason) for reason in reasons[:3]) if reasons else "")
    return kind(
        fields.get("message") or f"the server answered {status}{said}",
        code=fields.get("code") or ("internal" if status >= 500 else "invalid_request"),
        status=status,
        hint=fields.get("hint"),
        request_id=fields.get("request_id") or request_id,
        field=fields.get("field"),
    )


def error_of_event(body: dict[str, Any], request_id: str | None = None) -> AtollError:
    """The error for the event `error` of a stream, which has no status of its own."""
    return error_of(STATUS.get(str(body.get("code")), 500), body, request_id)
