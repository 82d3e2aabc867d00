"""A sandbox at a Daytona server that is not deleted."""

import asyncio
import os
import signal

from sandbox_factory import DaytonaSandbox

os.environ["DAYTONA_SERVER_URL"] = os.environ["ATOLL_URL"] + "/daytona/api"
os.environ["DAYTONA_API_KEY"] = os.environ["ATOLL_API_KEY"]
asyncio.run(DaytonaSandbox().create())
os.kill(os.getpid(), signal.SIGKILL)
