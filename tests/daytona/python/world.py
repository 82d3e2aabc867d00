"""What every test of the Daytona front shares: the official client, a sandbox per class, patience.

Started by tests/tests/daytona.rs against a real server with what `atoll env daytona` prints; DAYTONA_OTHER_KEY is a key of
another tenant. Nothing of the SDK is changed.
"""

import contextlib
import os
import threading
import time
import unittest
import uuid

from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig

#: Has a kernel and matplotlib; the default snapshot need not.
INTERPRETER = os.environ.get("DAYTONA_INTERPRETER", "code-interpreter-slim")

_client = None
_lock = threading.Lock()


def client():
    """The client that most tests share: it keeps its connections, as a user's program does."""
    global _client
    with _lock:
        if _client is None:
            _client = Daytona()
        return _client


def stranger():
    """A client of another tenant."""
    return Daytona(DaytonaConfig(api_key=os.environ["DAYTONA_OTHER_KEY"], api_url=os.environ["DAYTONA_API_URL"]))


def name(word="t"):
    return f"{word}-{uuid.uuid4().hex[:10]}"


def until(what, check, within=60.0):
    """Waits for something true and answers it."""
    deadline = time.monotonic() + within
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def refused(*statuses):
    """Some services of the SDK let the errors of its generated client through as they are; the status says it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the classes differ, the status does not
        status = getattr(error, "status_code", None) or getattr(error, "status", None)
        if status not in statuses:
            raise
    else:
        raise AssertionError(f"not refused with {statuses}")


class Case(unittest.TestCase):
    """Makes sandboxes that are gone after the test."""

    maxDiff = 4000

    def create(self, **more):
        box = client().create(CreateSandboxFromSnapshotParams(**more), timeout=120)
        self.addCleanup(self._remove, box.id)
        return box

    @staticmethod
    def _remove(ident):
        try:
            client().get(ident).delete()
        except Exception as gone:  # noqa: BLE001 - what is gone needs no end
            if "not found" not in str(gone).lower() and "no sandbox" not in str(gone).lower():
                raise

    def sh(self, command, box=None, **more):
        """Runs a command inside that must succeed, and answers what it wrote."""
        done = (box or self.box).process.exec(command, **more)
        self.assertEqual(done.exit_code, 0, f"{command}: {done.result}")
        return done.result


class Shared(Case):
    """One sandbox for all tests of a class; each works in a folder of its own."""

    params = {}

    @classmethod
    def setUpClass(cls):
        cls.box = client().create(CreateSandboxFromSnapshotParams(**cls.params), timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.box.delete()

    def setUp(self):
        self.dir = f"/tmp/{name('d')}"
        self.box.fs.create_folder(self.dir, "755")
