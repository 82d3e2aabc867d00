"""A Daytona server by the names of Daytona's guide. Without another address it is the Atoll server of `ATOLL_URL`.

    from atoll_sandbox.daytona import CreateSandboxParams, Daytona, DaytonaConfig

    daytona = Daytona(DaytonaConfig(api_key=…))
    sandbox = daytona.create(CreateSandboxParams(language="python", cpu=2.0, memory=4.0))
    print(sandbox.process.code_run("print(6 * 7)").result)
    daytona.delete(sandbox)
"""

from .aio.daytona import AsyncDaytona, AsyncSandbox
from .daytona_settings import CreateSandboxParams, DaytonaConfig
from .sync.daytona import Daytona, ExecuteResponse, Process, Sandbox

__all__ = [
    "AsyncDaytona",
    "AsyncSandbox",
    "CreateSandboxParams",
    "Daytona",
    "DaytonaConfig",
    "ExecuteResponse",
    "Process",
    "Sandbox",
]
