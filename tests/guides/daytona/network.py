"""Everything blocked, and blocked with a list: only the list."""

import os

from atoll_sandbox.daytona import CreateSandboxParams, Daytona, DaytonaConfig

daytona = Daytona(DaytonaConfig(api_key=os.environ["ATOLL_API_KEY"]))
REACHED = "import urllib.request as u; print(u.urlopen('http://203.0.113.1/', timeout=5).status)"

closed = daytona.create(CreateSandboxParams(language="python", network_block_all=True))
assert closed.process.code_run(REACHED).exit_code != 0
daytona.delete(closed)

listed = daytona.create(
    CreateSandboxParams(language="python", network_block_all=True, network_allow_list="10.0.0.0/8,172.16.0.0/12")
)
assert listed.raw["networkBlockAll"] is True, listed.raw
assert listed.raw["networkAllowList"] == "10.0.0.0/8,172.16.0.0/12", listed.raw
assert listed.process.code_run(REACHED).exit_code != 0
daytona.delete(listed)

only = daytona.create(CreateSandboxParams(network_block_all=True, network_allow_list="203.0.113.0/24"))
assert only.process.code_run(REACHED).result == "200\n"
daytona.delete(only)
