"""A sandbox, a program in it, its answer."""

from daytona import CreateSandboxFromSnapshotParams, Daytona

daytona = Daytona()
sandbox = daytona.create(CreateSandboxFromSnapshotParams(language="python", env_vars={"QUESTION": "6 * 7"}))
try:
    done = sandbox.process.code_run("import os\nprint('the answer is', eval(os.environ['QUESTION']))")
    print(done.result, end="")
    print(sandbox.process.exec("uname -s; whoami").result, end="")
finally:
    sandbox.delete()
