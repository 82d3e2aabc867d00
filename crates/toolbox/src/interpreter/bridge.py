"""Between the host and one ipykernel: JSON lines in, JSON lines out. Runs inside the sandbox, one per context.

In:  {"op": "execute", "id", "code", "env", "base"} · {"op": "interrupt", "id"}
Out: {"type": "ready"} · {"type": "missing", "tool"} · and for an id: started, stdout, stderr, result, error, end

One thread waits for everything at once: the host's lines, the kernel's messages, the kernel's end. It speaks Jupyter's
protocol itself, as the usual client would cost more time than the kernel.
"""
import ctypes
import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque

OUT = os.dup(1)
# Whatever a library prints would be taken for one of our lines.
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def tell(*lines):
    data = "".join(json.dumps(line) + "\n" for line in lines).encode("utf-8", "replace")
    while data:
        data = data[os.write(OUT, data):]


def missing(tool):
    tell({"type": "missing", "tool": tool})
    sys.exit(3)


try:
    import zmq
except ImportError:
    missing("ipykernel")
import importlib.util

if importlib.util.find_spec("ipykernel") is None:
    missing("ipykernel")

RUNTIME = tempfile.mkdtemp(prefix="atoll-kernel-")
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
# LIMIT: a kernel on a starved machine; the host waits a little longer.
START_S = 50
# LIMIT: text that is passed on after an interrupt. A flood may have left much more, and nobody waits for it.
LAST_WORDS = 1 << 20
# LIMIT: one form of a result; the host takes lines a little longer.
FORM_MAX = 40 << 20
# How long a line may wait for the next ones: all that a short execution says goes in one piece.
GATHER_S = 0.003
# LIMIT: what may wait so.
GATHER_LINES = 64
# How long the kernel's last words may be behind its answer, before they are given up for lost.
STRAGGLE_S = 2.0
DELIMITER = b"<IDS|MSG>"


class Died(Exception):
    """The kernel ended by itself."""


