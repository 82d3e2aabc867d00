"""`sandbox.pty`: a terminal as a person would have it."""

import threading

from e2b import CommandExitException, NotFoundException, PtySize
from world import Shared, until


class Screen:
    """Reads a terminal in a thread of its own."""

    def __init__(self, handle):
        self.handle, self.text, self.end = handle, "", None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        def on_pty(data):
            self.text += data.decode(errors="replace")

        try:
            self.end = self.handle.wait(on_pty=on_pty)
        except Exception as ended:
            self.end = ended

    def shows(self, text):
        until(f"the screen shows {text!r}: {self.text[-300:]!r}", lambda: text in self.text)


class Terminals(Shared):
    size = PtySize(rows=24, cols=80)

    def open(self, **more):
        handle = self.box.pty.create(size=self.size, timeout=0, **more)
        self.addCleanup(self.box.pty.kill, handle.pid)
        return handle, Screen(handle)

    def type(self, handle, text):
        self.box.pty.send_stdin(handle.pid, text.encode())

    def test_what_is_typed_runs_and_a_terminal_is_one(self):
        handle, screen = self.open()
        self.type(handle, "test -t 0 && echo is-a-$((40+2))-tty; echo $TERM $LANG; whoami\n")
        screen.shows("is-a-42-tty")
        screen.shows("xterm-256color C.UTF-8")
        screen.shows("user")
        self.type(handle, "exit 0\n")
        until("it ends", lambda: screen.end)
        self.assertEqual(screen.end.exit_code, 0)

    def test_the_size_is_what_was_asked_and_changes(self):
        handle, screen = self.open()
        self.type(handle, "stty size\n")
        screen.shows("24 80")
        self.box.pty.resize(handle.pid, PtySize(rows=50, cols=133))
        self.type(handle, "stty size\n")
        screen.shows("50 133")

    def test_folder_environment_and_user_are_the_terminals_own(self):
        handle, screen = self.open(cwd="/tmp", envs={"MARK": "ä-mark"}, user="root")
        self.type(handle, "echo \"[$PWD $MARK $(id -u)]\"\n")
        screen.shows("[/tmp ä-mark 0]")

    def test_control_keys_reach_the_program(self):
        handle, screen = self.open()
        self.type(handle, "sleep 60; echo after=$?\n")
        until("the program runs", lambda: any("sleep 60" in line for line in self.sh("ps -eo args").split("\n")))
        self.type(handle, "\x03")
        self.type(handle, "echo still-$((1+1))\n")
        screen.shows("still-2")

    def test_killing_is_told_as_a_signal(self):
        handle, screen = self.open()
        self.assertTrue(self.box.pty.kill(handle.pid))
        until("it ends", lambda: screen.end)
        self.assertIsInstance(screen.end, CommandExitException)
        self.assertFalse(self.box.pty.kill(handle.pid))

    def test_a_terminal_is_found_again(self):
        handle, screen = self.open()
        self.type(handle, "KEPT=yes\n")
        self.assertIn(handle.pid, [process.pid for process in self.box.commands.list()])
        again = self.box.pty.connect(handle.pid, timeout=0)
        second = Screen(again)
        self.type(again, "echo kept=$KEPT\n")
        second.shows("kept=yes")
        screen.shows("kept=yes")
        with self.assertRaises(NotFoundException):
            self.box.pty.connect(999_999)

    def test_input_may_be_a_stream(self):
        handle, screen = self.open()
        self.box.pty.stream_input(handle.pid, ["echo ", b"streamed-", "$((20+1))\n"])
        screen.shows("streamed-21")
