"""A session that is not closed."""

import os
import signal

from agent_infra_sandbox import SandboxSession

SandboxSession.create(session_id="unfinished").open()
os.kill(os.getpid(), signal.SIGKILL)
