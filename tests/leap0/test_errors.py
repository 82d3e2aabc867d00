"""Refusals: their classes, their bodies, and what is not there yet."""

import json
import os

import httpx
from leap0 import Leap0Client, Leap0Error, Leap0NotFoundError

from world import Shared, key


class Errors(Shared):
    ask = {"memory": 512}

    def refused(self, call, status):
        with self.assertRaises(Leap0Error) as caught:
            call()
        self.assertEqual(caught.exception.status_code, status, caught.exception)
        return caught.exception

    def test_a_wrong_key_is_refused_before_anything_is_looked_at(self):
        other = Leap0Client(api_key="atl_" + "0" * 40)
        self.refused(lambda: other.sandboxes.get(self.box.id), 401)
        self.refused(lambda: other.templates.create(name="x", uri="y"), 401)
        other.close()

    # Every call below a sandbox, with a body that would do.
    CALLS = [
        ("GET", "", None), ("POST", "/pause", None), ("POST", "/stop", None), ("POST", "/start", None),
        ("POST", "/snapshot/create", {}), ("GET", "/system/user-home-dir", None), ("GET", "/system/workdir", None),
        ("POST", "/presigned-url", {"port": 80}), ("DELETE", "/presigned-url/x", None),
        ("POST", "/process/execute", {"command": "true"}), ("GET", "/pty", None), ("POST", "/pty", {}),
        ("GET", "/pty/x", None), ("DELETE", "/pty/x", None), ("POST", "/pty/x/resize", {"cols": 1, "rows": 1}),
        ("POST", "/filesystem/write-file?path=/tmp/x", None), ("POST", "/filesystem/ls", {"path": "/"}),
        ("POST", "/filesystem/stat", {"path": "/"}), ("POST", "/filesystem/mkdir", {"path": "/tmp/x"}),
        ("POST", "/filesystem/read-file", {"path": "/etc/passwd"}), ("POST", "/filesystem/read-files", {"paths": ["/etc/passwd"]}),
        ("POST", "/filesystem/delete", {"path": "/tmp/x"}), ("POST", "/filesystem/set-permissions", {"path": "/tmp", "mode": "777"}),
        ("POST", "/filesystem/glob", {"path": "/", "pattern": "x"}), ("POST", "/filesystem/grep", {"path": "/", "pattern": "x"}),
        ("POST", "/filesystem/edit-file", {"path": "/tmp/x"}), ("POST", "/filesystem/edit-files", {"files": ["/tmp/x"], "find": "x"}),
        ("POST", "/filesystem/move", {"src_path": "/a", "dst_path": "/b"}), ("POST", "/filesystem/copy", {"src_path": "/a", "dst_path": "/b"}),
        ("POST", "/filesystem/exists", {"path": "/"}), ("POST", "/filesystem/tree", {"path": "/"}),
        ("POST", "/git/status", {"path": "/"}),
        ("POST", "/lsp/start", {"language_id": "python", "path_to_project": "/"}),
        ("POST", "/lsp/document-symbols", {"language_id": "python", "path_to_project": "/", "uri": "file:///x.py"}),
        ("DELETE", "", None),
    ]

    def each_call(self, headers, wanted):
        with httpx.Client(base_url=f"{os.environ['LEAP0_BASE_URL']}/v1/sandbox/{self.box.id}", headers=headers) as plain:
            for method, path, body in self.CALLS:
                answer = plain.request(method, path, json=body)
                self.assertEqual(answer.status_code, wanted, f"{method} {path}: {answer.text}")
                self.assertTrue(answer.json()["message"])

    def test_every_call_needs_a_key(self):
        self.each_call({}, 401)
        with httpx.Client(base_url=os.environ["LEAP0_BASE_URL"]) as plain:
            for method, path in (("POST", "/v1/sandbox"), ("GET", "/v1/sandboxes"), ("GET", "/v1/snapshots"),
                                 ("POST", "/v1/snapshot/restore"), ("DELETE", "/v1/snapshot/x"), ("POST", "/v1/template"),
                                 ("PATCH", "/v1/template/x"), ("DELETE", "/v1/template/x")):
                self.assertEqual(plain.request(method, path).status_code, 401, path)
        self.assertEqual(self.box.refresh().state.value, "running")

    def test_another_tenant_sees_nothing_of_it(self):
        other = os.environ["LEAP0_OTHER_KEY"]
        self.each_call({"authorization": f"Bearer {other}"}, 404)
        stranger = Leap0Client(api_key=other)
        self.assertEqual(stranger.sandboxes.list(page_size=100).items, [])
        with self.assertRaises(Exception):
            stranger._pty.connect(self.box.id, "x")
        with httpx.Client() as plain:
            answer = plain.get(self.box.invoke_url("/healthz"), headers={"authorization": other})
            self.assertEqual(answer.status_code, 404)
        stranger.close()
        self.assertEqual(self.box.refresh().state.value, "running")

    def test_unknown_things_are_not_found(self):
        for call in (
            lambda: self.client.sandboxes.get("abcdefghij0123456789"),
            lambda: self.client.sandboxes.delete("abcdefghij0123456789"),
            lambda: self.client.sandboxes.create(template_name="nobody/made-this:v1"),
            lambda: self.client.snapshots.delete("none"),
        ):
            with self.assertRaises(Leap0NotFoundError):
                call()

    def test_a_bad_request_names_its_fields(self):
        base, headers = os.environ["LEAP0_BASE_URL"], {"authorization": f"Bearer {key()}"}
        for path, body, field in (
            ("/v1/sandbox", {"template_name": "debian", "vcpu": "many"}, "vcpu"),
            ("/v1/sandbox/", {"template_name": "debian", "vcpu": -1}, "vcpu"),
            ("/v1/sandbox/", {"network_policy": {"mode": "sideways"}}, "network_policy.mode"),
            (f"/v1/sandbox/{self.box.id}/process/execute", {}, "command"),
            (f"/v1/sandbox/{self.box.id}/presigned-url/", {"port": 70000}, "port"),
        ):
            answer = httpx.post(f"{base}{path}", json=body, headers=headers)
            self.assertEqual(answer.status_code, 400, answer.text)
            said = answer.json()
            self.assertTrue(said["message"])
            self.assertEqual([error["field"] for error in said["errors"]], [field], said)
        self.assertEqual(httpx.get(f"{base}/v1/nothing", headers=headers).status_code, 404)
        self.assertEqual(httpx.put(f"{base}/v1/sandboxes", headers=headers).status_code, 405)

    def test_services_inside_that_are_not_there_refuse_at_once(self):
        for address in ("169.254.169.254:80", "127.0.0.1:4317", "127.0.0.1:4318"):
            done = self.box.process.execute(command=f"curl -sS -o /dev/null -m 5 http://{address}/latest/api/token")
            # curl's code for a connection that was refused; after five seconds it would be 28.
            self.assertEqual(done.exit_code, 7, f"{address}: {done.stderr}")

    def test_what_is_not_there_yet_says_so(self):
        mount = {"type": "object-storage", "bucket": "b", "mount_path": "/m", "endpoint": "https://s3.example.com"}
        for call in (
            lambda: self.box.ssh.create_access(),
            lambda: self.client.sandboxes.create(template_name="system/desktop:v0.1.0"),
            lambda: self.box.desktop.screenshot(),
            lambda: self.box.desktop.display_info(),
        ):
            error = self.refused(call, 501)
            self.assertIn("docs/fronts/leap0.md", json.loads(error.body)["message"])
        # Object storage is not mounted; the refusal names what is, and not the key.
        secret = {**mount, "access_key_id": "canary-id", "secret_access_key": "canary-of-a-key"}
        for call in (
            lambda: self.box.add_mount(secret),
            lambda: self.box.update_mount("mnt-0", {"read_only": True}),
            lambda: self.box.delete_mount("mnt-0"),
            lambda: self.client.sandboxes.create(mounts=[secret]),
        ):
            message = json.loads(self.refused(call, 501).body)["message"]
            self.assertIn("docs/fronts/leap0.md", message)
            self.assertIn("atoll://volumes", message)
            self.assertNotIn("canary", message)
