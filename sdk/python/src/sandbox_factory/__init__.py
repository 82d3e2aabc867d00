"""Another name of `atoll_sandbox.factory`, for programs that were written for it."""

from atoll_sandbox.factory import (
    AsyncSandboxController,
    CreatedSandbox,
    DaytonaSandbox,
    E2BSandbox,
    SandboxController,
    create_sandbox,
)

__all__ = [
    "AsyncSandboxController",
    "CreatedSandbox",
    "DaytonaSandbox",
    "E2BSandbox",
    "SandboxController",
    "create_sandbox",
]
