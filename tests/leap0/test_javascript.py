"""The JavaScript SDK 0.1.0 checks every answer and throws where a field is missing or has another type. It is in no package
registry, so its checks are a table here, applied to the answers to requests in its form.

Names are those of the wire; the SDK writes them in camel case. `?` behind a type: the field may be missing, but not null.
"""

import json
import os
import unittest

import httpx

from world import Case, client, key

STATES = {"starting", "running", "snapshotting", "paused", "unpausing", "deleting", "deleted"}
STR, NUM, BOOL = (str,), (int, float), (bool,)

FIELDS = {
    "sandbox": {
        "id": STR, "template_id": STR, "state": "state", "vcpu": NUM, "memory_mib": NUM, "disk_mib": NUM,
        "auto_pause?": BOOL, "network_policy?": "policy", "created_at": STR,
    },
    "policy": {"mode": STR, "transforms?": ["transform"]},
    "transform": {"domain": STR, "inject_headers?": dict, "strip_headers?": [STR]},
    "snapshot": {
        "id": STR, "name": STR, "template_id": STR, "vcpu": NUM, "memory_mib": NUM, "disk_mib": NUM,
        "state?": "state", "network_policy?": "policy", "created_at": STR,
    },
    "snapshots": {"items": ["snapshot"]},
    "process": {"exit_code": NUM, "result": STR},
    "file": {
        "name": STR, "path": STR, "is_dir": BOOL, "size": NUM, "mode": STR, "mtime": NUM, "owner": STR, "group": STR,
        "is_symlink": BOOL, "link_target?": STR,
    },
    "files": {"items": ["file"]},
    "names": {"items": [STR]},
    "match": {"path": STR, "line": NUM, "content": STR},
    "matches": {"items": ["match"]},
    "entry": {"name": STR, "type": STR, "children?": ["entry"]},
    "tree": {"items": ["entry"]},
    "edit": {"diff": STR, "replacements": NUM},
    "edited": {"file": STR, "success": BOOL, "error?": STR},
    "edits": {"items": ["edited"]},
    "exists": {"exists": BOOL},
    "git": {"output": STR, "exit_code": NUM},
    "commit": {"sha?": STR, "result": "git"},
    "pty": {
        "id": STR, "cwd": STR, "envs": dict, "cols": NUM, "rows": NUM, "created_at": STR, "active": BOOL, "lazy_start": BOOL,
    },
    "ptys": {"items": ["pty"]},
    "template": {
        "id": STR, "name": STR, "digest": STR, "image_config": "image", "is_system": BOOL, "created_at": STR,
    },
    "image": {"entrypoint": [STR, None], "cmd": [STR, None], "working_dir?": STR, "user?": STR},
    "context": {"id": STR, "language": (str, int), "cwd": STR},
    "contexts": {"items": ["context"]},
    "execution": {
        "context_id": STR, "items": ["output"], "logs": "logs", "error": ["error", None], "execution_count?": NUM,
    },
    "output": {
        "is_primary?": BOOL, "text?": STR, "html?": STR, "markdown?": STR, "svg?": STR, "png?": STR, "jpeg?": STR, "pdf?": STR,
        "latex?": STR, "javascript?": STR, "extra?": dict,
    },
    "event": {"type": NUM, "data?": (str, int, float), "code?": NUM},
    "logs": {"stdout?": [STR], "stderr?": [STR]},
    "error": {"name?": STR, "value?": STR, "traceback?": STR},
    "lsp": {"success": BOOL},
    "completions": {"jsonrpc": STR, "id": (str, int), "result": list},
    "symbols": {"jsonrpc": STR, "id": (str, int), "result": list},
}


def problems(value, wanted, at):
    """What the SDK would refuse in this value, as a list of texts."""
    if wanted == "state":
        return [] if value in STATES else [f"{at}: {value!r} is not a state"]
    if isinstance(wanted, str):
        return [bad for field, kind in FIELDS[wanted].items() for bad in field_problems(value, field, kind, at)]
    if isinstance(wanted, list):
        if value is None and None in wanted:
            return []
        if wanted[0] == "error":
            return problems(value, "error", at)
        if not isinstance(value, list):
            return [f"{at}: {value!r} is not a list"]
        return [bad for n, item in enumerate(value) for bad in problems(item, wanted[0], f"{at}[{n}]")]
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    is_right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    return [] if is_right else [f"{at}: {value!r} is not {kinds}"]


