"""Network policies: what goes in comes out without its secrets, and holds."""

import os

from leap0 import Leap0Error

from world import Case, client

# Web servers of the test's internet (tests/src/internet.rs).
PUBLIC, OTHER = "203.0.113.1", "198.51.100.20"


def reaches(box, address):
    code = f"import socket; socket.create_connection(({address!r}, 80), 30)"
    return box.process.execute(command=f'python3 -c "{code}"', timeout=60).exit_code == 0


class Policy(Case):
    def test_a_custom_policy_is_echoed_with_injected_values_hidden(self):
        asked = {
            "mode": "custom",
            "allow_domains": ["pypi.org", "*.example.com"],
            "allow_cidrs": ["203.0.113.0/24"],
            "transforms": [{
                "domain": "api.example.com",
                "inject_headers": {"Authorization": "Bearer canary-of-a-key"},
                "strip_headers": ["Cookie"],
            }],
        }
        box = self.sandbox(network_policy=asked)
        shown = box.network_policy
        self.assertEqual((shown["mode"], shown["allow_domains"], shown["allow_cidrs"]),
                         ("custom", ["pypi.org", "*.example.com"], ["203.0.113.0/24"]))
        self.assertEqual(shown["transforms"], [{
            "domain": "api.example.com", "inject_headers": {"Authorization": "…"}, "strip_headers": ["Cookie"],
        }])
        self.assertNotIn("canary", str(box.pause().network_policy))
        inside = box.process.execute(command="env; cat /proc/*/environ /etc/hosts 2>/dev/null; grep -r canary-of /etc /run /tmp 2>/dev/null")
        self.assertNotIn("canary-of", inside.stdout, "a secret never enters the sandbox")

    def test_a_key_is_used_by_the_sandbox_and_never_inside_it(self):
        # Names of the test's internet; tests/tests/leap0.rs looks at what arrived there.
        rule = {"domain": "api.good.test", "inject_headers": {"Authorization": "Bearer canary-of-a-key"}}
        box = self.sandbox(network_policy={"mode": "custom", "allow_domains": ["good.test"], "transforms": [rule]})
        said = box.process.execute(command="curl -sS -H 'Authorization: Bearer mine' https://api.good.test/leap0-changed")
        self.assertEqual((said.exit_code, said.stdout), (0, "hello from the internet"), said.stderr)
        self.assertEqual(box.process.execute(command="curl -sS http://good.test/leap0-plain").stdout, "hello from the internet")
        self.assertNotEqual(box.process.execute(command="curl -sS -m 5 http://service.example.test/leap0-never").exit_code, 0)

    def test_addresses_hold(self):
        box = self.sandbox(network_policy={"mode": "custom", "allow_cidrs": [f"{PUBLIC}/32"]})
        self.assertEqual((reaches(box, PUBLIC), reaches(box, OTHER)), (True, False))

    def test_bits_behind_the_prefix_are_masked(self):
        box = self.sandbox(network_policy={"mode": "custom", "allow_cidrs": [f"{PUBLIC}/24"]})
        self.assertEqual(box.network_policy["allow_cidrs"], ["203.0.113.0/24"])
        self.assertTrue(reaches(box, PUBLIC))

    def test_private_ranges_that_the_list_names_are_reached_by_the_first_tenant(self):
        policy = {"mode": "custom", "allow_cidrs": ["10.1.2.3/8"]}
        first = client(api_key=os.environ["LEAP0_FIRST_KEY"])
        box = first.sandboxes.create(network_policy=policy)
        try:
            self.assertEqual((reaches(box, "10.1.2.3"), reaches(box, "192.168.77.1")), (True, False))
        finally:
            first.sandboxes.delete(box)
        with self.assertRaises(Leap0Error) as caught:
            self.sandbox(network_policy=policy)
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("--egress-private named", caught.exception.body)

    def test_nothing_is_reached_by_a_sandbox_that_may_reach_nothing(self):
        box = self.sandbox(network_policy={"mode": "deny-all"})
        self.assertFalse(reaches(box, PUBLIC))

    def test_a_policy_without_sense_is_refused_by_its_field(self):
        with self.assertRaises(Leap0Error) as caught:
            self.sandbox(network_policy={"mode": "deny-all", "allow_cidrs": ["203.0.113.0/24"]})
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("network_policy", caught.exception.body)
