"""A sandbox of the factory that is not deleted."""

import os
import signal

from sandbox_factory import create_sandbox

create_sandbox().create()
os.kill(os.getpid(), signal.SIGKILL)
