"""The pure parts: events, times, retries, errors, settings."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from atoll_sandbox import (
    AtollError,
    AuthenticationError,
    CommandFailedError,
    CommandResult,
    ConflictError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from atoll_sandbox.errors import error_of, error_of_event
from atoll_sandbox.generated.codes import STATUS
from atoll_sandbox.generated.models import Awake, Event
from atoll_sandbox.model import parse_time
from atoll_sandbox.retries import MAX_WAIT_S, is_passing, wait_s
from atoll_sandbox.server_events import EventParser
from atoll_sandbox.settings import segment, server_key, server_url

WIRE = b": hello\n\nevent: stdout\r\ndata: {\"data\":\"\xc3\xa9\"}\r\nid: 7\r\n\r\ndata: one\ndata: two\n\nevent: end\n\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    parser = EventParser()
    events = [event for at in range(0, len(WIRE), size) for event in parser.feed(WIRE[at : at + size])]
    assert [(event.name, event.text, event.id) for event in events] == [
        ("stdout", '{"data":"é"}', "7"),
        ("message", "one\ntwo", "7"),
        ("end", "", "7"),
    ]
    assert events[0].json() == {"data": "é"}


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-01-02T03:04:05Z", 0),
        ("2026-01-02T03:04:05.678Z", 678000),
        ("2026-01-02T03:04:05.123456789Z", 123456),
        ("2026-01-02T05:04:05.5+02:00", 500000),
    ],
)
def test_times_of_the_api_are_parsed(text: str, micros: int) -> None:
    assert parse_time(text) == datetime(2026, 1, 2, 3, 4, 5, micros, tzinfo=timezone.utc)


def test_an_answer_keeps_unknown_fields_and_names_that_are_keywords() -> None:
    event = Event({"kind": "phase", "from": "paused", "seq": 1, "at": "2026-01-02T03:04:05Z", "new_field": 5})
    assert (event.from_, event.to, event.raw["new_field"]) == ("paused", None, 5)
    awake = Awake({"idle": True, "because": [], "next": {"at": "2026-01-02T03:04:05Z", "what": "pause"}})
    assert awake.next is not None and awake.next.at.year == 2026
    assert awake == Awake(dict(awake.raw))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_request", InvalidError),
        ("unauthenticated", AuthenticationError),
        ("sandbox_not_found", NotFoundError),
        ("phase_conflict", ConflictError),
        ("wrong_node", ConflictError),
        ("quota_exceeded", ExhaustedError),
        ("disk_full", ExhaustedError),
        ("no_capacity", UnavailableError),
        ("internal", InternalError),
    ],
)
def test_a_code_has_its_class(code: str, kind: type[AtollError]) -> None:
    body = {"code": code, "message": "what", "hint": "try", "request_id": "r1", "field": "f"}
    for error in (error_of(STATUS[code], body), error_of_event(body)):
        assert type(error) is kind
        assert (error.code, error.hint, error.request_id, error.field) == (code, "try", "r1", "f")
        assert str(error) == f"what; try ({code}, request r1)"


def test_an_answer_that_is_not_from_atoll_becomes_an_error_too() -> None:
    error = error_of(502, "<html>bad gateway</html>")
    assert isinstance(error, UnavailableError) and "bad gateway" in error.message


def test_only_errors_that_pass_are_tried_again() -> None:
    def passes(code: str) -> bool:
        return is_passing(error_of(STATUS[code], {"code": code, "message": ""}))

    assert passes("no_capacity") and passes("rate_limited")
    assert not passes("quota_exceeded") and not passes("sandbox_not_found") and not passes("port_closed")
    assert is_passing(error_of(503, "a proxy"))


def test_waits_grow_and_follow_the_server_within_reason() -> None:
    assert 0.25 <= (wait_s(1, None) or 0) <= 0.5
    assert 0.5 <= (wait_s(2, None) or 0) <= 1.0
    assert (wait_s(50, None) or 0) <= MAX_WAIT_S
    assert wait_s(1, "3") == 3.0
    assert wait_s(1, "3600") is None


def test_a_missing_key_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_API_KEY", raising=False)
    with pytest.raises(AuthenticationError) as caught:
        server_key(None)
    assert caught.value.code == "missing_key" and "atoll key create" in str(caught.value)


def test_the_address_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_URL", "http://example.test:1/")
    assert server_url(None) == "http://example.test:1"
    with pytest.raises(InvalidError):
        server_url("127.0.0.1:7070")
    assert segment("a/b:c d") == "a%2Fb%3Ac%20d"


def test_check_raises_with_the_end_of_the_output() -> None:
    result = CommandResult({"exit_code": 2, "stdout": "", "stderr": "no such thing\n", "timed_out": False})
    with pytest.raises(CommandFailedError, match="ended with code 2: no such thing"):
        result.check()
