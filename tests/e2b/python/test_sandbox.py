"""Making, finding, ending: what `Sandbox` itself does."""

import datetime
import logging
import os
import time
import uuid

from e2b import (
    E2B,
    AuthenticationException,
    InvalidArgumentException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
)
from world import Case, Shared, api, preview, raw, serve, until


class Create(Case):
    def test_a_sandbox_runs_commands_as_the_user_in_its_home(self):
        box = self.sandbox()
        self.assertTrue(box.is_running())
        said = box.commands.run("whoami; pwd; echo $HOME $USER $LOGNAME; id -u").stdout.split("\n")
        self.assertEqual(said[:4], ["user", "/home/user", "/home/user user user", "1000"])

    def test_environment_is_in_every_later_process_beside_the_sandboxs_own(self):
        box = self.sandbox(envs={"COLOUR": "grün", "EMPTY": ""})
        said = box.commands.run('echo "$COLOUR|${EMPTY-unset}|$E2B_SANDBOX|$E2B_SANDBOX_ID|$E2B_TEMPLATE_ID"').stdout.strip()
        colour, empty, is_sandbox, ident, template = said.split("|")
        self.assertEqual((colour, empty, is_sandbox, ident), ("grün", "", "true", box.sandbox_id))
        self.assertTrue(template)
        again = Sandbox.connect(box.sandbox_id)
        self.assertEqual(again.commands.run("printf %s $COLOUR").stdout, "grün")
        self.assertEqual(again.commands.run("printf %s $COLOUR", envs={"COLOUR": "red"}).stdout, "red")

    def test_metadata_is_shown_and_found_whatever_it_holds(self):
        mark = uuid.uuid4().hex
        strange = {"a b&c=": "ü%20+/?#", "mark": mark}
        box = self.sandbox(metadata=strange)
        self.sandbox(metadata={"mark": mark, "a b&c=": "other"})
        self.assertEqual(box.get_info().metadata, strange)
        found = Sandbox.list(query=SandboxQuery(metadata=strange)).next_items()
        self.assertEqual([info.sandbox_id for info in found], [box.sandbox_id])
        self.assertEqual(found[0].metadata, strange)
        self.assertEqual(len(Sandbox.list(query=SandboxQuery(metadata={"mark": mark})).next_items()), 2)

    def test_a_template_that_nobody_made_is_not_found(self):
        with self.assertRaises(SandboxException) as caught:
            Sandbox.create("no-such-template-here")
        self.assertEqual(caught.exception.status_code, 404)
        self.assertIn("no-such-template-here", str(caught.exception))

    def test_a_wrong_key_opens_nothing(self):
        for call in (
            lambda: Sandbox.create(api_key="e2b_" + "0" * 40),
            lambda: Sandbox.list(api_key="e2b_" + "0" * 40).next_items(),
        ):
            with self.assertRaises(AuthenticationException):
                call()

    def test_the_same_idempotency_key_gives_the_same_sandbox(self):
        key = str(uuid.uuid4())
        first = self.sandbox(idempotency_key=key)
        first.files.write("/tmp/first", "here")
        second = Sandbox.create(idempotency_key=key)
        self.addCleanup(second.kill)
        self.assertEqual(second.sandbox_id, first.sandbox_id)
        self.assertEqual(second.files.read("/tmp/first"), "here")
        with self.assertRaises(InvalidArgumentException):
            Sandbox.create(idempotency_key="Not Allowed")

    def test_info_tells_what_was_asked_for(self):
        before = datetime.datetime.now(datetime.timezone.utc)
        box = self.sandbox(timeout=120, lifecycle={"on_timeout": "pause", "auto_resume": True})
        info = box.get_info()
        self.assertEqual((info.sandbox_id, info.state), (box.sandbox_id, SandboxState.RUNNING))
        self.assertEqual(info.lifecycle, {"on_timeout": "pause", "auto_resume": True})
        self.assertLess(abs((info.end_at - info.started_at).total_seconds() - 120), 3)
        self.assertLess(abs((info.started_at - before).total_seconds()), 60)
        cores = int(box.commands.run("nproc").stdout)
        self.assertGreaterEqual(cores, info.cpu_count)
        self.assertGreaterEqual(info.cpu_count, 1)
        # The default of the front, on a machine that has as much.
        self.assertEqual((info.cpu_count, info.memory_mb), (min(2, os.cpu_count()), 4096))
        self.assertRegex(info.envd_version, r"^\d+\.\d+\.\d+$")
        self.assertEqual(Sandbox.get_info(box.sandbox_id).template_id, info.template_id)

    def test_a_logger_hears_of_the_requests(self):
        heard = []
        logger = logging.Logger("heard", logging.DEBUG)
        handler = logging.Handler()
        handler.emit = lambda record: heard.append(record.getMessage())
        logger.addHandler(handler)
        box = self.sandbox(logger=logger, secure=True)
        box.commands.run("true")
        self.assertTrue(any("sandboxes" in line for line in heard), heard)

    def test_a_client_object_needs_no_environment(self):
        params = {"api_key": os.environ["E2B_API_KEY"], "api_url": os.environ["E2B_API_URL"]}
        client = E2B(sandbox_url=os.environ["E2B_SANDBOX_URL"], **params)
        box = client.Sandbox.create()
        self.addCleanup(box.kill)
        self.assertEqual(box.commands.run("echo bound").stdout, "bound\n")
        self.assertEqual(box.connection_config.api_key, params["api_key"])
        self.assertEqual(box.envd_api_url, os.environ["E2B_SANDBOX_URL"])
        self.assertIn(box.sandbox_id, box.envd_direct_url + box.sandbox_id)


