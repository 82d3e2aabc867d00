"""A shell that stays, a long command in it, and its output while it is written."""

import asyncio

from daytona import Daytona, SessionExecuteRequest

daytona = Daytona()
sandbox = daytona.create()
try:
    sandbox.process.create_session("build")
    sandbox.process.execute_session_command("build", SessionExecuteRequest(command="cd /tmp && export STEPS=3"))
    began = sandbox.process.execute_session_command(
        "build",
        SessionExecuteRequest(command="for i in $(seq $STEPS); do echo step $i; sleep 0.3; done", run_async=True),
    )
    asyncio.run(
        sandbox.process.get_session_command_logs_async(
            "build", began.cmd_id, lambda text: print(text, end=""), lambda text: print("!", text, end="")
        )
    )
    print("exit code", sandbox.process.get_session_command("build", began.cmd_id).exit_code)
finally:
    sandbox.delete()
