"""What a sandbox reaches, by the policies of the SDK, on an internet of the test's own: good.test, other.test, evil.test.

Every address of it answers `hello from the internet`, so that what is not reached was refused. tests/tests/e2b.rs looks
afterwards at what arrived.
"""

import os
import uuid

from e2b import ALL_TRAFFIC, Sandbox, SandboxException, Secret
from world import Case, listens, preview, serve

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

    def test_bits_behind_the_prefix_are_masked(self):
        box = self.sandbox(network={"deny_out": ["198.51.100.77/24"], "allow_out": [f"{GOOD}/31"]})
        self.reaches(box, f"http://{GOOD}/masked")
        self.reaches_not(box, f"http://{OTHER}/e2b-never")

    def test_private_ranges_that_are_allowed_by_name_are_reached_by_the_first_tenant(self):
        for network, public in (
            ({"allow_out": ["10.1.2.3/8"]}, True),
            ({"allow_out": ["10.0.0.0/8"], "deny_out": [ALL_TRAFFIC]}, False),
        ):
            box = self.sandbox(network=network, api_key=os.environ["E2B_FIRST_KEY"])
            self.reaches(box, "http://10.1.2.3/private")
            self.reaches_not(box, "http://192.168.77.1/e2b-never")
            (self.reaches if public else self.reaches_not)(box, f"http://{GOOD}/{'public' if public else 'e2b-never'}")
            with self.assertRaises(SandboxException) as refused:
                self.sandbox(network=network)
            self.assertIn("--egress-private named", str(refused.exception))

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

    def test_a_rule_may_be_keyed_by_the_host_of_a_sandbox(self):
        app = self.sandbox()
        host = app.get_host(8080)
        self.assertIn(":", host)
        rules = {host: [{"transform": {"headers": {"X-Injected": "by the rule"}}}]}
        box = self.sandbox(network={"rules": rules, "allow_out": lambda ctx: list(ctx.rules.keys()), "deny_out": [ALL_TRAFFIC]})
        self.assertEqual(list(box.get_info().network["rules"]), [host])
        box.update_network({"rules": rules})

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

    def test_an_app_that_speaks_tls_is_spoken_to_in_tls(self):
        box = self.sandbox(network={"https_ports": [8443]})
        box.commands.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout /tmp/k.pem -out /tmp/c.pem -days 2 -subj /CN=app 2>/dev/null")
        app = (
            "import http.server as h, ssl\n"
            "s = h.ThreadingHTTPServer(('127.0.0.1', 8443), h.SimpleHTTPRequestHandler)\n"
            "c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain('/tmp/c.pem', '/tmp/k.pem')\n"
            "s.socket = c.wrap_socket(s.socket, server_side=True); s.serve_forever()\n"
        )
        box.files.write("/tmp/www/app.py", app)
        box.files.write("/tmp/www/index.html", "over tls inside")
        box.commands.run("cd /tmp/www && setsid python3 app.py >/dev/null 2>&1 </dev/null &")
        listens(box, 8443)
        said = preview(box, 8443)
        self.assertEqual((said.status, said.body), (200, b"over tls inside"))
        self.assertEqual(box.get_info().network["https_ports"], [8443])

    def test_name_servers_of_ones_own_are_reached_beside_the_names(self):
        lists = {"allow_out": ["good.test"], "deny_out": [ALL_TRAFFIC]}
        ask = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.sendto(bytes.fromhex('12340100000100000000000004676f6f6404746573740000010001'), ('1.1.1.1', 53)); print(len(s.recv(512)))"
        asked = lambda box: box.commands.run(f'python3 -c "{ask}" 2>/dev/null || echo none').stdout.strip()
        self.assertEqual(asked(self.sandbox(network=lists)), "none")
        box = self.sandbox(network={**lists, "dns_servers": ["1.1.1.1"]})
        self.assertGreater(int(asked(box)), 12)
        self.assertEqual(box.get_info().network["dns_servers"], ["1.1.1.1"])

    def test_what_cannot_exist_here_is_refused_by_its_name(self):
        for ask, named in (
            ({"network": {"egress_proxy": {"address": "proxy.test:1080", "tls": True}}}, "egressProxy"),
            ({"iam": {"tokens": {"aws": Secret.iam_token(audience="a", token_type="JWT-SVID")}}}, "iam"),
        ):
            with self.assertRaises(SandboxException) as caught:
                Sandbox.create(**ask)
            self.assertEqual(caught.exception.status_code, 501)
            self.assertIn(named, str(caught.exception))
