"""`Secret`: written and counted, never read."""

import os
import uuid

from e2b import Sandbox, Secret, SecretException, SecretNotFoundException
from world import Case, api, native


class Secrets(Case):
    def secret(self, value="v1", **more):
        made = Secret.create("s-" + uuid.uuid4().hex[:10], value, **more)
        self.addCleanup(Secret.destroy, made.name)
        return made

    def test_a_secret_is_shown_without_its_value(self):
        made = self.secret("canary-of-a-value", metadata={"for": "tests"})
        info = Secret.get_info(made.name)
        self.assertEqual((info.name, info.metadata, info.secret_id), (made.name, {"for": "tests"}, made.secret_id))
        self.assertEqual(Secret.get_info(made.secret_id).name, made.name)
        self.assertNotIn("canary-of-a-value", api("GET", f"/secrets/{made.name}").body.decode())
        self.assertNotIn("canary-of-a-value", api("GET", "/secrets").body.decode())

    def test_a_name_is_found_in_any_capitals(self):
        # A secret that was not made by this SDK keeps the capitals of its name.
        made = native("POST", "/v1/secrets", {"name": "MADE_ELSEWHERE", "value": "v"})
        self.assertEqual(made.status, 201, made.body)
        self.addCleanup(native, "DELETE", "/v1/secrets/MADE_ELSEWHERE")
        listed = [info.name for info in Secret.list().next_items() if "elsewhere" in info.name.lower()]
        self.assertEqual(listed, ["MADE_ELSEWHERE"])
        for name in ("MADE_ELSEWHERE", "made_elsewhere"):
            self.assertEqual(Secret.get_info(name).name, "MADE_ELSEWHERE")
            self.assertTrue(Secret.exists(name))
        self.assertNotEqual(Secret.update("Made_Elsewhere", "v2").version, 1)
        with self.assertRaises(SecretException):
            Secret.create("made_elsewhere", "again")
        rule = {"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.made_elsewhere}"}}}
        box = Sandbox.create(timeout=60, network={"rules": {"example.com": [rule]}})
        box.kill()
        # Its own ones have no capitals, whatever was asked for.
        upper = Secret.create("UP-" + uuid.uuid4().hex[:10], "v")
        self.addCleanup(Secret.destroy, upper.name)
        self.assertEqual(Secret.get_info(upper.name.upper()).name, upper.name.lower())

    def test_an_update_is_a_new_version(self):
        made = self.secret()
        newer = Secret.update(made.name, "v2", metadata={"now": "two"})
        self.assertNotEqual(newer.version, made.version)
        self.assertEqual(Secret.get_info(made.name).metadata, {"now": "two"})

    def test_secrets_come_in_pages(self):
        names = {self.secret().name for _ in range(3)}
        pages, seen = Secret.list(limit=2), []
        while pages.has_next:
            items = pages.next_items()
            self.assertLessEqual(len(items), 2)
            seen += [info.name for info in items]
        self.assertTrue(names <= set(seen))
        self.assertEqual(len(seen), len(set(seen)))
        self.assertFalse(pages.next_token)

    def test_what_is_gone_is_not_found(self):
        made = self.secret()
        self.assertTrue(Secret.exists(made.name))
        self.assertTrue(Secret.destroy(made.name))
        self.assertFalse(Secret.destroy(made.name))
        self.assertFalse(Secret.exists(made.name))
        with self.assertRaises(SecretNotFoundException):
            Secret.get_info(made.name)
        with self.assertRaises(SecretNotFoundException):
            Secret.update(made.name, "x")

    def test_a_name_is_taken_once_and_by_its_tenant_only(self):
        made = self.secret()
        with self.assertRaises(SecretException):
            Secret.create(made.name, "again")
        self.assertFalse(Secret.exists(made.name, api_key=os.environ["E2B_OTHER_KEY"]))
        token = Secret.iam_token(audience="x", token_type="JWT-SVID")
        self.assertEqual(token["audience"], "x")
