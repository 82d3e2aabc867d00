"""Which public methods of the SDK a run has called: Python itself tells the start of every function; nothing is replaced."""

import inspect
import sys

import e2b
import e2b_code_interpreter as interpreter
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from e2b.template.main import TemplateBuilder

CLASSES = [
    interpreter.Sandbox,
    interpreter.AsyncSandbox,
    Commands,
    AsyncCommands,
    e2b.CommandHandle,
    e2b.AsyncCommandHandle,
    e2b.AsyncCommandInputHandle,
    Pty,
    AsyncPty,
    Filesystem,
    AsyncFilesystem,
    e2b.WatchHandle,
    e2b.AsyncWatchHandle,
    e2b.Git,
    AsyncGit,
    e2b.Template,
    e2b.AsyncTemplate,
    TemplateBuilder,
    e2b.Volume,
    e2b.AsyncVolume,
    e2b.Secret,
    e2b.AsyncSecret,
    e2b.SandboxPaginator,
    e2b.AsyncSandboxPaginator,
    e2b.SnapshotPaginator,
    e2b.AsyncSnapshotPaginator,
    e2b.SecretPaginator,
    e2b.AsyncSecretPaginator,
]
FUNCTIONS = [
    e2b.get_signature,
    e2b.wait_for_file,
    e2b.wait_for_port,
    e2b.wait_for_process,
    e2b.wait_for_timeout,
    e2b.wait_for_url,
    e2b.default_build_logger,
    interpreter.Execution.to_json,
    interpreter.Logs.to_json,
    interpreter.ExecutionError.to_json,
    interpreter.Result.formats,
]

_called = set()


def watch():
    """Notes every function from its first start on; each tells once, so that nothing becomes slower."""
    tool = sys.monitoring.COVERAGE_ID
    sys.monitoring.use_tool_id(tool, "surface")

    def started(code, _offset):
        _called.add(code)
        return sys.monitoring.DISABLE

    sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, started)
    sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)


def _codes(cls, name):
    """The functions behind a name: (which form, code). A name may be a method of the class and of its objects at once."""
    found = inspect.getattr_static(cls, name)
    if isinstance(found, property):
        found = found.fget
    if hasattr(found, "class_method_name"):
        yield "", found.method
        yield " of the class", getattr(cls, found.class_method_name)
    elif hasattr(found, "_static_fn"):
        yield "", found._instance_fn
        yield " of the class", found._static_fn
    elif callable(found) or hasattr(found, "__func__"):
        yield "", found


def public():
    """Every public method: name to code."""
    named = {}
    for cls in CLASSES:
        # Some halves of the SDK have the same name.
        half = "Async" if "_async" in cls.__module__ and not cls.__name__.startswith("Async") else ""
        for name in dir(cls):
            if name.startswith("_"):
                continue
            for form, function in _codes(cls, name):
                function = inspect.unwrap(getattr(function, "__func__", function))
                if hasattr(function, "__code__"):
                    named[f"{half}{cls.__name__}.{name}{form}"] = function.__code__
    for function in FUNCTIONS:
        named[function.__qualname__] = inspect.unwrap(function).__code__
    return named


def without_a_case():
    return sorted(name for name, code in public().items() if code not in _called)


if __name__ == "__main__":
    print("\n".join(sorted(public())))
