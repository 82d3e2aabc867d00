"""Sessions: one shell that keeps its folder and variables, commands in it, their logs."""

import asyncio
import threading

from daytona import (
    AsyncDaytona,
    DaytonaConflictError,
    DaytonaError,
    DaytonaGoneError,
    DaytonaNotFoundError,
    SessionExecuteRequest,
)

from world import Shared, client, name, until


class Sessions(Shared):
    def setUp(self):
        super().setUp()
        self.session = name("s")
        self.box.process.create_session(self.session)

    def run_in(self, command, **more):
        return self.box.process.execute_session_command(self.session, SessionExecuteRequest(command=command, **more))

    def test_folder_and_variables_stay(self):
        self.run_in(f"cd {self.dir}; export A=1; b=2")
        done = self.run_in("pwd; echo $A$b")
        self.assertEqual((done.exit_code, done.stdout), (0, f"{self.dir}\n12\n"))

    def test_functions_and_options_stay_too(self):
        self.run_in("greet() { echo hello $1; }; set -o noclobber")
        self.assertEqual(self.run_in("greet you").stdout, "hello you\n")
        done = self.run_in(f"echo 1 > {self.dir}/f; echo 2 > {self.dir}/f")
        self.assertNotEqual(done.exit_code, 0)

    def test_functions_named_like_our_own_commands_do_not_hide_an_end(self):
        self.assertEqual(self.run_in("echo() { printf changed; }; mkfifo() { false; }; echo x").stdout, "changed")
        done = self.run_in("printf there; (exit 4)")
        self.assertEqual((done.exit_code, done.stdout), (4, "there"))
        began = self.run_in('read line; printf "got $line"', run_async=True)
        self.box.process.send_session_command_input(self.session, began.cmd_id, "it\n")
        until("it ended", lambda: self.box.process.get_session_command(self.session, began.cmd_id).exit_code == 0)

    def test_the_streams_are_kept_apart_and_marked(self):
        done = self.run_in("echo out; echo err >&2; (exit 5)")
        self.assertEqual((done.exit_code, done.stdout, done.stderr), (5, "out\n", "err\n"))
        self.assertIn("\x01\x01\x01out", done.output)
        self.assertIn("\x02\x02\x02err", done.output)

    def test_output_beyond_the_limit_keeps_both_ends_and_says_so(self):
        done = self.run_in("echo begin; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end")
        lines = done.stdout.splitlines()
        self.assertEqual((done.exit_code, lines[0], lines[-2]), (0, "begin", "end"))
        self.assertRegex(lines[-1], r"^\[atoll: output truncated: 20000011 bytes were written, the first \d+ and the last \d+ are kept")

    def test_an_exit_in_a_command_is_its_code(self):
        self.assertEqual(self.run_in("false").exit_code, 1)
        self.assertEqual(self.run_in("true").exit_code, 0)

    def test_a_command_that_runs_on_is_asked_for_later(self):
        began = self.run_in(f"while [ ! -e {self.dir}/go ]; do sleep 0.05; done; echo went; (exit 3)", run_async=True)
        self.assertIsNone(self.box.process.get_session_command(self.session, began.cmd_id).exit_code)
        self.box.fs.upload_file(b"", f"{self.dir}/go")
        until("it ended", lambda: self.box.process.get_session_command(self.session, began.cmd_id).exit_code == 3)
        self.assertEqual(self.box.process.get_session_command_logs(self.session, began.cmd_id).stdout, "went\n")

    def test_input_reaches_the_command_that_waits_for_it(self):
        began = self.run_in('read line; echo "got <$line>"', run_async=True)
        self.box.process.send_session_command_input(self.session, began.cmd_id, "some wörds\n")
        until("it ended", lambda: self.box.process.get_session_command(self.session, began.cmd_id).exit_code == 0)
        self.assertIn("got <some wörds>", self.box.process.get_session_command_logs(self.session, began.cmd_id).stdout)

    def test_input_to_a_command_that_has_ended_is_gone(self):
        done = self.run_in("true")
        with self.assertRaises(DaytonaGoneError):
            self.box.process.send_session_command_input(self.session, done.cmd_id, "late\n")

    def test_the_logs_of_a_command_stay(self):
        done = self.run_in("echo first; echo second >&2")
        logs = self.box.process.get_session_command_logs(self.session, done.cmd_id)
        self.assertEqual((logs.stdout, logs.stderr), ("first\n", "second\n"))

    def test_logs_are_followed_while_they_are_written(self):
        # It goes on only after its first line was read.
        line = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; while [ ! -e %s/heard ]; do sleep 0.05; done; done"
        began = self.run_in(line % self.dir, run_async=True)
        out, err = [], []

        def on_stdout(text):
            if not out:
                self.box.fs.upload_file(b"", f"{self.dir}/heard")
            out.append(text)

        asyncio.run(self.box.process.get_session_command_logs_async(self.session, began.cmd_id, on_stdout, err.append))
        self.assertEqual("".join(out).split(), [f"out{i}" for i in range(1, 6)])
        self.assertEqual("".join(err).split(), [f"err{i}" for i in range(1, 6)])

    def test_a_follower_that_comes_late_or_again_sees_all_of_it(self):
        began = self.run_in("echo early; sleep 0.3; echo late", run_async=True)
        until("early is there", lambda: "early" in (self.box.process.get_session_command_logs(self.session, began.cmd_id).stdout or ""))
        for _ in range(2):
            out = []
            asyncio.run(self.box.process.get_session_command_logs_async(self.session, began.cmd_id, out.append, out.append))
            self.assertEqual("".join(out).split(), ["early", "late"])

    def test_a_stream_that_is_cut_is_taken_up_again(self):
        began = self.run_in("for i in $(seq 1 30); do echo line$i; sleep 0.03; done", run_async=True)

        async def cut():
            got = asyncio.Event()
            task = asyncio.create_task(
                box.process.get_session_command_logs_async(self.session, began.cmd_id, lambda _: got.set(), print))
            await asyncio.wait_for(got.wait(), 60)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            out = []
            await box.process.get_session_command_logs_async(self.session, began.cmd_id, out.append, out.append)
            return "".join(out).split()

        async def main():
            nonlocal box
            async with AsyncDaytona() as there:
                box = await there.get(self.box.id)
                return await cut()

        box = None
        self.assertEqual(asyncio.run(main()), [f"line{i}" for i in range(1, 31)])

    def test_sessions_and_their_commands_are_listed(self):
        done = self.run_in("echo listed")
        found = self.box.process.get_session(self.session)
        self.assertEqual(found.session_id, self.session)
        self.assertEqual([(c.id, c.command, c.exit_code) for c in found.commands], [(done.cmd_id, "echo listed", 0)])
        self.assertIn(self.session, [s.session_id for s in self.box.process.list_sessions()])

    def test_a_deleted_session_ends_what_runs_in_it(self):
        mark = name("mark")
        self.run_in(f"bash -c 'exec -a {mark} sleep 300'", run_async=True)
        until("it runs", lambda: self.box.process.exec(f"pgrep -f '^{mark}'").exit_code == 0)
        self.box.process.delete_session(self.session)
        until("it is gone", lambda: self.box.process.exec(f"pgrep -f '^{mark}'").exit_code == 1)
        with self.assertRaises(DaytonaNotFoundError):
            self.box.process.get_session(self.session)

    def test_a_session_of_the_same_name_is_a_conflict(self):
        with self.assertRaises(DaytonaConflictError):
            self.box.process.create_session(self.session)

    def test_what_is_not_there_is_not_found(self):
        for ask in (
            lambda: self.box.process.get_session("none"),
            lambda: self.box.process.delete_session("none"),
            lambda: self.box.process.get_session_command(self.session, "none"),
            lambda: self.box.process.get_session_command_logs(self.session, "none"),
            lambda: self.box.process.execute_session_command("none", SessionExecuteRequest(command="true")),
        ):
            with self.assertRaises(DaytonaNotFoundError):
                ask()

    def test_the_reserved_name_is_refused(self):
        with self.assertRaises(DaytonaError):
            self.box.process.create_session("entrypoint")

    def test_a_shell_that_ended_itself_is_gone(self):
        self.run_in("exit 4")
        with self.assertRaises((DaytonaGoneError, DaytonaNotFoundError)):
            self.run_in("true")

    def test_two_sessions_know_nothing_of_each_other(self):
        other = name("s")
        self.box.process.create_session(other)
        self.run_in("x=mine")
        done = self.box.process.execute_session_command(other, SessionExecuteRequest(command='echo "[$x]"'))
        self.assertEqual(done.stdout, "[]\n")

    def test_commands_of_several_sessions_run_at_once(self):
        ids = [name("s") for _ in range(5)]
        for one in ids:
            self.box.process.create_session(one)
        said = {}
        # Each waits for all the others; one after the other, the first would wait in vain.
        meet = f"touch {self.dir}/$1; for i in $(seq 3000); do [ $(ls {self.dir} | wc -l) = 5 ] && break; sleep 0.02; done; ls {self.dir} | wc -l"
        self.box.fs.upload_file(meet.encode(), "/tmp/meet.sh")

        def run(one):
            request = SessionExecuteRequest(command=f"sh /tmp/meet.sh {one}")
            said[one] = self.box.process.execute_session_command(one, request).stdout

        threads = [threading.Thread(target=run, args=(one,)) for one in ids]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(said, {one: "5\n" for one in ids})

    def test_the_sandboxes_own_command_has_a_session(self):
        """This one runs no command of its own; one that does is in test_snapshots."""
        self.assertEqual(self.box.process.get_entrypoint_session().session_id, "entrypoint")
        self.assertEqual(self.box.process.get_entrypoint_logs().output, "")

    def test_a_second_client_sees_the_same_session(self):
        self.run_in("export SEEN=yes")
        again = client().get(self.box.id)
        done = again.process.execute_session_command(self.session, SessionExecuteRequest(command="echo $SEEN"))
        self.assertEqual(done.stdout, "yes\n")
