"""A session whose sandbox is kept: it belongs to its thread."""

import os
import signal

from agent_infra_sandbox import SandboxSession

SandboxSession.create(session_id="unfinished-kept", keep=True).open()
os.kill(os.getpid(), signal.SIGKILL)
