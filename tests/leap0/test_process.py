"""Commands and terminals."""

import time

from leap0 import Leap0ConflictError, Leap0Error, Leap0NotFoundError

from world import Shared, until


def read_until(connection, wanted):
    seen, deadline = b"", time.monotonic() + 60
    while wanted not in seen:
        if time.monotonic() > deadline:
            raise AssertionError(f"{wanted!r} did not come: {seen!r}")
        seen += connection.recv()
    return seen


class Process(Shared):
    def test_a_command_is_run_by_the_shell(self):
        done = self.box.process.execute(command="echo out; echo err >&2; exit 3")
        self.assertEqual((done.exit_code, done.stdout, done.stderr), (3, "out\n", "err\n"))

    def test_folder_and_environment(self):
        done = self.box.process.execute(command='pwd; echo "$A"', cwd="/usr", env={"A": "x y"})
        self.assertEqual(done.stdout, "/usr\nx y\n")

    def test_a_command_that_takes_too_long_is_ended(self):
        since = time.monotonic()
        done = self.box.process.execute(command="echo begun; sleep 600", timeout=4)
        self.assertEqual((done.exit_code, done.stdout), (124, "begun\n"))
        self.assertLess(time.monotonic() - since, 60)

    def test_bytes_that_are_no_text_do_not_break_the_answer(self):
        self.assertIn("�", self.box.process.execute(command="printf '\\377ok'").stdout)

    def test_output_beyond_the_limit_keeps_both_ends_and_says_so(self):
        command = "echo begin; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo end; echo err >&2"
        done = self.box.process.execute(command=command)
        lines = done.stdout.splitlines()
        self.assertEqual((done.exit_code, lines[0], lines[-2], done.stderr), (0, "begin", "end", "err\n"))
        self.assertRegex(lines[-1], r"^\[atoll: output truncated: 10000011 bytes were written, the first \d+ and the last \d+ are kept")
        self.assertLess(len(done.stdout), (8 << 20) + 1000)
        whole = self.box.process.execute(command="head -c 8000000 /dev/zero | tr '\\0' x")
        self.assertEqual(whole.stdout, "x" * 8000000)

    def test_a_folder_that_is_not_there_is_refused(self):
        with self.assertRaises(Leap0Error):
            self.box.process.execute(command="true", cwd="/none")


class Pty(Shared):
    def test_a_shell_by_a_name_of_the_users_choice(self):
        made = self.box.pty.create(session_id="my/shell one", cols=100, rows=30, cwd="/usr", envs={"A": "1"})
        self.assertEqual((made.id, made.cols, made.rows, made.cwd, made.envs), ("my/shell one", 100, 30, "/usr", {"A": "1"}))
        self.assertTrue(made.active and not made.lazy_start)
        with self.assertRaises(Leap0ConflictError):
            self.box.pty.create(session_id="my/shell one")
        connection = self.box.pty.connect("my/shell one")
        connection.send("stty size; pwd; echo $A-$((40+2))\n")
        seen = read_until(connection, b"1-42")
        self.assertIn(b"30 100", seen)
        self.assertIn(b"/usr", seen)
        resized = self.box.pty.resize("my/shell one", cols=120, rows=40)
        self.assertEqual((resized.cols, resized.rows), (120, 40))
        connection.send("stty size\n")
        read_until(connection, b"40 120")
        connection.close()
        again = self.box.pty.connect("my/shell one")
        again.send("echo still-$A\n")
        read_until(again, b"still-1")
        again.close()
        self.assertEqual(self.box.pty.get("my/shell one").cols, 120)
        self.box.pty.delete("my/shell one")
        with self.assertRaises(Leap0NotFoundError):
            self.box.pty.get("my/shell one")

    def test_a_lazy_shell_starts_with_its_first_connection(self):
        made = self.box.pty.create(lazy_start=True)
        self.assertTrue(made.id and made.lazy_start and not made.active)
        self.assertIn(made.id, [one.id for one in self.box.pty.list()])
        connection = self.box.pty.connect(made.id)
        connection.send(b"echo here-$((1+1))\n")
        read_until(connection, b"here-2")
        self.assertTrue(self.box.pty.get(made.id).active)
        connection.send(b"exit\n")
        until("the session ends with its shell", lambda: made.id not in [one.id for one in self.box.pty.list()])

    def test_a_connection_wakes_the_sandbox(self):
        made = self.box.pty.create(session_id="sleeper")
        self.box.pause()
        connection = self.box.pty.connect(made.id)
        connection.send("echo awake-$((6*7))\n")
        read_until(connection, b"awake-42")
        connection.close()

    def test_there_is_no_way_to_a_session_that_is_not_there(self):
        for call in (self.box.pty.get, self.box.pty.delete):
            with self.assertRaises(Leap0NotFoundError):
                call("none")
        with self.assertRaises(Leap0Error):
            self.box.pty.connect("none")
