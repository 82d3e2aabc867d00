"""Commands and code: what runs, as whom, for how long, and what comes back."""

import threading
import time

from daytona import (
    CodeRunParams,
    DaytonaBadRequestError,
    DaytonaError,
    DaytonaTimeoutError,
)

from world import INTERPRETER, Shared, name, until


class Exec(Shared):
    def test_a_command_answers_what_it_wrote_and_how_it_ended(self):
        done = self.box.process.exec("echo out; echo err >&2; exit 42")
        self.assertEqual(done.exit_code, 42)
        self.assertEqual(sorted(done.result.split()), ["err", "out"])
        self.assertEqual(done.artifacts.stdout, done.result)

    def test_both_streams_come_in_the_order_they_were_written(self):
        done = self.box.process.exec("for i in 1 2 3; do echo out$i; echo err$i >&2; done")
        self.assertEqual(done.result.split(), ["out1", "err1", "out2", "err2", "out3", "err3"])

    def test_it_runs_as_the_sandboxes_user_in_its_home(self):
        user, home = self.sh("whoami; pwd").split()
        self.assertEqual((user, home), (self.box.user, self.box.get_user_home_dir()))
        self.assertEqual(self.sh("id -u").strip() != "0", user != "root")

    def test_the_user_may_become_root_inside(self):
        self.assertEqual(self.sh("sudo -n id -u").strip(), "0")

    def test_folder_and_environment_are_of_this_command_alone(self):
        self.assertEqual(self.sh('pwd; echo "$A"', cwd="/usr", env={"A": "x 'y' $HOME"}), "/usr\nx 'y' $HOME\n")
        self.assertEqual(self.sh('echo "[$A]"'), "[]\n")

    def test_a_folder_that_is_not_there_is_refused(self):
        done = self.box.process.exec("pwd; echo ran", cwd="/none/such")
        self.assertEqual(done.exit_code, -1)
        self.assertIn("/none/such", done.result)

    def test_a_name_that_can_be_no_variable_is_refused(self):
        with self.assertRaises(DaytonaError):
            self.box.process.exec("true", env={"not a name": "1"})

    def test_an_empty_command_is_refused(self):
        with self.assertRaises(DaytonaBadRequestError):
            self.box.process.exec("")

    def test_a_command_of_many_lines_is_one_script(self):
        self.assertEqual(self.sh("x=1\nif [ $x = 1 ]; then\n  echo yes\nfi\ncat <<'END'\n$x\nEND"), "yes\n$x\n")

    def test_quotes_and_unicode_arrive_as_they_are(self):
        self.assertEqual(self.sh("""printf '%s' "ünï 'q' \\"d\\" 漢字 🙂" """), "ünï 'q' \"d\" 漢字 🙂")

    def test_bytes_that_are_no_text_do_not_break_the_answer(self):
        self.assertIn("ok", self.box.process.exec("printf '\\377\\376ok'").result)

    def test_much_output_comes_whole(self):
        self.assertEqual(len(self.sh("head -c 3000000 /dev/zero | tr '\\0' x")), 3_000_000)

    def test_a_command_that_takes_too_long_is_ended_with_all_it_started(self):
        mark = name("mark")
        since = time.monotonic()
        with self.assertRaises(DaytonaTimeoutError):
            self.box.process.exec(f"(exec -a {mark} sleep 300) & exec -a {mark} sleep 300", timeout=1)
        self.assertLess(time.monotonic() - since, 60)
        until("both are gone", lambda: self.box.process.exec(f"pgrep -f '^{mark}'").exit_code == 1)

    def test_a_command_that_is_not_there_is_the_shells_127(self):
        done = self.box.process.exec("no-such-program-here")
        self.assertEqual(done.exit_code, 127)
        self.assertIn("not found", done.result)

    def test_a_command_ended_by_a_signal_says_so_as_a_shell_does(self):
        self.assertEqual(self.box.process.exec("kill -9 $$").exit_code, 137)

    def test_what_runs_in_the_background_lives_on(self):
        self.sh(f"nohup sh -c 'sleep 0.3; echo late > {self.dir}/late' >/dev/null 2>&1 &")
        until("it wrote", lambda: self.box.process.exec(f"cat {self.dir}/late").result == "late\n")

    def test_a_hundred_commands_at_once_keep_apart(self):
        said = [None] * 100

        def one(n):
            said[n] = self.box.process.exec(f"sleep 0.1; echo {n}").result

        threads = [threading.Thread(target=one, args=(n,)) for n in range(len(said))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(said, [f"{n}\n" for n in range(len(said))])

    def test_output_beyond_the_limit_keeps_both_ends_and_says_so(self):
        done = self.box.process.exec("echo begin; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end")
        lines = done.result.splitlines()
        self.assertEqual((done.exit_code, lines[0], lines[-2]), (0, "begin", "end"))
        self.assertRegex(lines[-1], r"^\[atoll: output truncated: 20000011 bytes were written, the first \d+ and the last \d+ are kept")
        self.assertTrue(any(line.startswith("[atoll: ") and line.endswith(" bytes left out here]") for line in lines))
        self.assertLess(len(done.result), (16 << 20) + 1000)
        whole = self.box.process.exec("head -c 16000000 /dev/zero | tr '\\0' x")
        self.assertEqual(whole.result, "x" * 16000000)

    def test_stdin_is_empty_and_not_a_way_to_hang(self):
        self.assertEqual(self.sh("cat; echo done"), "done\n")


class CodeRun(Shared):
    params = {"snapshot": INTERPRETER}

    def test_python_with_arguments_and_environment(self):
        params = CodeRunParams(argv=["one", "two"], env={"FOO": "bar baz"})
        done = self.box.process.code_run("import sys, os\nprint(sys.argv[1:], os.environ['FOO'])", params)
        self.assertEqual((done.exit_code, done.result), (0, "['one', 'two'] bar baz\n"))

    def test_an_exception_is_an_exit_code_and_its_text(self):
        done = self.box.process.code_run("def f():\n    raise ValueError('ünlucky')\nf()")
        self.assertEqual(done.exit_code, 1)
        self.assertIn("ValueError: ünlucky", done.result)

    def test_nothing_is_kept_between_two_runs(self):
        self.box.process.code_run("x = 1")
        self.assertIn("NameError", self.box.process.code_run("print(x)").result)

    def test_sys_exit_is_the_exit_code(self):
        self.assertEqual(self.box.process.code_run("import sys; sys.exit(7)").exit_code, 7)

    def test_a_run_that_takes_too_long_is_ended(self):
        # The SDK does not wrap this call's errors: what comes is the client's own, with the status.
        with self.assertRaises(Exception) as refused:
            self.box.process.code_run("while True: pass", timeout=1)
        self.assertIn("408", str(getattr(refused.exception, "status", refused.exception)) + str(refused.exception))

    def test_charts_come_as_data_and_leave_the_output_alone(self):
        code = (
            "import matplotlib.pyplot as plt\n"
            "plt.plot([1, 2, 3], [2, 4, 8], label='grow'); plt.title('T'); plt.xlabel('X'); plt.ylabel('Y')\n"
            "plt.show()\n"
            "plt.figure(); plt.bar(['a', 'b'], [3, 5]); plt.title('B'); plt.show()\n"
            "print('said')\n"
        )
        done = self.box.process.code_run(code)
        self.assertEqual((done.exit_code, done.result), (0, "said\n"))
        line, bar = done.artifacts.charts
        self.assertEqual((str(getattr(line.type, "value", line.type)), line.title, line.x_label, line.y_label), ("line", "T", "X", "Y"))
        self.assertEqual([list(p) for p in line.elements[0].points], [[1, 2], [2, 4], [3, 8]])
        self.assertEqual((bar.title, [(e.label, float(e.value)) for e in bar.elements]), ("B", [("a", 3.0), ("b", 5.0)]))
        self.assertTrue(line.png)


class Typed(Shared):
    params = {"language": "javascript"}

    def test_javascript_by_the_language_of_the_sandbox(self):
        self.assertEqual(self.box.labels["code-toolbox-language"], "javascript")
        done = self.box.process.code_run("console.log([1,2,3].map(x => x * 2).join('-'), process.argv.slice(2).join())",
                                         CodeRunParams(argv=["a"]))
        self.assertEqual((done.exit_code, done.result.strip()), (0, "2-4-6 a"))

    def test_a_javascript_error_is_an_exit_code(self):
        done = self.box.process.code_run("throw new Error('boom')")
        self.assertNotEqual(done.exit_code, 0)
        self.assertIn("boom", done.result)