class End(Case):
    def test_kill_ends_it_once_and_for_everybody(self):
        box = self.sandbox()
        self.assertTrue(box.kill())
        self.assertFalse(box.kill())
        self.assertFalse(Sandbox.kill(box.sandbox_id))
        self.assertFalse(box.is_running())
        for call in (lambda: box.commands.run("true"), lambda: box.files.read("/etc/hostname"), lambda: box.files.list("/")):
            with self.assertRaises(SandboxNotRunningException):
                call()
        with self.assertRaises(SandboxNotFoundException):
            box.get_info()

    def test_kill_by_id_ends_it(self):
        box = self.sandbox()
        self.assertTrue(Sandbox.kill(box.sandbox_id))
        self.assertFalse(box.is_running())

    def test_every_call_about_an_unknown_sandbox_says_so(self):
        ident = "i" + uuid.uuid4().hex[:19]
        self.assertFalse(Sandbox.kill(ident))
        for call in (
            lambda: Sandbox.connect(ident),
            lambda: Sandbox.get_info(ident),
            lambda: Sandbox.set_timeout(ident, 60),
            lambda: Sandbox.pause(ident),
            lambda: Sandbox.get_metrics(ident),
            lambda: Sandbox.update_network(ident, {"deny_out": ["8.8.8.8"]}),
            lambda: Sandbox.fork(ident),
            lambda: Sandbox.create_snapshot(ident),
        ):
            with self.assertRaises(SandboxNotFoundException):
                call()

    def test_a_lifetime_that_is_over_ends_it(self):
        box = self.sandbox(timeout=1)
        until("it is gone", lambda: not box.is_running())
        with self.assertRaises(SandboxNotFoundException):
            Sandbox.connect(box.sandbox_id)

    def test_set_timeout_counts_from_now_in_both_directions(self):
        box = self.sandbox(timeout=300)
        left = lambda: (box.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
        box.set_timeout(1000)
        self.assertAlmostEqual(left(), 1000, delta=30)
        Sandbox.set_timeout(box.sandbox_id, 60)
        self.assertAlmostEqual(left(), 60, delta=30)
        box.set_timeout(0)
        until("it is gone at once", lambda: not box.is_running())

    def test_connecting_lengthens_a_life_and_never_shortens_it(self):
        box = self.sandbox(timeout=300)
        left = lambda: (box.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
        Sandbox.connect(box.sandbox_id, timeout=10)
        self.assertAlmostEqual(left(), 300, delta=30)
        box.connect(timeout=900)
        self.assertAlmostEqual(left(), 900, delta=30)

    def test_killing_in_the_middle_of_a_command_is_told_at_once(self):
        box = self.sandbox()
        handle = box.commands.run("echo begun; sleep 600", background=True)
        for out, _, _ in handle:
            self.assertEqual(out, "begun\n")
            break
        box.kill()
        began = time.monotonic()
        with self.assertRaises(SandboxNotRunningException):
            handle.wait()
        self.assertLess(time.monotonic() - began, 40)


class Find(Case):
    weight = 8

    def test_pages_hold_everything_once_newest_first(self):
        mark = uuid.uuid4().hex
        made = [self.sandbox(metadata={"page": mark}).sandbox_id for _ in range(5)]
        query = SandboxQuery(metadata={"page": mark})
        pages = Sandbox.list(query=query, limit=2)
        seen = []
        sizes = []
        while pages.has_next:
            items = pages.next_items()
            sizes.append(len(items))
            seen += [info.sandbox_id for info in items]
        self.assertEqual(seen, made[::-1])
        self.assertEqual(sizes, [2, 2, 1])
        self.assertFalse(pages.next_token)
        with self.assertRaises(Exception):
            pages.next_items()
        upward = Sandbox.list(query=query, limit=5, order="asc").next_items()
        self.assertEqual([info.sandbox_id for info in upward], made)
        # A page that was begun goes on where it was, although something new came.
        first = Sandbox.list(query=query, limit=2)
        first.next_items()
        self.sandbox(metadata={"page": mark})
        rest = Sandbox.list(query=query, limit=10, next_token=first.next_token).next_items()
        self.assertEqual([info.sandbox_id for info in rest], made[2::-1])

    def test_lists_filter_by_state_template_and_time(self):
        mark = uuid.uuid4().hex
        paused, running = (self.sandbox(metadata={"find": mark}) for _ in range(2))
        paused.pause()
        ids = lambda **query: {i.sandbox_id for i in Sandbox.list(query=SandboxQuery(metadata={"find": mark}, **query)).next_items()}
        self.assertEqual(ids(state=[SandboxState.PAUSED]), {paused.sandbox_id})
        self.assertEqual(ids(state=[SandboxState.RUNNING]), {running.sandbox_id})
        self.assertEqual(ids(state=[SandboxState.RUNNING, SandboxState.PAUSED]), {paused.sandbox_id, running.sandbox_id})
        self.assertEqual(ids(), {paused.sandbox_id, running.sandbox_id})
        self.assertEqual(ids(template=running.get_info().template_id), {paused.sandbox_id, running.sandbox_id})
        self.assertEqual(ids(template="another-template"), set())
        now = datetime.datetime.now(datetime.timezone.utc)
        self.assertEqual(ids(started_after=now + datetime.timedelta(hours=1)), set())
        self.assertIn(running.sandbox_id, ids(started_after=now - datetime.timedelta(hours=1)))

    def test_another_tenant_neither_sees_nor_touches_it(self):
        box = self.sandbox(metadata={"mine": "yes"})
        other = {"api_key": os.environ["E2B_OTHER_KEY"]}
        self.assertNotIn(box.sandbox_id, [info.sandbox_id for info in Sandbox.list(**other).next_items()])
        for call in (
            lambda: Sandbox.connect(box.sandbox_id, **other),
            lambda: Sandbox.get_info(box.sandbox_id, **other),
            lambda: Sandbox.pause(box.sandbox_id, **other),
            lambda: Sandbox.set_timeout(box.sandbox_id, 1, **other),
        ):
            with self.assertRaises(SandboxNotFoundException):
                call()
        self.assertFalse(Sandbox.kill(box.sandbox_id, **other))
        self.assertTrue(box.is_running())

    def test_two_clients_share_one_sandbox(self):
        box = self.sandbox()
        other = Sandbox.connect(box.sandbox_id)
        box.files.write("/tmp/shared", "from one")
        self.assertEqual(other.files.read("/tmp/shared"), "from one")
        handle = box.commands.run("sleep 600", background=True)
        self.assertIn(handle.pid, [process.pid for process in other.commands.list()])
        self.assertTrue(other.commands.kill(handle.pid))

    def test_older_forms_of_the_api_still_answer(self):
        made = api("POST", "/sandboxes", {"templateID": "base", "timeout": 60, "secure": True})
        self.assertEqual(made.status, 201, made)
        ident = made.json()["sandboxID"]
        self.addCleanup(Sandbox.kill, ident)
        self.assertIn(ident, [s["sandboxID"] for s in api("GET", "/sandboxes").json()])
        self.assertEqual(api("POST", f"/sandboxes/{ident}/refreshes", {"duration": 90}).status, 204)
        self.assertEqual(api("POST", f"/sandboxes/{ident}/pause", {}).status, 204)
        self.assertEqual(api("POST", f"/sandboxes/{ident}/pause", {}).status, 409)
        self.assertEqual(api("POST", f"/sandboxes/{ident}/resume", {"timeout": 60}).status, 201)
        self.assertEqual(api("POST", f"/sandboxes/{ident}/connect", {"timeout": 60}).status, 200)
        self.assertEqual(Sandbox.connect(ident).commands.run("echo old").stdout, "old\n")
        self.assertEqual(api("GET", f"/sandboxes/{ident}/logs").status, 200)
        self.assertEqual(api("GET", f"/v2/sandboxes/{ident}/logs").status, 200)
        self.assertEqual(api("GET", f"/sandboxes/metrics?sandbox_ids={ident}").status, 200)
        missing = api("GET", "/sandboxes/" + "z" * 20)
        self.assertEqual((missing.status, missing.json()["code"]), (404, 404))
        self.assertEqual(api("GET", "/nothing/of/the/kind").status, 404)
        self.assertEqual(raw("GET", os.environ["E2B_API_URL"] + "/health").status // 100, 2)


class Host(Shared):
    def test_a_server_inside_is_reached_by_its_host(self):
        serve(self.box, 8000)
        said = preview(self.box, 8000, "/hello?x=1", method="POST", body="text")
        self.assertEqual(said.status, 200, said)
        heard = said.json()
        self.assertEqual((heard["path"], heard["method"], heard["body"]), ("/hello?x=1", "POST", "text"))
        self.assertEqual(preview(self.box, 8000).json()["count"], heard["count"] + 1)
        self.assertTrue(self.box.get_host(8000).endswith(self.box.sandbox_domain))

    def test_a_port_that_nobody_listens_on_says_so(self):
        said = preview(self.box, 7999)
        self.assertEqual(said.status, 502, said)
        self.assertIn(b"port is not open", said.body)

    def test_header_names_reach_the_app_as_they_were_written(self):
        serve(self.box, 8001)
        heard = preview(self.box, 8001, headers={"X-MiXed-CASE": "1", "x-lower": "2", "ETag": "3"}).json()
        self.assertLessEqual({"X-MiXed-CASE", "x-lower", "ETag"}, set(heard["names"]), heard)

    def test_the_host_of_a_sandbox_that_is_gone_says_so(self):
        for ask in ({}, {"network": {"allow_public_traffic": False}}):
            box = Sandbox.create(timeout=60, **ask)
            self.assertTrue(box.kill())
            for headers in ({}, {"Accept": "text/html"}):
                said = preview(box, 8000, headers=headers)
                self.assertEqual(said.status, 502, said)
                self.assertIn(b"was not found", said.body)
            wanted = {"sandboxId": box.sandbox_id, "message": "The sandbox was not found", "code": 502}
            self.assertEqual(preview(box, 8000).json(), wanted)

    def test_where_the_gateway_of_mcp_would_be(self):
        self.assertEqual(self.box.get_mcp_url(), f"https://{self.box.get_host(50005)}/mcp")

    def test_metrics_come_within_seconds_and_keep_to_their_range(self):
        self.box.commands.run("dd if=/dev/zero of=/tmp/big bs=1M count=16 2>/dev/null")
        found = until("there are metrics", lambda: self.box.get_metrics())
        last = found[-1]
        self.assertEqual(last.cpu_count, self.box.get_info().cpu_count)
        self.assertGreater(last.mem_used, 0)
        self.assertGreaterEqual(last.mem_total, last.mem_used)
        self.assertGreater(last.disk_total, 16 << 20)
        self.assertGreaterEqual(last.cpu_used_pct, 0)
        now = datetime.datetime.now(datetime.timezone.utc)
        self.assertLess(abs((now - last.timestamp).total_seconds()), 90)
        self.assertEqual(self.box.get_metrics(start=now + datetime.timedelta(hours=1), end=now + datetime.timedelta(hours=2)), [])
        self.assertTrue(Sandbox.get_metrics(self.box.sandbox_id, start=now - datetime.timedelta(hours=1)))
