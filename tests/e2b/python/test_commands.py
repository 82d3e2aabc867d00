"""`sandbox.commands`: output, ends, users, input, many at once, and what goes wrong."""

import concurrent.futures
import http.client
import json
import time
import urllib.parse

from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from world import Case, Shared, door, until


class Run(Shared):
    def test_output_error_and_end_come_apart(self):
        ran = self.box.commands.run("echo out; echo err >&2")
        self.assertEqual((ran.stdout, ran.stderr, ran.exit_code, ran.error), ("out\n", "err\n", 0, None))

    def test_an_end_that_is_not_zero_is_raised_with_everything_said(self):
        with self.assertRaises(CommandExitException) as caught:
            self.box.commands.run("echo half; echo why >&2; exit 7")
        raised = caught.exception
        self.assertEqual((raised.exit_code, raised.stdout, raised.stderr), (7, "half\n", "why\n"))
        self.assertIn("7", raised.error)

    def test_a_program_that_is_not_there_ends_with_127(self):
        with self.assertRaises(CommandExitException) as caught:
            self.box.commands.run("no-such-program")
        self.assertEqual(caught.exception.exit_code, 127)
        self.assertIn("not found", caught.exception.stderr)

    def test_a_signal_is_no_exit_code(self):
        with self.assertRaises(CommandExitException) as caught:
            self.box.commands.run("kill -9 $$")
        self.assertEqual((caught.exception.exit_code, caught.exception.error), (-1, "signal: killed"))

    def test_folder_environment_and_user_are_the_commands_own(self):
        self.box.files.make_dir("/tmp/where")
        ran = self.box.commands.run("pwd; echo $A; id -un; echo $HOME", cwd="/tmp/where", envs={"A": "b c"}, user="root")
        self.assertEqual(ran.stdout, "/tmp/where\nb c\nroot\n/root\n")
        self.assertEqual(self.sh("echo \"[$A]\""), "[]\n")
        self.box.files.make_dir("/home/user/below")
        self.assertEqual(self.sh("pwd", cwd="below"), "/home/user/below\n")

    def test_a_folder_that_is_not_there_is_refused(self):
        with self.assertRaises(InvalidArgumentException) as caught:
            self.box.commands.run("pwd", cwd="/no/such/folder")
        self.assertIn("does not exist", str(caught.exception))

    def test_an_unknown_user_is_refused(self):
        with self.assertRaises(AuthenticationException):
            self.box.commands.run("id", user="nobody-of-that-name")

    def test_the_user_may_become_root_without_a_password(self):
        self.assertEqual(self.sh("sudo -n id -u"), "0\n")
        self.box.commands.run("sudo sh -c 'echo kept > /etc/by-root'")
        self.assertEqual(self.sh("stat -c %U /etc/by-root"), "root\n")

    def test_every_script_survives_whole(self):
        text = "žluťoučký 日本語 🎉 \u202e"
        self.assertEqual(self.sh(f"printf %s '{text}'"), text)
        # Bytes that are no text come as the mark for such bytes, and nothing around them is lost.
        self.assertEqual(self.sh(r"printf 'a\xffb'"), "a\ufffdb")
        # A character in two writes is one character.
        self.assertEqual(self.sh(r"printf '\xe2\x82'; sleep 0.2; printf '\xac'"), "€")

    def test_quotes_lines_and_a_long_command_arrive_as_they_are(self):
        self.assertEqual(self.sh("cat <<'END'\n$HOME \"x\" `y` \\z\nEND\n"), "$HOME \"x\" `y` \\z\n")
        long = "x" * 100_000
        self.assertEqual(self.sh(f"printf %s {long} | wc -c").strip(), "100000")
        self.assertEqual(self.sh(""), "")

    def test_four_megabytes_of_output_come_whole_and_in_order(self):
        said = self.sh("seq 1 600000")
        self.assertEqual(len(said), sum(len(str(n)) + 1 for n in range(1, 600001)))
        self.assertTrue(said.startswith("1\n2\n") and said.endswith("\n599999\n600000\n"))

    def test_output_is_told_while_the_command_goes_on(self):
        heard, errors = [], []

        def hear(text):
            heard.append(text)
            if len(heard) == 1:
                self.box.files.write("/tmp/heard", "")

        # It goes on only after its first line was heard.
        line = "echo one; while [ ! -e /tmp/heard ]; do sleep 0.05; done; echo two; echo bad >&2"
        self.box.commands.run(line, on_stdout=hear, on_stderr=errors.append)
        self.assertEqual("".join(heard), "one\ntwo\n")
        self.assertEqual("".join(errors), "bad\n")

    def test_output_need_not_be_kept(self):
        heard = []
        ran = self.box.commands.run("echo gone", retain_output=False, on_stdout=heard.append)
        self.assertEqual((ran.stdout, ran.stderr, heard), (None, None, ["gone\n"]))

    def test_a_command_that_takes_too_long_is_ended(self):
        began = time.monotonic()
        with self.assertRaises(TimeoutException):
            self.box.commands.run("exec -a too-long sleep 300", timeout=0.5)
        self.assertLess(time.monotonic() - began, 60)
        until("it is gone", lambda: "too-long" not in self.sh("ps -eo args"))

    def test_no_limit_is_no_limit(self):
        self.assertEqual(self.sh("sleep 0.3; echo done", timeout=0), "done\n")

    def test_nothing_is_left_of_ended_commands(self):
        for _ in range(20):
            self.box.commands.run("true")
        until("none is a zombie", lambda: self.sh("ps -eo stat= | grep -c Z || true").strip() == "0")