class Kernel:
    """One kernel process and the sockets to it."""

    def __init__(self, startup):
        self.startup = startup
        self.context = zmq.Context()
        self.process = self.shell = self.iopub = self.pidfd = None
        self.serial = 0
        self.start()

    def start(self):
        self.serial += 1
        prefix = os.path.join(RUNTIME, "k%d" % self.serial)
        self.key = os.urandom(32).hex().encode()
        ports = {name + "_port": at for at, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
        about = {"transport": "ipc", "ip": prefix, "key": self.key.decode(), "signature_scheme": "hmac-sha256"}
        file = prefix + ".json"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump({**about, **ports, "kernel_name": ""}, out)
        # No history file: it is written at every execution, and nobody reads it. No pause behind each: we wait for its end.
        options = ["-f", file, "--HistoryManager.enabled=False", "--Kernel._execute_sleep=0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ipykernel_launcher", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        try:
            self.pidfd = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):
            self.pidfd = None  # Looked at from time to time instead.
        self.shell = self.connect(zmq.DEALER, prefix + "-1")
        self.iopub = self.connect(zmq.SUB, prefix + "-2")
        self.iopub.setsockopt(zmq.SUBSCRIBE, b"")
        self.wait_ready()
        self.quietly(self.startup)

    def connect(self, kind, path):
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 5)
        socket.setsockopt(zmq.RCVHWM, 20_000)
        socket.connect("ipc://" + path)
        return socket

    def wait_ready(self):
        """Until both sockets have said something: a message that comes before a subscription is lost."""
        until, heard = time.monotonic() + START_S, set()
        poller = zmq.Poller()
        poller.register(self.shell, zmq.POLLIN)
        poller.register(self.iopub, zmq.POLLIN)
        asked = 0.0
        while len(heard) < 2:
            now = time.monotonic()
            if now > until:
                raise TimeoutError("the kernel did not answer")
            if self.process.poll() is not None:
                raise Died()
            # One that nobody can hear yet is worth little; later ones are cheap.
            if now - asked > (0.25 if self.shell in heard or not asked else 0.05):
                self.send("kernel_info_request", {})
                asked = now
            for socket, _ in poller.poll(20):
                heard.add(socket)
                self.receive(socket)

    def sign(self, parts):
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.hexdigest().encode()

    def send(self, kind, content, metadata=None):
        name = os.urandom(16).hex()
        header = {"msg_id": name, "session": "atoll", "username": "", "date": "", "msg_type": kind, "version": "5.3"}
        header["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        parts = [json.dumps(part).encode() for part in (header, {}, metadata or {}, content)]
        self.shell.send_multipart([DELIMITER, self.sign(parts), *parts])
        return name

    def receive(self, socket):
        """Kind, the name of what it answers, and content; or None where nothing is there."""
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        at = frames.index(DELIMITER)
        header, parent, _, content = (json.loads(frame) for frame in frames[at + 2: at + 6])
        return header["msg_type"], parent.get("msg_id"), content

    def execute(self, code, silent=False, metadata=None):
        content = {"code": code, "silent": silent, "store_history": not silent, "user_expressions": {}}
        return self.send("execute_request", {**content, "allow_stdin": False, "stop_on_error": False}, metadata)

    def quietly(self, code):
        """Our own code: no history, no output, no count."""
        wanted, until = self.execute(code, silent=True), time.monotonic() + START_S
        while time.monotonic() < until:
            if self.iopub.poll(250):
                kind, parent, content = self.receive(self.iopub)
                if parent == wanted and kind == "status" and content["execution_state"] == "idle":
                    break
            elif not self.is_alive():
                raise Died()
        while self.receive(self.shell):
            pass

    def is_alive(self):
        return self.process.poll() is None

    def interrupt(self):
        try:
            os.killpg(self.process.pid, signal.SIGINT)
        except ProcessLookupError:
            pass

    def end(self):
        if self.is_alive():
            self.process.kill()
        self.process.wait()
        for socket in (self.shell, self.iopub):
            if socket:
                socket.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Running:
    """The execution that the kernel works at."""

    def __init__(self, request):
        self.id = request["id"]
        self.message = None
        self.started = False
        self.interrupted = False
        self.room = None
        self.replied = None


class Bridge:
    def __init__(self, startup):
        self.kernel = Kernel(startup)
        self.waiting = deque()
        self.running = None
        # Something may be defined in the kernel; and it is not the kernel any more in which it was.
        self.used = self.renewed = False
        self.held = b""
        self.open = True
        self.lines = []
        self.flush_at = None

    def poller(self):
        poller = zmq.Poller()
        poller.register(0, zmq.POLLIN)
        poller.register(self.kernel.iopub, zmq.POLLIN)
        poller.register(self.kernel.shell, zmq.POLLIN)
        if self.kernel.pidfd is not None:
            poller.register(self.kernel.pidfd, zmq.POLLIN)
        return poller

    def serve(self):
        tell({"type": "ready", "version": "%d.%d.%d" % sys.version_info[:3]})
        poller = self.poller()
        while self.open:
            events = dict(poller.poll(self.patience()))
            if 0 in events:
                self.listen()
            self.hear()
            if self.flush_at and time.monotonic() >= self.flush_at:
                self.flush()
            if self.running and self.is_over():
                self.finish()
            if (self.running or self.kernel.pidfd in events) and not self.kernel.is_alive():
                self.hear()
                self.lost()
                poller = self.poller()
            while self.waiting and not self.running:
                self.begin(self.waiting.popleft())

    def patience(self):
        """Milliseconds. Idle it sleeps until something happens; a lost last word must not make it sleep for ever."""
        if self.flush_at:
            return max(0, int(1000 * (self.flush_at - time.monotonic())) + 1)
        return 250 if self.running else None

    def say(self, *lines):
        """Tells the host, a little later unless it is an end or much."""
        self.lines.extend(lines)
        if len(self.lines) >= GATHER_LINES or any(line["type"] == "end" for line in lines):
            self.flush()
        elif not self.flush_at:
            self.flush_at = time.monotonic() + GATHER_S

    def flush(self):
        lines, self.lines, self.flush_at = self.lines, [], None
        tell(*lines)

    def listen(self):
        data = os.read(0, 1 << 20)
        if not data:
            self.open = False
            return
        *lines, self.held = (self.held + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["op"] == "execute":
                self.waiting.append(request)
            else:
                self.interrupt(request.get("id"))

    def interrupt(self, wanted):
        if self.running and wanted in (None, self.running.id):
            self.running.room = LAST_WORDS
            self.running.interrupted = True
            # A kernel that has not begun yet would not feel it.
            if self.running.started:
                self.kernel.interrupt()
        elif wanted:
            for request in [one for one in self.waiting if one["id"] == wanted]:
                self.waiting.remove(request)
                error = {"name": "KeyboardInterrupt", "value": "", "traceback": ""}
                self.say({"type": "error", "id": wanted, **error}, {"type": "end", "id": wanted})

    def begin(self, request):
        self.running = Running(request)
        self.used = True
        if self.renewed:
            self.renewed = False
            text = "the kernel had ended, and this is a new one: nothing is defined in it any more\n"
            self.say({"type": "stderr", "id": self.running.id, "text": text})
        metadata = {"atoll": {"env": request.get("env") or {}, "base": request.get("base")}}
        self.running.message = self.kernel.execute(request["code"], metadata=metadata)

    def hear(self):
        """Everything that the kernel has said by now."""
        while True:
            message = self.kernel.receive(self.kernel.iopub)
            if message is None:
                break
            kind, parent, content = message
            if not self.running or parent != self.running.message:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                self.finish()
            else:
                self.say(*self.told(kind, content))
        while True:
            message = self.kernel.receive(self.kernel.shell)
            if message is None:
                return
            if self.running and message[1] == self.running.message and self.running.replied is None:
                self.running.replied = time.monotonic()

    def is_over(self):
        replied = self.running.replied
        return replied is not None and time.monotonic() - replied > STRAGGLE_S

    def finish(self):
        key, self.running = self.running.id, None
        self.say({"type": "end", "id": key})

    def lost(self):
        """The kernel ended: what ran is told so, and the next finds a fresh one."""
        key = self.running.id if self.running else None
        if key:
            error = {"name": "KernelDied", "value": "the kernel ended", "traceback": ""}
            self.say({"type": "error", "id": key, **error})
        elif self.used:
            self.renewed = True
        self.running = None
        self.kernel.end()
        self.kernel.start()
        if key:
            self.say({"type": "end", "id": key})

    def told(self, kind, content):
        key = self.running.id
        if kind == "execute_input":
            self.running.started = True
            if self.running.interrupted:
                self.kernel.interrupt()
            return [{"type": "started", "id": key, "count": content["execution_count"]}]
        if kind == "stream":
            text = content["text"]
            if self.running.room is not None:
                text = text[: self.running.room]
                self.running.room -= len(text)
            return [{"type": content["name"], "id": key, "text": text}] if text else []
        if kind in ("execute_result", "display_data"):
            return self.shown(key, kind == "execute_result", content["data"])
        if kind == "error":
            lines = "\n".join(content["traceback"])
            error = {"name": content["ename"], "value": content["evalue"], "traceback": lines}
            return [{"type": "error", "id": key, **error}]
        return []

    def shown(self, key, main, data):
        """A result; a form of it that nobody would take is left out, and said to be."""
        size = lambda value: len(value) if isinstance(value, str) else len(json.dumps(value))
        notes = []
        for form in [form for form in data if size(data[form]) > FORM_MAX]:
            text = "a result was left out: its form %s has %d bytes, at most %d are passed on\n"
            notes.append({"type": "stderr", "id": key, "text": text % (form, size(data[form]), FORM_MAX)})
            del data[form]
        return [{"type": "result", "id": key, "main": main, "data": data}, *notes]


def leave(*_):
    shutil.rmtree(RUNTIME, ignore_errors=True)
    os._exit(0)  # The kernel ends with us.


signal.signal(signal.SIGTERM, leave)
bridge = None
try:
    bridge = Bridge(STARTUP)  # noqa: F821 (what runs us has read it)
    bridge.serve()
finally:
    if bridge:
        bridge.kernel.end()
    shutil.rmtree(RUNTIME, ignore_errors=True)
