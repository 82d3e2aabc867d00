"""Previews and the network: who reaches a port inside, and what the inside reaches."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request

from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaBadRequestError, DaytonaConfig, DaytonaError

from world import Case, Shared, client, until


def fetch(url, headers=None):
    """Names below localhost have an address in every browser, and not in every libc: ask the server itself."""
    parts = urllib.parse.urlsplit(url)
    api = urllib.parse.urlsplit(os.environ["DAYTONA_API_URL"])
    ask = urllib.request.Request(urllib.parse.urlunsplit(("http", api.netloc, parts.path or "/", parts.query, "")),
                                 headers={"Host": parts.netloc, **(headers or {})})
    try:
        with urllib.request.urlopen(ask, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Previews(Shared):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box.fs.upload_file(b"from inside", "/tmp/www/index.html")
        cls.box.process.exec("cd /tmp/www && (nohup python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &)")
        until("it listens", lambda: cls.box.process.exec("curl -s http://127.0.0.1:8000/").result == "from inside")

    def test_a_link_and_its_token_open_the_port(self):
        link = self.box.get_preview_link(8000)
        self.assertEqual(fetch(link.url, {"x-daytona-preview-token": link.token}), (200, "from inside"))
        self.assertEqual(fetch(f"{link.url}/?DAYTONA_SANDBOX_AUTH_KEY={link.token}")[0], 200)
        self.assertIn(fetch(link.url)[0], (401, 403))
        self.assertIn(fetch(link.url, {"x-daytona-preview-token": "wrong"})[0], (401, 403))

    def test_the_key_opens_it_too_and_never_arrives(self):
        link = self.box.get_preview_link(8000)
        self.assertEqual(fetch(link.url, {"Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}"})[0], 200)
        self.assertIn(fetch(link.url, {"Authorization": f"Bearer {os.environ['DAYTONA_OTHER_KEY']}"})[0], (401, 403, 404))

    def test_a_signed_link_needs_nothing_else_until_it_is_ended(self):
        signed = self.box.create_signed_preview_url(8000, expires_in_seconds=60)
        self.assertEqual(fetch(signed.url), (200, "from inside"))
        self.box.expire_signed_preview_url(8000, signed.token)
        self.assertIn(fetch(signed.url)[0], (401, 403, 404))

    def test_a_signed_link_ends_by_itself(self):
        signed = self.box.create_signed_preview_url(8000, expires_in_seconds=1)
        self.assertEqual(fetch(signed.url)[0], 200)
        until("it ended", lambda: fetch(signed.url)[0] in (401, 403, 404))

    def test_public_means_everybody(self):
        link = self.box.get_preview_link(8000)
        self.box.set_public(True)
        self.assertEqual(fetch(link.url), (200, "from inside"))
        self.assertTrue(client().get(self.box.id).public)
        self.box.set_public(False)
        self.assertIn(fetch(link.url)[0], (401, 403))

    def test_ports_that_are_none(self):
        for port in (0, 70000, -1):
            with self.assertRaises(DaytonaError):
                self.box.get_preview_link(port)
        for seconds in (0, 86401):
            with self.assertRaises(DaytonaBadRequestError):
                self.box.create_signed_preview_url(8000, expires_in_seconds=seconds)

    def test_a_port_where_nothing_listens(self):
        link = self.box.get_preview_link(8999)
        self.assertIn(fetch(link.url, {"x-daytona-preview-token": link.token})[0], (502, 503, 504))

    def test_routes_of_the_first_sdks_name_the_version_to_use(self):
        url = os.environ["DAYTONA_API_URL"] + "/workspace"
        for path, method in (("", "POST"), ("", "GET"), ("/some-id/start", "POST")):
            asked = urllib.request.Request(url + path, method=method, headers={"Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}"})
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(asked, timeout=60)
            self.assertEqual(refused.exception.code, 501)
            self.assertIn("0.226.1", json.load(refused.exception)["message"])

    def test_ssh_is_said_not_to_be_there(self):
        for ask in (
            lambda: self.box.create_ssh_access(expires_in_minutes=5),
            lambda: self.box.validate_ssh_access("x"),
            lambda: self.box.revoke_ssh_access("x"),
        ):
            with self.assertRaises(DaytonaError) as refused:
                ask()
            self.assertIn("ssh", str(refused.exception).lower())


class Network(Case):
    """The test's own internet answers http://SITE/ (see tests/src): reached or not, by policy."""

    site = os.environ.get("DAYTONA_SITE", "")

    def reaches(self, box, url=None):
        return box.process.exec(f"curl -s -o /dev/null -m 3 -w '%{{http_code}}' {url or self.site}").result

    def test_the_internet_unless_all_is_blocked(self):
        box = self.create()
        self.assertEqual(self.reaches(box), "200")
        box.update_network_settings(network_block_all=True)
        self.assertEqual(self.reaches(box), "000")
        self.assertTrue(client().get(box.id).network_block_all)
        box.update_network_settings(network_block_all=False)
        self.assertEqual(self.reaches(box), "200")

    def test_blocked_from_the_beginning(self):
        self.assertEqual(self.reaches(self.create(network_block_all=True)), "000")

    def test_a_list_of_addresses(self):
        address = os.environ["DAYTONA_SITE_ADDRESS"]
        box = self.create(network_allow_list=f"{address}/32")
        self.assertEqual(self.reaches(box, f"http://{address}/"), "200")
        self.assertEqual(box.network_allow_list, f"{address}/32")
        box.update_network_settings(network_allow_list="192.0.2.0/24")
        self.assertEqual(self.reaches(box, f"http://{address}/"), "000")

    def test_blocking_all_beside_a_list_means_only_the_list(self):
        address = os.environ["DAYTONA_SITE_ADDRESS"]
        box = self.create(network_block_all=True, network_allow_list=f"{address}/32")
        self.assertEqual((box.network_block_all, box.network_allow_list), (True, f"{address}/32"))
        self.assertEqual((self.reaches(box, f"http://{address}/"), self.reaches(box)), ("200", "000"))
        box.update_network_settings(network_allow_list="192.0.2.0/24")
        self.assertEqual(self.reaches(box, f"http://{address}/"), "000")
        box.update_network_settings(network_block_all=True, network_allow_list=f"{address}/32")
        self.assertEqual(self.reaches(box, f"http://{address}/"), "200")
        seen = client().get(box.id)
        self.assertEqual((seen.network_block_all, seen.network_allow_list), (True, f"{address}/32"))
        box.update_network_settings(network_block_all=True)
        self.assertEqual(self.reaches(box, f"http://{address}/"), "000")
        seen = client().get(box.id)
        self.assertEqual((seen.network_block_all, seen.network_allow_list), (True, None))
        box.update_network_settings(network_block_all=False)
        self.assertEqual(self.reaches(box), "200")

    def test_bits_behind_the_prefix_are_masked(self):
        address = os.environ["DAYTONA_SITE_ADDRESS"]
        box = self.create(network_allow_list=f"{address}/24")
        self.assertEqual(self.reaches(box, f"http://{address}/"), "200")
        self.assertEqual(box.network_allow_list, f"{address.rpartition('.')[0]}.0/24")
        box.update_network_settings(network_allow_list=f"192.0.2.77/24,{address}/31")
        self.assertEqual(self.reaches(box, f"http://{address}/"), "200")

    def test_private_ranges_that_the_list_names_are_reached_by_the_first_tenant(self):
        # As the vendor's guide writes it; 10.1.2.3 is a server of the test's own.
        ranges = "10.0.0.0/8,172.16.0.0/12"
        first = Daytona(DaytonaConfig(api_key=os.environ["DAYTONA_FIRST_KEY"], api_url=os.environ["DAYTONA_API_URL"]))
        box = first.create(CreateSandboxFromSnapshotParams(network_allow_list=ranges))
        try:
            self.assertEqual(self.reaches(box, "http://10.1.2.3/"), "200")
            self.assertEqual(self.reaches(box, "http://192.168.77.1/"), "000")
            self.assertEqual(self.reaches(box, "http://169.254.169.254/"), "000")
            box.update_network_settings(network_allow_list="192.168.1.0/16")
            self.assertEqual(self.reaches(box, "http://192.168.77.1/"), "200")
            self.assertEqual(self.reaches(box, "http://10.1.2.3/"), "000")
        finally:
            box.delete()
        with self.assertRaises(DaytonaBadRequestError) as refused:
            self.create(network_allow_list=ranges)
        self.assertIn("--egress-private named", str(refused.exception))

    def test_a_list_of_names(self):
        host = urllib.parse.urlsplit(self.site).hostname
        box = self.create(domain_allow_list=host)
        self.assertEqual(self.reaches(box), "200")
        box.update_network_settings(domain_allow_list="nowhere.example")
        self.assertEqual(self.reaches(box), "000")

    def test_the_host_and_the_cloud_are_never_reached(self):
        box = self.create()
        self.assertEqual(self.reaches(box, "http://169.254.169.254/"), "000")
