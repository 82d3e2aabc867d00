"""Deletes sandboxes when the process that made them has ended, however it ended.

`end_with_this_process` starts a small process, which waits for the end of this one. It has a session of its own, so a
signal to the group of this process does not reach it. Deleting a sandbox that is deleted already is no error.
"""

from __future__ import annotations

import subprocess
import sys

from .errors import AtollError
from .sync.client import Atoll


def end_with_this_process(sandbox_id: str) -> None:
    """Has a sandbox of the server of `ATOLL_URL` deleted at the end of this process."""
    # The pipe is closed with this process. The key goes by the environment: others can read a command line.
    watcher = subprocess.Popen(
        [sys.executable, "-m", __name__, sandbox_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    WATCHERS.append(watcher)


# Kept until the process ends: a collected one would close its pipe.
WATCHERS: list[subprocess.Popen[bytes]] = []


def main() -> int:
    """Waits for the end of the process at the other end of stdin, and deletes the sandbox of the argument."""
    sys.stdin.buffer.read()
    try:
        with Atoll() as client:
            client.sandboxes.get(sys.argv[1]).delete()
    except AtollError:
        # Deleted already, or the server is away: then the timers of the sandbox end it.
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