def field_problems(value, field, kind, at):
    name = field.rstrip("?")
    if not isinstance(value, dict):
        return [f"{at}: {value!r} is not an object"]
    if name not in value:
        return [] if field.endswith("?") else [f"{at}.{name}: missing"]
    return problems(value[name], kind, f"{at}.{name}")


class Table(unittest.TestCase):
    def test_the_table_finds_what_the_sdk_refuses(self):
        right = {"exit_code": 0, "result": ""}
        self.assertEqual(problems(right, "process", "x"), [])
        for wrong in ({"exit_code": 0}, {**right, "result": None}, {**right, "exit_code": True}, None):
            self.assertTrue(problems(wrong, "process", "x"), wrong)
        self.assertTrue(problems({"items": [{"exists": True}]}, "files", "x"))
        self.assertTrue(problems("stopped", "state", "x"))


class JavaScript(Case):
    seen = set()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        parts = {"policy", "transform", "file", "match", "entry", "edited", "image", "output", "logs", "error"}
        never = set(FIELDS) - cls.seen - parts
        assert not never, f"no answer was compared with {sorted(never)}"

    def call(self, answer, path, body=None, method="POST", url=None):
        headers = {"authorization": f"Bearer {key()}", "leap0-source": "sdk-ts", "leap0-sdk-version": "0.1.0"}
        got = httpx.request(method, (url or os.environ["LEAP0_BASE_URL"]) + path, json=body, headers=headers, timeout=120)
        self.assertTrue(got.is_success, f"{path}: {got.status_code} {got.text}")
        self.seen.add(answer)
        self.assertEqual(problems(got.json(), answer, answer), [], f"{path}: {got.text}")
        return got.json()

    def events(self, url, body):
        headers = {"authorization": f"Bearer {key()}", "leap0-source": "sdk-ts"}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=120) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data:")]
        self.seen.add("event")
        found = [json.loads(line.removeprefix("data:")) for line in lines]
        self.assertEqual([bad for event in found for bad in problems(event, "event", "event")], [], found)
        return found

    def made(self, **more):
        ask = {"template_name": "system/debian:bookworm", "vcpu": 1, "memory_mib": 1024, "timeout_min": 5, "auto_pause": False}
        box = self.call("sandbox", "/v1/sandbox", {**ask, **more})
        self.addCleanup(self.client.sandboxes.delete, box["id"])
        return box

    def test_a_sandbox_its_processes_and_snapshots(self):
        policy = {"mode": "custom", "allow_domains": ["pypi.org"], "transforms": [
            {"domain": "api.example.com", "inject_headers": {"x": "y"}, "strip_headers": ["cookie"]}]}
        box = self.made(network_policy=policy)
        self.assertEqual((box["memory_mib"], box["memory"]), (1024, 1024))
        at = f"/v1/sandbox/{box['id']}"
        self.call("sandbox", f"{at}/", method="GET")
        done = self.call("process", f"{at}/process/execute", {"command": "echo out; echo err >&2; exit 3"})
        self.assertEqual((done["result"], done["exit_code"]), ("out\nerr\n", 3))
        kept = self.call("snapshot", f"{at}/snapshot/create", {"name": "javascript"})
        self.addCleanup(self.client.snapshots.delete, kept["id"])
        self.call("snapshots", "/v1/snapshots", method="GET")
        again = self.call("sandbox", "/v1/snapshot/restore", {"snapshot_name": "javascript", "timeout_min": 5})
        self.addCleanup(self.client.sandboxes.delete, again["id"])
        paused = self.call("sandbox", f"{at}/pause")
        self.assertEqual(paused["state"], "paused")

    def test_files_git_and_terminals(self):
        at = f"/v1/sandbox/{self.made()['id']}"
        self.call("process", f"{at}/process/execute", {"command": "echo one >a; echo two >b; ln -s a link; mkdir folder"})
        fs = f"{at}/filesystem"
        self.call("files", f"{fs}/ls", {"path": "/workspace"})
        self.call("file", f"{fs}/stat", {"path": "/workspace/link"})
        self.call("names", f"{fs}/glob", {"path": "/workspace", "pattern": "*"})
        self.call("matches", f"{fs}/grep", {"path": "/workspace", "pattern": "one"})
        self.call("tree", f"{fs}/tree", {"path": "/workspace"})
        self.call("exists", f"{fs}/exists", {"path": "/workspace/a"})
        self.call("edit", f"{fs}/edit-file", {"path": "/workspace/a", "edits": [{"find": "one", "replace": "1"}]})
        # This SDK sends an edit with each path.
        edits = [{"path": "/workspace/a", "find": "1", "replace": "eins"}, {"path": "/workspace/b", "find": "two", "replace": "zwei"}]
        self.call("edits", f"{fs}/edit-files", {"files": edits})
        said = self.call("process", f"{at}/process/execute", {"command": "cat a b"})
        self.assertEqual(said["result"], "eins\nzwei\n")
        self.call("process", f"{at}/process/execute", {"command": "git init -q -b main repo && echo x >repo/x"})
        where = {"path": "/workspace/repo"}
        status = self.call("git", f"{at}/git/status", where)["output"]
        self.assertEqual(status, "# branch.oid (initial)\n# branch.head main\n? x\n")
        self.call("git", f"{at}/git/add", {**where, "files": ["x"]})
        commit = {**where, "message": "add x", "author": "Ada", "email": "ada@example.com"}
        self.assertEqual(len(self.call("commit", f"{at}/git/commit", commit)["sha"]), 40)
        self.call("pty", f"{at}/pty", {"id": "one", "cols": 80, "rows": 24})
        self.call("pty", f"{at}/pty/one", method="GET")
        self.call("ptys", f"{at}/pty", method="GET")

    def test_a_template(self):
        made = self.call("template", "/v1/template", {"name": "javascript", "uri": os.environ["LEAP0_TEST_IMAGE"]})
        self.addCleanup(self.client.templates.delete, made["id"])

    def test_the_code_interpreter_and_a_language_server(self):
        box = self.made(template_name="system/code-interpreter:v0.1.0", memory_mib=2048)
        own = f"https://{box['id']}.{os.environ['LEAP0_SANDBOX_DOMAIN']}"
        self.call("context", "/contexts", {"language": "python"}, url=own)
        self.call("contexts", "/contexts", method="GET", url=own)
        self.call("execution", "/execute", {"code": "print(1)\n2", "language": "python"}, url=own)
        self.call("execution", "/execute", {"code": "1/0", "language": "python"}, url=own)
        self.call("execution", "/execute", {"code": "from IPython.display import *\nMarkdown('x')", "language": "python"}, url=own)
        events = self.events(f"{own}/execute/async", {"code": "import sys\nprint(1)\nprint(2, file=sys.stderr)\n1/0", "language": "python"})
        self.assertLessEqual({0, 1, 2}, {event["type"] for event in events}, events)
        at = f"/v1/sandbox/{box['id']}"
        project = {"language_id": "python", "path_to_project": "/workspace/project"}
        self.call("process", f"{at}/process/execute", {"command": "mkdir project; printf 'import os\\nos.getcw' >project/main.py"})
        self.call("lsp", f"{at}/lsp/start", project)
        place = {**project, "uri": "file:///workspace/project/main.py", "position": {"line": 1, "character": 8}}
        found = self.call("completions", f"{at}/lsp/completions", place)["result"]
        self.assertIn("getcwd", " ".join(item["label"] for item in found[:5]))
        symbols = {**project, "uri": "file:///workspace/project/main.py"}
        self.call("symbols", f"{at}/lsp/document-symbols", symbols)
        self.call("lsp", f"{at}/lsp/stop", project)


if __name__ == "__main__":
    unittest.main()
