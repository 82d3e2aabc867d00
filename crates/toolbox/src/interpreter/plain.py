"""Between the host and one Python worker of ours, for a sandbox that has Python and no ipykernel: the lines of `bridge.py`,
and of results their text alone. Needs the standard library of Python 3.6 or later, and nothing else.

The worker is a fork of this process. It gets requests and gives replies over two pipes of their own; what its code writes,
and what programs that it starts write, comes over two more.
"""
import ast
import codecs
import json
import os
import selectors
import signal
import sys
import time
from collections import deque

OUT = os.dup(1)
# LIMIT: text that is passed on after an interrupt.
LAST_WORDS = 1 << 20
# LIMIT: one result; the host takes lines a little longer.
FORM_MAX = 40 << 20
# LIMIT: what is still read of a stream when the code has ended: a program that it left behind may write for ever.
REST_MAX = 16 << 20
PIECE = 1 << 16


def write(descriptor, lines):
    data = "".join(json.dumps(line) + "\n" for line in lines).encode("utf-8", "replace")
    while data:
        data = data[os.write(descriptor, data):]


class Worker:
    """Runs code, in the forked process."""

    def __init__(self, requests, replies):
        self.requests, self.replies = os.fdopen(requests, "rb"), replies
        self.count, self.running, self.asked, self.loop = 0, False, False, None
        self.pid = os.getpid()
        self.module = type(sys)("__main__")
        self.names = self.module.__dict__
        self.names["__builtins__"] = __builtins__
        sys.modules["__main__"] = self.module

    def serve(self):
        signal.signal(signal.SIGINT, self.interrupt)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for line in self.requests:
            self.run(json.loads(line.decode()))

    def interrupt(self, *_):
        if self.running:
            raise KeyboardInterrupt
        self.asked = True

    def reply(self, **line):
        write(self.replies, [line])

    def run(self, request):
        self.count += 1
        self.asked = False
        self.reply(type="started", count=self.count)
        env = request.get("env") or {}
        saved = {name: os.environ.get(name) for name in env}
        self.put(env)
        value = failure = None
        try:
            self.running = True
            if self.asked:
                raise KeyboardInterrupt
            value = self.evaluated(request["code"])
        except BaseException as error:  # noqa: B902 (code may raise anything)
            failure = error
        self.running = False
        self.put(saved)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # The code has closed or replaced it.
        if os.getpid() != self.pid:
            os._exit(0)  # The code forked, and this is the copy.
        if failure is not None:
            self.failed(failure)
        elif value is not None:
            self.reply(type="result", main=True, data={"text/plain": value})
        self.reply(type="end")

    @staticmethod
    def put(values):
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "TZ" in values:
            time.tzset()

    def evaluated(self, code):
        """Runs it; the text of its last expression, if it ends in one that has a value."""
        import linecache

        name, code = "<cell %d>" % self.count, flush_left(code)
        # For tracebacks, and for `inspect`.
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        flags = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | flags, True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self.finished(compile(tree, name, "exec", flags, True))
        if last is None:
            return None
        value = self.finished(compile(ast.Expression(last.value), name, "eval", flags, True))
        if value is None:
            return None
        self.names["_"] = value
        text = repr(value)
        return text if len(text) <= FORM_MAX else text[:FORM_MAX]

    def finished(self, code):
        value = eval(code, self.names)
        if not code.co_flags & 0x80:  # CO_COROUTINE: there is an await at the top level.
            return value
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(value)

    def failed(self, error):
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == "bridge":
            trace = trace.tb_next
        try:
            lines = traceback.format_exception(type(error), error, trace)
            value = str(error)
        except Exception:  # An exception of the code's own that can't be shown.
            lines, value = [], ""
        self.reply(type="error", name=type(error).__name__, value=value, traceback="".join(lines))


def flush_left(code):
    """Code that is indented as a whole is meant as if it were not."""
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(line[len(indent):] if line.startswith(indent) else line for line in lines) if indent else code


class Stream:
    """One of the worker's two streams, on this side."""

    def __init__(self, descriptor, kind):
        os.set_blocking(descriptor, False)
        self.descriptor, self.kind = descriptor, kind
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self):
        """Text that is there; None at the end, or where nothing is there."""
        try:
            data = os.read(self.descriptor, PIECE)
        except BlockingIOError:
            return None
        return self.decoder.decode(data) if data else None


