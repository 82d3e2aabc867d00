"""What a sandbox reaches, by the policies of the SDK, on an internet of the test's own: good.test, other.test, evil.test.

Every address of it answers `hello from the internet`, so that what is not reached was refused. tests/tests/e2b.rs looks
afterwards at what arrived.
"""

import uuid

from e2b import ALL_TRAFFIC, Sandbox, Secret
from world import Case, preview, serve

GOOD, OTHER = "198.51.100.10", "198.51.100.20"


class Policies(Case):
    weight = 9

    def test_the_internet_is_open_unless_said_otherwise(self):
        box = self.sandbox()
        self.reaches(box, "http://good.test/open")
        self.reaches(box, "https://other.test/open", "-k")
        self.reaches(box, f"http://{GOOD}/open")
        self.assertIsNot(box.get_info().allow_internet_access, False)

    def test_without_internet_nothing_is_reached(self):
        box = self.sandbox(allow_internet_access=False)
        self.reaches_not(box, "http://good.test/e2b-never")
        self.reaches_not(box, f"http://{GOOD}/e2b-never")
        self.assertIs(box.get_info().allow_internet_access, False)

    def test_names_on_the_list_are_reached_and_no_others(self):
        box = self.sandbox(network={"allow_out": ["good.test"], "deny_out": [ALL_TRAFFIC]})
        self.reaches(box, "http://good.test/listed")
        self.reaches(box, "https://good.test/listed", "-k")
        self.reaches_not(box, "http://other.test/e2b-never")
        self.reaches_not(box, f"http://{OTHER}/e2b-never")
        self.reaches_not(box, "http://api.good.test/e2b-never")
        self.assertEqual(box.get_info().network["allow_out"], ["good.test"])

    def test_a_star_is_everything_below_a_name(self):
        box = self.sandbox(network={"allow_out": ["*.good.test"], "deny_out": lambda ctx: [ctx.all_traffic]})
        self.reaches(box, "http://api.good.test/starred")
        self.reaches_not(box, "http://other.test/e2b-never")

    def test_addresses_are_denied_and_allowed(self):
        box = self.sandbox(network={"deny_out": [OTHER]})
        self.reaches(box, f"http://{GOOD}/denied-other")
        self.reaches_not(box, f"http://{OTHER}/e2b-never")
        # What is allowed wins over what is denied.
        box = self.sandbox(network={"deny_out": ["198.51.100.0/24"], "allow_out": [f"{GOOD}/32"]})
        self.reaches(box, f"http://{GOOD}/allowed")
        self.reaches_not(box, f"http://{OTHER}/e2b-never")

    def test_a_policy_is_replaced_while_it_runs(self):
        box = self.sandbox()
        self.reaches(box, "http://other.test/before")
        box.update_network({"allow_out": ["good.test"], "deny_out": [ALL_TRAFFIC]})
        self.reaches_not(box, "http://other.test/e2b-never")
        self.reaches(box, "http://good.test/after")
        Sandbox.update_network(box.sandbox_id, {"allow_internet_access": False})
        self.reaches_not(box, "http://good.test/e2b-never")
        box.update_network({})
        self.reaches(box, "http://other.test/again")

    def test_what_no_sandbox_may_reach_stays_closed_under_every_policy(self):
        box = self.sandbox(network={"allow_out": ["0.0.0.0/0"]})
        for address in ("169.254.169.254", "10.1.2.3", "192.168.77.1"):
            self.reaches_not(box, f"http://{address}/e2b-never")

    def test_a_policy_survives_a_pause(self):
        box = self.sandbox(network={"allow_out": ["good.test"], "deny_out": [ALL_TRAFFIC]})
        box.pause()
        again = box.connect()
        self.reaches(again, "http://good.test/woken")
        self.reaches_not(again, "http://other.test/e2b-never")


class Rules(Case):
    weight = 7

    def test_a_rule_puts_a_header_on_requests_to_its_host(self):
        rules = {"good.test": [{"transform": {"headers": {"X-Injected": "by the rule"}}}]}
        box = self.sandbox(network={"rules": rules, "allow_out": lambda ctx: list(ctx.rules.keys()), "deny_out": [ALL_TRAFFIC]})
        self.reaches(box, "https://good.test/e2b-ruled", "--cacert /etc/ssl/certs/ca-certificates.crt")
        self.reaches_not(box, "https://other.test/e2b-never", "-k")
        shown = box.get_info().network["rules"]
        self.assertEqual(list(shown), ["good.test"])

    def test_a_secret_is_filled_in_outside_and_never_seen_inside(self):
        name, value = "key-" + uuid.uuid4().hex[:8], "canary-of-a-secret"
        made = Secret.create(name, value)
        self.addCleanup(Secret.destroy, made.name)
        rules = {"good.test": [{"transform": {"headers": {"Authorization": f"Bearer {Secret.fill(name)}"}}}]}
        box = self.sandbox(network={"rules": rules})
        self.reaches(box, "https://good.test/e2b-secret", "--cacert /etc/ssl/certs/ca-certificates.crt")
        self.assertNotIn(value, repr(box.get_info()))
        self.assertEqual(box.commands.run(f"env | grep -c {value} || true").stdout.strip(), "0")

    def test_the_app_inside_sees_the_host_that_was_asked_for(self):
        box = self.sandbox(network={"mask_request_host": "app-${PORT}.example.test"})
        serve(box, 8000)
        self.assertEqual(preview(box, 8000).json()["headers"]["host"], "app-8000.example.test")
