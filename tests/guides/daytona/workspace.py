"""An agent's workspace: name, labels, environment, timers, and the stop, start and restart of it."""

import os

from atoll_sandbox.daytona import CreateSandboxParams, Daytona, DaytonaConfig

daytona = Daytona(DaytonaConfig(api_key=os.environ["ATOLL_API_KEY"]))
sandbox = daytona.create(
    CreateSandboxParams(
        language="python",
        name="agent-workspace",
        env={"MODE": "test"},
        labels={"agent": "one"},
        auto_stop_interval=30,
        auto_archive_interval=60,
        auto_delete_interval=120,
        public=True,
    )
)
assert (sandbox.name, sandbox.labels["agent"]) == ("agent-workspace", "one")
timers = [sandbox.raw[f"auto{what}Interval"] for what in ("Stop", "Archive", "Delete")]
assert timers == [30, 60, 120] and sandbox.raw["public"] is True, sandbox.raw
assert sandbox.process.code_run("import os; print(os.environ['MODE'])").result == "test\n"
sandbox.process.execute_command("echo kept > ~/kept")
sandbox.stop()
assert sandbox.state == "stopped"
sandbox.start()
sandbox.restart()
assert sandbox.process.execute_command("cat ~/kept").result == "kept\n"
sandbox.resize(cpu=2.0, memory=2.0)
assert (sandbox.cpu, sandbox.memory) == (2, 2)
daytona.delete(sandbox)

# Tests in CI: deleted when it stops.
once = daytona.create(CreateSandboxParams(auto_delete_interval=0))
once.process.execute_command("true")
daytona.delete(once)
