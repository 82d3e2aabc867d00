"""What a sandbox serves, reached as the vendor's guide does: HTTP, events and WebSockets over TLS hosts, and presigned URLs."""

import asyncio
import json

from leap0 import Leap0NotFoundError
from websockets.asyncio.client import connect

from world import Shared, http, key, serve


class Invoke(Shared):
    ask = {"env_vars": {"PORT": "8000"}, "network_policy": {"mode": "deny-all"}, "timeout": 600}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        serve(cls.box, 8000, 3000)

    def get(self, url, **more):
        headers = {"authorization": key()} | more.pop("headers", {})
        with http() as plain:
            return plain.get(url, headers=headers, **more)

    def test_http_by_the_default_port_and_by_another(self):
        self.assertTrue(self.box.invoke_url("/").startswith(f"https://{self.box.id}."))
        for port, url in ((8000, self.box.invoke_url("/a?b=1")), (3000, self.box.invoke_url("/a?b=1", port=3000))):
            answer = self.get(url)
            self.assertEqual(answer.status_code, 200, answer.text)
            said = answer.json()
            self.assertEqual((said["port"], said["path"]), (port, "/a?b=1"))
            self.assertNotIn("authorization", said["headers"], "our key never reaches an app")
            self.assertEqual(said["headers"]["x-forwarded-proto"], "https")

    def test_a_body_goes_in_and_the_apps_own_key_passes(self):
        with http() as plain:
            headers = {"leap0-authorization": key(), "authorization": "Bearer of-the-app"}
            said = plain.post(self.box.invoke_url("/post"), content="hello", headers=headers).json()
        self.assertEqual((said["method"], said["body"]), ("POST", "hello"))
        self.assertEqual(said["headers"]["authorization"], "Bearer of-the-app")
        self.assertNotIn("leap0-authorization", said["headers"])

    def test_events_come_one_by_one(self):
        with http() as plain:
            for port in (None, 3000):
                url, seen = self.box.invoke_url("/events", port=port), []
                with plain.stream("GET", url, headers={"authorization": f"Bearer {key()}"}) as answer:
                    self.assertTrue(answer.headers["content-type"].startswith("text/event-stream"))
                    for line in answer.iter_lines():
                        seen += [line] if line else []
                self.assertEqual(seen, [f"data: {n}" for n in range(5)])

    def test_websockets_by_the_default_port_and_by_another(self):
        # The synchronous client reads and writes one TLS connection in two threads, which Python's ssl does not support.
        async def talk(url):
            async with connect(url, additional_headers={"authorization": key()}, open_timeout=60) as socket:
                for word in ("one", "two"):
                    await socket.send(word)
                    self.assertEqual(await asyncio.wait_for(socket.recv(), 60), word)

        for port in (None, 3000):
            url = self.box.websocket_url("/ws", port=port)
            self.assertTrue(url.startswith("wss://"))
            asyncio.run(talk(url))

    def test_without_a_key_nobody_gets_in(self):
        with http() as plain:
            self.assertEqual(plain.get(self.box.invoke_url("/")).status_code, 401)

    def test_a_request_wakes_a_paused_sandbox_with_its_memory(self):
        before = self.get(self.box.invoke_url("/")).json()["count"]
        self.assertEqual(self.box.pause().state.value, "paused")
        self.assertEqual(self.get(self.box.invoke_url("/")).json()["count"], before + 1)
        self.assertEqual(self.box.refresh().state.value, "running")

    def test_a_presigned_url_opens_one_port_until_it_is_deleted(self):
        made = self.box.create_presigned_url(port=3000, expires_in=600)
        self.assertEqual((made.sandbox_id, made.port), (self.box.id, 3000))
        self.assertNotIn(made.token, repr(made))
        with http() as plain:
            answer = plain.get(f"{made.url}/deep/path?x=1")
            self.assertEqual(answer.status_code, 200, answer.text)
            self.assertEqual((answer.json()["port"], answer.json()["path"]), (3000, "/deep/path?x=1"))
            self.assertNotIn(made.token, json.dumps(answer.json()), "the token stays outside")
            other = made.url.replace("-3000-", "-8000-")
            self.assertIn(plain.get(other).status_code, (401, 403))
            self.box.delete_presigned_url(made.id)
            self.assertIn(plain.get(made.url).status_code, (401, 403))
        with self.assertRaises(Leap0NotFoundError):
            self.box.delete_presigned_url(made.id)
