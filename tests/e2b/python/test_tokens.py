"""Who may speak to a sandbox: its token, another's token, none; links that are signed; ports that are not for everybody."""

import json
import urllib.parse

from e2b import Sandbox, get_signature
from e2b_code_interpreter import Sandbox as CodeSandbox
from world import Case, Shared, door, envd, preview, raw, serve, until


def token(sandbox):
    return sandbox._envd_access_token


class Tokens(Case):
    def test_the_token_of_another_sandbox_opens_nothing(self):
        one, two = self.sandbox(), self.sandbox()
        two.files.write("/tmp/secret", "of two")
        self.assertNotEqual(token(one), token(two))
        listing = json.dumps({"path": "/tmp", "depth": 1})
        fields = {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
        for shown in (token(one), "nonsense", ""):
            asked = {**fields, "X-Access-Token": shown}
            said = envd(two, "POST", "/filesystem.Filesystem/ListDir", asked, listing)
            self.assertEqual(said.status, 401, said)
            self.assertNotIn(b"secret", said.body)
            said = envd(two, "GET", "/files?path=/tmp/secret", {"X-Access-Token": shown})
            self.assertEqual(said.status, 401, said)
        own = {**fields, "X-Access-Token": token(two)}
        said = envd(two, "POST", "/filesystem.Filesystem/ListDir", own, listing)
        self.assertEqual((said.status, b"secret" in said.body), (200, True), said)

    def test_without_a_token_only_health_answers(self):
        box = self.sandbox()
        self.assertEqual(envd(box, "GET", "/health").status, 204)
        for method, path in (
            ("GET", "/metrics"),
            ("GET", "/envs"),
            ("GET", "/files?path=/etc/hostname"),
            ("POST", "/files?path=/tmp/x"),
        ):
            self.assertEqual(envd(box, method, path).status, 401, path)
        self.assertFalse(box.files.exists("/tmp/x"))

    def test_what_is_internal_is_not_there(self):
        box = self.sandbox()
        body = json.dumps({"accessToken": "mine", "envVars": {"STOLEN": "1"}})
        for path in ("/init", "/freeze", "/fsfreeze", "/collapse"):
            said = envd(box, "POST", path, {"X-Access-Token": token(box), "Content-Type": "application/json"}, body)
            self.assertEqual(said.status, 404, path)
        self.assertEqual(box.commands.run("printf %s \"$STOLEN\"").stdout, "")

    def test_an_unknown_sandbox_is_a_dead_one(self):
        said = raw("GET", door() + "/health", {"E2b-Sandbox-Id": "i" + "0" * 19, "E2b-Sandbox-Port": "49983"})
        self.assertEqual(said.status, 502)
        self.assertIn("was not found", said.json()["message"])

    def test_ports_may_be_closed_to_the_public(self):
        box = self.sandbox(kind=CodeSandbox, network={"allow_public_traffic": False})
        serve(box, 8000)
        self.assertTrue(box.traffic_access_token)
        self.assertEqual(preview(box, 8000).status, 403)
        self.assertEqual(preview(box, 8000, headers={"e2b-traffic-access-token": "wrong"}).status, 403)
        said = preview(box, 8000, headers={"e2b-traffic-access-token": box.traffic_access_token})
        self.assertEqual(said.status, 200, said)
        self.assertNotIn(box.traffic_access_token, said.body.decode())
        # The interpreter shows the token by itself.
        self.assertEqual(box.run_code("20 + 22").text, "42")
        self.assertTrue(box.list_code_contexts())
        self.assertIs(box.get_info().network["allow_public_traffic"], False)


class Links(Shared):
    def test_a_signed_link_reads_that_file_and_no_other(self):
        self.box.files.write("/home/user/über file.txt", "linked")
        link = self.box.download_url("/home/user/über file.txt")
        self.assertNotIn(token(self.box), link)
        self.assertEqual(raw("GET", link).body, b"linked")
        other = link.replace(urllib.parse.quote("über file.txt"), "other")
        self.assertNotEqual(other, link)
        self.box.files.write("/home/user/other", "not linked")
        said = raw("GET", other)
        self.assertEqual((said.status, b"not linked" in said.body), (401, False), said)

    def test_a_link_that_is_too_old_says_so(self):
        self.box.files.write("/tmp/old", "old")
        link = self.box.download_url("/tmp/old", use_signature_expiration=5)
        self.assertEqual(raw("GET", link).body, b"old")
        said = until("it is too old", lambda: (said := raw("GET", link)).status != 200 and said, every=0.5)
        self.assertEqual(said.status, 401, said)
        self.assertIn(b"signature is already expired", said.body)

    def test_a_signed_upload_writes_there_as_that_user(self):
        link = self.box.upload_url("/tmp/up/loaded", user="root", use_signature_expiration=60)
        form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nuploaded\r\n--b--\r\n"
        said = raw("POST", link, {"Content-Type": "multipart/form-data; boundary=b"}, form)
        self.assertEqual(said.status, 200, said)
        self.assertEqual(self.box.files.read("/tmp/up/loaded"), "uploaded")
        self.assertEqual(self.box.files.get_info("/tmp/up/loaded").owner, "root")

    def test_a_link_to_read_does_not_write(self):
        self.box.files.write("/tmp/only-read", "before")
        link = self.box.download_url("/tmp/only-read")
        said = raw("POST", link, {"Content-Type": "application/octet-stream"}, "after")
        self.assertEqual(said.status, 401, said)
        self.assertEqual(self.box.files.read("/tmp/only-read"), "before")

    def test_a_signature_made_by_hand_is_the_sdks_own(self):
        self.box.files.write("/tmp/signed", "by hand")
        made = get_signature("/tmp/signed", "read", "root", token(self.box), 60)
        query = {"path": "/tmp/signed", "username": "root", "signature": made["signature"], "signature_expiration": made["expiration"]}
        said = raw("GET", door() + "/files?" + urllib.parse.urlencode(query))
        self.assertEqual(said.body, b"by hand", said)
        query["username"] = "user"
        self.assertEqual(raw("GET", door() + "/files?" + urllib.parse.urlencode(query)).status, 401)

    def test_a_link_dies_with_its_sandbox(self):
        box = self.sandbox()
        box.files.write("/tmp/x", "x")
        link = box.download_url("/tmp/x")
        self.assertEqual(raw("GET", link).status, 200)
        box.kill()
        said = raw("GET", link)
        self.assertIn(said.status, (401, 502), said)
        self.assertNotEqual(said.body, b"x")