class Background(Shared):
    def test_a_handle_waits_for_its_end(self):
        handle = self.box.commands.run("sleep 0.2; echo late; exit 3", background=True)
        self.assertGreater(handle.pid, 0)
        with self.assertRaises(CommandExitException) as caught:
            handle.wait()
        self.assertEqual((caught.exception.stdout, caught.exception.exit_code), ("late\n", 3))

    def test_killing_works_once(self):
        handle = self.box.commands.run("sleep 60", background=True)
        self.assertTrue(handle.kill())
        with self.assertRaises(CommandExitException) as caught:
            handle.wait()
        self.assertEqual(caught.exception.error, "signal: killed")
        self.assertFalse(handle.kill())
        self.assertFalse(self.box.commands.kill(handle.pid))
        self.assertFalse(self.box.commands.kill(999_999))

    def test_a_stream_ends_properly_when_its_sandbox_is_killed(self):
        for method, message in (
            ("process.Process/Start", {"process": {"cmd": "/bin/sleep", "args": ["60"]}}),
            ("filesystem.Filesystem/WatchDir", {"path": "/tmp"}),
        ):
            box = self.sandbox()
            body = json.dumps(message).encode()
            head = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": box._envd_access_token,
                    "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
            parts = urllib.parse.urlsplit(door())
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
            self.addCleanup(connection.close)
            connection.request("POST", "/" + method, bytes(1) + len(body).to_bytes(4, "big") + body, head)
            answer = connection.getresponse()
            first = answer.read(5)
            self.assertIn(b"start", answer.read(int.from_bytes(first[1:], "big")))
            box.kill()
            # Raises IncompleteRead where the last chunk is missing.
            rest = answer.read()
            end = rest[rest.rindex(b'{"error"') - 5:]
            self.assertEqual((end[0], int.from_bytes(end[1:5], "big")), (2, len(end) - 5))
            self.assertEqual(json.loads(end[5:])["error"]["code"], "unavailable")

    def test_a_killed_command_is_gone_when_the_answer_comes(self):
        busy = self.box.commands.run("for i in 1 2 3 4; do (while :; do :; done) & done; wait", background=True)
        self.addCleanup(busy.kill)
        # Killing frees its memory, which takes the kernel a while.
        hog = "python3 -c 'import time; x = bytearray(120 << 20); print(1, flush=True); time.sleep(60)'"
        living = []
        for _ in range(8):
            handle = self.box.commands.run(hog, background=True)
            next(iter(handle))
            self.assertTrue(self.box.commands.kill(handle.pid))
            living += [p.pid for p in self.box.commands.list() if p.pid == handle.pid]
            living += self.box.commands.run(f"kill -0 {handle.pid} 2>/dev/null && echo {handle.pid} || true").stdout.split()
        self.assertEqual(living, [])

    def test_the_list_holds_what_runs_and_nothing_else(self):
        handle = self.box.commands.run("sleep 60", background=True, envs={"MARK": "m"}, cwd="/tmp")
        found = {process.pid: process for process in self.box.commands.list()}[handle.pid]
        self.assertEqual((found.cmd, found.args, found.cwd), ("/bin/bash", ["-l", "-c", "sleep 60"], "/tmp"))
        self.assertEqual(found.envs.get("MARK"), "m")
        handle.kill()
        until("it left the list", lambda: handle.pid not in [p.pid for p in self.box.commands.list()])

    def test_a_command_is_found_again_by_another_client(self):
        line = "echo begun; while [ ! -e /tmp/found-again ]; do sleep 0.05; done; for i in $(seq 1 30); do echo $i; sleep 0.05; done; echo end"
        first = self.box.commands.run(line, background=True)
        for out, _, _ in first:
            break
        first.disconnect()
        other = Sandbox.connect(self.box.sandbox_id)
        heard = []
        again = other.commands.connect(first.pid)
        self.box.files.write("/tmp/found-again", "")
        ran = again.wait(on_stdout=heard.append)
        said = "".join(heard)
        self.assertEqual((ran.exit_code, again.pid), (0, first.pid))
        self.assertTrue(said.endswith("30\nend\n"), said[-40:])
        self.assertEqual(ran.stdout, said)

    def test_two_may_listen_to_one(self):
        first = self.box.commands.run("while [ ! -e /tmp/two ]; do sleep 0.02; done; echo both", background=True)
        second = self.box.commands.connect(first.pid)
        self.box.files.write("/tmp/two", "")
        self.assertEqual((first.wait().stdout, second.wait().stdout), ("both\n", "both\n"))

    def test_leaving_a_command_does_not_end_it(self):
        handle = self.box.commands.run("sleep 0.5; echo lived > /tmp/lived", background=True)
        handle.disconnect()
        until("it went on", lambda: self.box.files.exists("/tmp/lived"))

    def test_a_command_that_ended_or_never_was_is_not_found(self):
        with self.assertRaises(NotFoundException):
            self.box.commands.connect(999_999)
        with self.assertRaises(NotFoundException):
            self.box.commands.send_stdin(999_999, "x")

    def test_fifty_at_once_keep_apart(self):
        def one(n):
            return self.box.commands.run(f"sleep 0.2; echo {n}; seq {n} {n + 200} | sha256sum").stdout
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            said = list(pool.map(one, range(50)))
        self.assertEqual([text.split("\n")[0] for text in said], [str(n) for n in range(50)])
        self.assertEqual(len({text.split("\n")[1] for text in said}), 50)


