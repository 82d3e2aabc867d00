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

    def test_what_is_not_there_yet_says_so(self):
        mount = {"type": "object-storage", "bucket": "b", "mount_path": "/m", "endpoint": "https://s3.example.com"}
        for call in (
            lambda: self.box.ssh.create_access(),
            lambda: self.box.lsp.start(language_id="python", path_to_project="/tmp"),
            lambda: self.box.add_mount(mount),
            lambda: self.client.sandboxes.create(mounts=[mount]),
            lambda: self.client.sandboxes.create(template_name="system/desktop:v0.1.0"),
            lambda: self.client.templates.create(name="mine", uri="example.com/image:1"),
        ):
            error = self.refused(call, 501)
            self.assertIn("docs/fronts/leap0.md", json.loads(error.body)["message"])
