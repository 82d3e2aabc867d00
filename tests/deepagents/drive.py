"""Runs the real coding CLI of Deep Agents, `dcode -n --sandbox atoll`, with a model of the test's own on loopback.

Started by tests/tests/deepagents.rs with ATOLL_URL, ATOLL_API_KEY and a HOME of its own. The model asks for one command and then
says what it printed. `drive.py killed` kills the CLI in the middle of its command instead. Prints what the CLI printed.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv

COMMAND = "echo from-the-sandbox > /home/user/made && cat /home/user/made && hostname"
# One that lasts until the sandbox ends.
ENDLESS = "echo began > /home/user/began; sleep 3600"
IS_KILLED = sys.argv[1:] == ["killed"]


class Model(http.server.BaseHTTPRequestHandler):
    """The chat completions of OpenAI's API, as far as the CLI uses them."""

    protocol_version = "HTTP/1.1"
    asked = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Model.asked.append(body)
        messages = body["messages"]
        answers = [message for message in messages if message["role"] == "tool"]
        has_tool = any(tool["function"]["name"] == "execute" for tool in body.get("tools", []))
        if has_tool and not answers:
            arguments = json.dumps({"command": ENDLESS if IS_KILLED else COMMAND})
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "execute", "arguments": arguments}}
            said, end = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        else:
            text = answers[-1]["content"] if answers else "nothing"
            said, end = {"role": "assistant", "content": f"IT SAID {text}"}, "stop"
        self.answer(said, end, body.get("stream", False))

    def answer(self, said, end, streamed):
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "1", "created": 1, "model": "of-the-test", "usage": usage}
        if streamed:
            chunks = [{"index": 0, "delta": said, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": end}]
            lines = [json.dumps({**head, "object": "chat.completion.chunk", "choices": [chunk]}) for chunk in chunks]
            data = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
            kind = "text/event-stream"
        else:
            choice = {"index": 0, "message": said, "finish_reason": end}
            data, kind = json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode(), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def installed():
    """A Python that has the CLI and the SDK as installed packages: the CLI's own server gets no PYTHONPATH."""
    folder = os.path.join(os.environ["HOME"], "environment")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder})
    with open(os.path.join(packages, "of-the-test.pth"), "w") as paths:
        paths.write(sysconfig.get_path("purelib") + "\n" + os.environ.pop("PYTHONPATH") + "\n")
    return os.path.join(folder, "bin", "python")


python = installed()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
variables = {
    **os.environ,
    "OPENAI_API_KEY": "of-the-test",
    "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1",
    "DEEPAGENTS_CODE_AUTO_UPDATE": "0",
    "NO_COLOR": "1",
}
words = ["-n", "Make a file.", "-M", "openai:gpt-4o-mini", "--sandbox", "atoll", "--no-mcp", "--no-tracing", "-S", "all", "--timeout", "120"]
# The older of the two APIs, which is simpler to play.
words += ["--model-params", json.dumps({"use_responses_api": False})]
cli = subprocess.Popen(
    [python, "-m", "deepagents_cli", *words],
    env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
)
if IS_KILLED:
    # The model was asked once, so the command runs now.
    end = time.monotonic() + 100
    while not Model.asked and time.monotonic() < end and cli.poll() is None:
        time.sleep(0.05)
    time.sleep(1)
    print("asked", len(Model.asked), flush=True)
    if cli.poll() is None:
        os.killpg(cli.pid, signal.SIGKILL)
said, _ = cli.communicate(timeout=200)
print(said)
sys.exit(0 if IS_KILLED else cli.returncode)