class Input(Shared):
    def test_input_goes_in_until_it_is_closed(self):
        handle = self.box.commands.run("cat; echo closed", background=True, stdin=True)
        self.box.commands.send_stdin(handle.pid, "one ☃\n")
        handle.send_stdin(b"two\x00\n")
        self.box.commands.close_stdin(handle.pid)
        self.assertEqual(handle.wait().stdout, "one ☃\ntwo\x00\nclosed\n")

    def test_closing_is_the_handles_too(self):
        handle = self.box.commands.run("wc -c", background=True, stdin=True)
        handle.send_stdin("12345")
        handle.close_stdin()
        self.assertEqual(handle.wait().stdout.strip(), "5")

    def test_a_command_without_input_has_its_end_at_once(self):
        self.assertEqual(self.sh("cat; echo end", timeout=60), "end\n")
        handle = self.box.commands.run("sleep 600", background=True)
        with self.assertRaises(SandboxException):
            handle.send_stdin("for nobody")
        handle.kill()

    def test_a_stream_of_input_arrives_in_order(self):
        handle = self.box.commands.run("sha256sum; echo end", background=True, stdin=True)
        chunks = [f"{n:06}" * 100 for n in range(300)]
        self.box.commands.stream_input(handle.pid, iter(chunks))
        handle.close_stdin()
        import hashlib

        self.assertIn(hashlib.sha256("".join(chunks).encode()).hexdigest(), handle.wait().stdout)

    def test_a_stream_is_many_pieces_and_never_one(self):
        handle = self.box.commands.run("cat", background=True, stdin=True)
        with self.assertRaises(InvalidArgumentException):
            self.box.commands.stream_input(handle.pid, "a single piece")
        with self.assertRaises(NotFoundException):
            self.box.commands.stream_input(999_999, ["nobody"])
        handle.kill()


class Cut(Case):
    def test_a_connection_cut_in_the_middle_harms_neither_the_command_nor_the_sandbox(self):
        import json
        import os
        import socket
        import struct
        import urllib.parse

        box = self.sandbox()
        door = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"])
        line = "for i in $(seq 1 40); do echo $i; sleep 0.02; done; echo whole > /tmp/whole"
        ask = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line]}}).encode()
        frame = b"\0" + struct.pack(">I", len(ask)) + ask
        with socket.create_connection((door.hostname, door.port)) as stream:
            stream.sendall(
                (
                    f"POST /process.Process/Start HTTP/1.1\r\nHost: {door.netloc}\r\nContent-Type: application/connect+json\r\n"
                    f"Connect-Protocol-Version: 1\r\nE2b-Sandbox-Id: {box.sandbox_id}\r\nE2b-Sandbox-Port: 49983\r\n"
                    f"X-Access-Token: {box._envd_access_token}\r\nContent-Length: {len(frame)}\r\n\r\n"
                ).encode()
                + frame
            )
            heard = b""
            while b"stdout" not in heard:
                heard += stream.recv(4096)
            self.assertTrue(heard.startswith(b"HTTP/1.1 200"), heard[:200])
            # A reset, not an end.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until("the command went on to its end", lambda: box.files.exists("/tmp/whole"))
        self.assertEqual(box.commands.run("echo well").stdout, "well\n")
