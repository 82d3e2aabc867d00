"""Between the host and one ipykernel: JSON lines in, JSON lines out. Runs inside the sandbox, one per context.

In:  {"op": "execute", "id", "code", "env"} · {"op": "interrupt", "id"} · {"op": "restart", "id"}
Out: {"type": "ready"} · {"type": "missing", "tool"} · and for an id: started, stdout, stderr, result, error, end
"""
import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading

OUT = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
# Whatever a library prints would be taken for one of our lines.
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
LOCK = threading.Lock()


def tell(**fields):
    with LOCK:
        OUT.write(json.dumps(fields) + "\n")
        OUT.flush()


def missing(tool):
    tell(type="missing", tool=tool)
    sys.exit(3)


try:
    from jupyter_client.manager import KernelManager
    import ipykernel  # noqa: F401
except ImportError as error:
    missing("jupyter-client" if "jupyter" in str(error.name) else "ipykernel")

RUNTIME = tempfile.mkdtemp(prefix="atoll-kernel-")
# LIMIT: a kernel on a starved machine; the host waits a little longer.
START_S = 50
# LIMIT: text that is passed on after an interrupt. A flood may have left much more, and nobody waits for it.
LAST_WORDS = 1 << 20


class Died(Exception):
    """The kernel ended by itself."""


class Restarted(Exception):
    """Somebody asked for a fresh kernel."""


class Kernel:
    def __init__(self, startup):
        self.startup = startup
        self.manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            connection_file=os.path.join(RUNTIME, "kernel.json"),
        )
        # The interpreter that runs this program, whatever specifications lie around.
        spec = self.manager.kernel_spec
        spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.client = None
        self.start()

    def start(self):
        devnull = open(os.devnull, "w")
        self.manager.start_kernel(stdout=devnull, stderr=devnull)
        self.connect()

    def connect(self):
        if self.client:
            self.client.stop_channels()
        self.client = self.manager.blocking_client()
        self.client.start_channels(stdin=False, hb=False)
        self.client.wait_for_ready(timeout=START_S)
        self.quietly(self.startup)

    def restart(self):
        self.manager.restart_kernel(now=True)
        self.connect()

    def quietly(self, code):
        """Our own code: no history, no output, no count."""
        for _ in self.messages(self.client.execute(code, silent=True, store_history=False, allow_stdin=False)):
            pass

    def messages(self, wanted, stop=None):
        """What the kernel says about one request, until it is idle again."""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.25)
            except queue.Empty:
                if stop and stop.is_set():
                    raise Restarted()
                if not self.manager.is_alive():
                    raise Died()
                continue
            if message["parent_header"].get("msg_id") != wanted:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            yield kind, content


class Bridge:
    def __init__(self, startup):
        self.work = queue.Queue()
        self.stop = threading.Event()
        self.cancelled = set()
        self.running = None
        self.room = None
        self.count = 0
        self.kernel = Kernel(startup)

    def serve(self):
        threading.Thread(target=self.listen, daemon=True).start()
        tell(type="ready", version="%d.%d.%d" % sys.version_info[:3])
        while True:
            request = self.work.get()
            if request is None:
                return
            self.stop.clear()
            handler = self.execute if request["op"] == "execute" else self.restart
            try:
                handler(request)
            except (Died, Restarted) as end:
                self.lost(request, end)
            except Exception as error:  # The host must hear of an end, whatever happened.
                tell(type="error", id=request["id"], name=type(error).__name__, value=str(error), traceback="")
                tell(type="end", id=request["id"])

    def listen(self):
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if request["op"] == "interrupt":
                self.interrupt(request["id"])
                continue
            if request["op"] == "restart":
                self.stop.set()
                self.kernel.manager.signal_kernel(signal.SIGKILL)
            self.work.put(request)
        self.work.put(None)

    def interrupt(self, wanted):
        if wanted and wanted != self.running:
            self.cancelled.add(wanted)
        else:
            self.room = LAST_WORDS
            self.kernel.manager.interrupt_kernel()

    def restart(self, request):
        self.kernel.restart()
        self.count = 0
        tell(type="end", id=request["id"])

    def lost(self, request, end):
        value = "the context was restarted" if isinstance(end, Restarted) else "the kernel ended"
        tell(type="error", id=request["id"], name="KernelDied", value=value, traceback="")
        if not self.stop.is_set():
            self.kernel.restart()
            self.count = 0
        tell(type="end", id=request["id"])

    def execute(self, request):
        key = request["id"]
        self.room = None
        self.running = key
        try:
            if key in self.cancelled:
                self.cancelled.discard(key)
                tell(type="error", id=key, name="KeyboardInterrupt", value="", traceback="")
            else:
                self.run(key, request["code"], request.get("env"))
        finally:
            self.running = None
        tell(type="end", id=key)

    def run(self, key, code, env):
        kernel = self.kernel
        if env:
            kernel.quietly("__import__('_atoll').set_env(%r)" % (env,))
        try:
            wanted = kernel.client.execute(code, allow_stdin=False, stop_on_error=False)
            for kind, content in kernel.messages(wanted, self.stop):
                self.pass_on(key, kind, content)
        finally:
            if env and kernel.manager.is_alive():
                kernel.quietly("__import__('_atoll').restore_env()")

    def pass_on(self, key, kind, content):
        if kind == "execute_input":
            self.count = content["execution_count"]
            tell(type="started", id=key, count=self.count)
        elif kind == "stream":
            text = content["text"]
            if self.room is not None:
                text = text[: self.room]
                self.room -= len(text)
            if text:
                tell(type=content["name"], id=key, text=text)
        elif kind in ("execute_result", "display_data"):
            tell(type="result", id=key, main=kind == "execute_result", data=content["data"])
        elif kind == "error":
            lines = "\n".join(content["traceback"])
            tell(type="error", id=key, name=content["ename"], value=content["evalue"], traceback=lines)


def main():
    startup = json.loads(sys.stdin.buffer.readline())
    bridge = None

    def leave(*_):
        if bridge and bridge.kernel.manager.is_alive():
            bridge.kernel.manager.signal_kernel(signal.SIGKILL)
        shutil.rmtree(RUNTIME, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    try:
        bridge = Bridge(startup)
        bridge.serve()
    finally:
        if bridge:
            bridge.kernel.manager.shutdown_kernel(now=True)
        shutil.rmtree(RUNTIME, ignore_errors=True)


main()
