"""Terminals."""

import threading

from daytona import DaytonaError, DaytonaNotFoundError
from daytona.common.pty import PtySize

from world import Shared, name, until


class Read:
    """Reads a terminal in the background."""

    def __init__(self, handle):
        self.seen, self.result = b"", None

        def run():
            self.result = handle.wait(on_data=self.take, timeout=120)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def take(self, data):
        self.seen += data

    def has(self, wanted):
        return until(f"{wanted!r} in the terminal, not {self.seen!r}", lambda: wanted in self.seen)


class Pty(Shared):
    def open(self, **more):
        self.session = name("p")
        handle = self.box.process.create_pty_session(id=self.session, **more)
        self.addCleanup(handle.disconnect)
        handle.wait_for_connection()
        return handle, Read(handle)

    def test_a_shell_with_a_size_a_folder_and_variables(self):
        handle, read = self.open(cwd=self.dir, envs={"A": "ünï"}, pty_size=PtySize(rows=30, cols=100))
        handle.send_input("stty size; pwd; echo $A-$((40+2)) $TERM\n")
        read.has("ünï-42 xterm-256color".encode())
        self.assertIn(b"30 100", read.seen)
        self.assertIn(self.dir.encode(), read.seen)

    def test_a_terminal_has_24_rows_of_80_unless_told(self):
        handle, read = self.open()
        handle.send_input("stty size\n")
        read.has(b"24 80")

    def test_a_new_size_reaches_the_program(self):
        handle, read = self.open()
        info = handle.resize(PtySize(rows=50, cols=132))
        self.assertEqual((info.rows, info.cols), (50, 132))
        handle.send_input("stty size\n")
        read.has(b"50 132")
        info = self.box.process.resize_pty_session(self.session, PtySize(rows=20, cols=60))
        self.assertEqual((info.rows, info.cols), (20, 60))

    def test_the_exit_code_of_the_shell(self):
        handle, read = self.open()
        handle.send_input("exit 7\n")
        until("it ended", lambda: read.result)
        self.assertEqual((read.result.exit_code, handle.is_connected()), (7, False))

    def test_a_shell_that_ends_well_says_zero(self):
        handle, read = self.open()
        handle.send_input("exit\n")
        until("it ended", lambda: read.result)
        self.assertEqual(read.result.exit_code, 0)

    def test_one_that_is_killed_says_so(self):
        handle, read = self.open()
        handle.send_input("echo up\n")
        read.has(b"up")
        handle.kill()
        until("it ended", lambda: read.result)
        self.assertEqual(read.result.exit_code, 137)
        with self.assertRaises(DaytonaNotFoundError):
            self.box.process.get_pty_session_info(self.session)

    def test_ctrl_c_interrupts_what_runs(self):
        handle, read = self.open()
        handle.send_input("sleep 300\n")
        until("it runs", lambda: self.box.process.exec("pgrep -xf 'sleep 300'").exit_code == 0)
        handle.send_input("\x03")
        handle.send_input("echo after-$((1+1))\n")
        read.has(b"after-2")

    def test_sessions_are_listed_and_described(self):
        self.open(cwd=self.dir)
        info = self.box.process.get_pty_session_info(self.session)
        self.assertEqual((info.id, info.cwd, info.active, info.rows, info.cols), (self.session, self.dir, True, 24, 80))
        self.assertIn(self.session, [s.id for s in self.box.process.list_pty_sessions()])
        self.box.process.kill_pty_session(self.session)
        until("it is off the list", lambda: self.session not in [s.id for s in self.box.process.list_pty_sessions()])

    def test_one_that_was_left_is_taken_up_again(self):
        handle, read = self.open()
        handle.send_input("KEPT=still-here\n")
        handle.send_input("echo ready-$((2+3))\n")
        read.has(b"ready-5")
        handle.disconnect()
        again = self.box.process.connect_pty_session(self.session)
        self.addCleanup(again.disconnect)
        again.wait_for_connection()
        read = Read(again)
        again.send_input("echo $KEPT\n")
        read.has(b"still-here")

    def test_two_clients_see_one_terminal(self):
        one, read_one = self.open()
        two = self.box.process.connect_pty_session(self.session)
        self.addCleanup(two.disconnect)
        two.wait_for_connection()
        read_two = Read(two)
        one.send_input("echo both-$((3*3))\n")
        read_one.has(b"both-9")
        read_two.has(b"both-9")

    def test_a_name_that_is_taken_is_refused(self):
        self.open()
        with self.assertRaises(DaytonaError):
            self.box.process.create_pty_session(id=self.session)

    def test_one_that_is_not_there_is_not_found(self):
        for ask in (
            lambda: self.box.process.get_pty_session_info("none"),
            lambda: self.box.process.kill_pty_session("none"),
            lambda: self.box.process.resize_pty_session("none", PtySize(rows=10, cols=10)),
        ):
            with self.assertRaises(DaytonaError):
                ask()
        with self.assertRaises(Exception):
            self.box.process.connect_pty_session("none")

    def test_much_output_comes_whole(self):
        handle, read = self.open()
        handle.send_input("seq 1 20000 | tail -1; seq 1 20000; echo end-$((5*5))\n")
        read.has(b"end-25")
        self.assertIn(b"\r\n19999\r\n", read.seen)
