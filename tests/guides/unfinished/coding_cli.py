"""The coding CLI of Deep Agents, ended with its whole group of processes."""

import os
import signal

from atoll_sandbox.deepagents_provider import AtollProvider

AtollProvider().get_or_create()
os.kill(os.getpid(), signal.SIGKILL)