class Bridge:
    def __init__(self):
        self.waiting = deque()
        self.running = None
        self.used = self.renewed = False
        self.held = self.told = b""
        self.open = True
        self.start()

    def start(self):
        pipes = [os.pipe() for _ in range(4)]
        (requests, self.requests), (self.replies, replies), (out, to_out), (err, to_err) = pipes
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.become_worker(requests, replies, to_out, to_err, [self.requests, self.replies, out, err, OUT])
            finally:
                os._exit(1)
        for descriptor in (requests, replies, to_out, to_err):
            os.close(descriptor)
        self.streams = [Stream(out, "stdout"), Stream(err, "stderr")]
        self.selector = selectors.DefaultSelector()
        for descriptor in (0, self.replies, out, err):
            self.selector.register(descriptor, selectors.EVENT_READ)
        self.told = b""

    def become_worker(self, requests, replies, to_out, to_err, others):
        os.setsid()
        try:
            import ctypes

            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        except Exception:
            pass  # Then it ends when it next waits for a request.
        nothing = os.open(os.devnull, os.O_RDONLY)
        for one, as_one in ((nothing, 0), (to_out, 1), (to_err, 2)):
            os.dup2(one, as_one)
            os.close(one)
        for descriptor in others:
            os.close(descriptor)
        sys.stdin = open(0, closefd=False)
        sys.stdout, sys.stderr = (
            open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False) for number in (1, 2)
        )
        sys.argv = [""]
        Worker(requests, replies).serve()

    def serve(self):
        write(OUT, [{"type": "ready", "version": "%d.%d.%d" % sys.version_info[:3]}])
        while self.open:
            events = {key.fd for key, _ in self.selector.select(0.25 if self.running else None)}
            if 0 in events:
                self.listen()
            if self.replies in events:
                self.hear()
            # Output stays in the pipe until the start of its code was reported.
            if not self.running or self.running["started"]:
                for stream in self.streams:
                    if stream.descriptor in events:
                        self.pass_on(stream, PIECE)
            if (self.running or self.replies in events) and self.is_dead():
                self.lost()
            while self.waiting and not self.running:
                self.begin(self.waiting.popleft())

    def listen(self):
        data = os.read(0, 1 << 20)
        if not data:
            self.open = False
            return
        *lines, self.held = (self.held + data).split(b"\n")
        for line in lines:
            request = json.loads(line.decode())
            if request["op"] == "execute":
                self.waiting.append(request)
            else:
                self.interrupt(request.get("id"))

    def interrupt(self, wanted):
        if self.running and wanted in (None, self.running["id"]):
            self.running["room"] = LAST_WORDS
            # One that has not begun yet is told when it has.
            if self.running["started"]:
                self.signal(signal.SIGINT)
        elif wanted:
            for request in [one for one in self.waiting if one["id"] == wanted]:
                self.waiting.remove(request)
                self.say(wanted, type="error", name="KeyboardInterrupt", value="", traceback="")
                self.say(wanted, type="end")

    def signal(self, number):
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def say(self, key, **line):
        # The name stands first: the host looks for it at the beginning of a line that it does not read.
        write(OUT, [dict({"id": key}, **line)])

    def begin(self, request):
        self.running = {"id": request["id"], "started": False, "room": None}
        self.used = True
        for stream in self.streams:
            self.pass_on(stream, REST_MAX, None)
        if self.renewed:
            self.renewed = False
            text = "the kernel had ended, and this is a new one: nothing is defined in it any more\n"
            self.say(request["id"], type="stderr", text=text)
        try:
            write(self.requests, [{"code": request["code"], "env": request.get("env")}])
        except BrokenPipeError:
            pass  # It is dead, and will be found so.

    def pass_on(self, stream, most, key=""):
        """Up to so many bytes of what the worker wrote; without a key, to nobody."""
        key = self.running["id"] if self.running and key is not None else None
        while most > 0:
            text = stream.read()
            if text is None:
                return
            most -= PIECE
            room = self.running["room"] if key else None
            if room is not None:
                text = text[:room]
                self.running["room"] = room - len(text)
            if key and text:
                self.say(key, type=stream.kind, text=text)

    def hear(self):
        data = os.read(self.replies, 1 << 20)
        if not data:
            return
        *lines, self.told = (self.told + data).split(b"\n")
        for line in lines:
            reply = json.loads(line.decode())
            if not self.running:
                continue
            if reply["type"] == "started":
                self.running["started"] = True
                if self.running["room"] is not None:
                    self.signal(signal.SIGINT)
            else:
                # What was written before it stands before it.
                for stream in self.streams:
                    self.pass_on(stream, REST_MAX)
            key = self.running["id"]
            if reply["type"] == "end":
                self.running = None
            self.say(key, **reply)

    def is_dead(self):
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    def lost(self):
        key = self.running["id"] if self.running else None
        if key:
            for stream in self.streams:
                self.pass_on(stream, REST_MAX)
            self.say(key, type="error", name="KernelDied", value="the kernel ended", traceback="")
        elif self.used:
            self.renewed = True
        self.running = None
        self.selector.close()
        for descriptor in [self.requests, self.replies] + [stream.descriptor for stream in self.streams]:
            os.close(descriptor)
        self.start()
        if key:
            self.say(key, type="end")

    def leave(self, *_):
        self.signal(signal.SIGKILL)
        os._exit(0)


bridge = Bridge()
signal.signal(signal.SIGTERM, bridge.leave)
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    bridge.serve()
finally:
    bridge.signal(signal.SIGKILL)
