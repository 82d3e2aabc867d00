"""Sizes are floats. A GPU is refused by name where there is none, and nothing is left behind."""

import os

from atoll_sandbox import AtollError
from atoll_sandbox.daytona import CreateSandboxParams, Daytona, DaytonaConfig

api_key = os.environ["ATOLL_API_KEY"]
daytona = Daytona(DaytonaConfig(api_key=api_key))
try:
    daytona.create(CreateSandboxParams(language="python", cpu=2.0, memory=4.0, gpu=1.0, disk=10.0))
    raise AssertionError("this machine has no GPU for sandboxes")
except AtollError as refused:
    assert refused.status == 400 and "gpu" in refused.message, refused
sandbox = daytona.create(CreateSandboxParams(language="python", cpu=2.0, memory=4.0, disk=10.0))
assert (sandbox.state, sandbox.cpu, sandbox.memory, sandbox.disk) == ("started", 2, 4, 10)
assert sandbox.process.code_run("print(6 * 7)").result == "42\n"
assert sandbox.process.execute_command("echo hello").result == "hello\n"
daytona.delete(sandbox)
