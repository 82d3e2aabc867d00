"""The interpreter: state that stays, contexts apart, output as it comes; and language servers."""


from daytona import (
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    LspCompletionPosition,
)

from world import INTERPRETER, Shared, until


class Interpreter(Shared):
    params = {"snapshot": INTERPRETER, "env_vars": {"FROM_SANDBOX": "yes"}}

    def run_code(self, code, **more):
        return self.box.code_interpreter.run_code(code, **more)

    def test_state_stays_between_runs(self):
        self.run_code("x = 41")
        self.assertEqual(self.run_code("print(x + 1)").stdout, "42\n")

    def test_output_and_errors_are_apart_and_called_back(self):
        out, err = [], []
        done = self.run_code("import sys\nprint('o'); print('e', file=sys.stderr)", on_stdout=lambda m: out.append(m.output),
                             on_stderr=lambda m: err.append(m.output))
        self.assertEqual((done.stdout, done.stderr, done.error), ("o\n", "e\n", None))
        self.assertEqual(("".join(out), "".join(err)), ("o\n", "e\n"))

    def test_output_comes_while_the_code_runs(self):
        heard, file = [], f"{self.dir}/heard"

        def hear(message):
            if not heard:
                self.box.fs.upload_file(b"", file)
            heard.append(message.output)

        # It goes on only after its first line was heard.
        code = f"import os, time\nprint('one', flush=True)\nwhile not os.path.exists({file!r}): time.sleep(0.05)\nprint('two')"
        self.run_code(code, on_stdout=hear, timeout=60)
        self.assertEqual("".join(heard), "one\ntwo\n")

    def test_an_exception_has_its_name_value_and_trace(self):
        seen = []
        done = self.run_code("def f():\n    return 1 / 0\nf()", on_error=seen.append)
        self.assertEqual((done.error.name, done.error.value), ("ZeroDivisionError", "division by zero"))
        self.assertIn("f()", done.error.traceback)
        self.assertEqual(seen[0].name, "ZeroDivisionError")
        self.assertEqual(self.run_code("print('lives')").stdout, "lives\n")

    def test_a_syntax_error_is_one(self):
        self.assertEqual(self.run_code("def").error.name, "SyntaxError")

    def test_contexts_are_apart(self):
        one = self.box.code_interpreter.create_context(cwd="/usr")
        two = self.box.code_interpreter.create_context()
        self.run_code("v = 1", context=one)
        self.assertEqual(self.run_code("print(v)", context=two).error.name, "NameError")
        self.assertEqual(self.run_code("import os; print(os.getcwd(), v)", context=one).stdout, "/usr 1\n")
        self.assertLessEqual({one.id, two.id}, {c.id for c in self.box.code_interpreter.list_contexts()})
        for context in (one, two):
            self.box.code_interpreter.delete_context(context)
        self.assertFalse({one.id, two.id} & {c.id for c in self.box.code_interpreter.list_contexts()})
        with self.assertRaises(DaytonaNotFoundError):
            self.box.code_interpreter.delete_context(one)
        with self.assertRaises(DaytonaError):
            self.run_code("1", context=one)

    def test_environment_of_the_sandbox_and_of_one_run(self):
        code = "import os; print(os.environ.get('FROM_SANDBOX'), os.environ.get('RUN'))"
        self.assertEqual(self.run_code(code, envs={"RUN": "only now"}).stdout, "yes only now\n")
        self.assertEqual(self.run_code(code).stdout, "yes None\n")

    def test_code_that_takes_too_long_is_interrupted_and_the_context_lives(self):
        self.run_code("kept = 7")
        with self.assertRaises(DaytonaTimeoutError):
            self.run_code("import time\ntime.sleep(60)", timeout=1)
        self.assertEqual(until("it answers again", lambda: self.run_code("print(kept)").stdout), "7\n")

    def test_unicode_and_much_output(self):
        self.assertEqual(self.run_code("print('ünï 漢字 🙂')").stdout, "ünï 漢字 🙂\n")
        self.assertEqual(len(self.run_code("print('x' * 1_000_000)").stdout), 1_000_001)


class WithoutKernel(Interpreter):
    """The same in an image that has Python and no ipykernel."""

    params = {"snapshot": "debian", "env_vars": {"FROM_SANDBOX": "yes"}}

    def test_there_is_no_kernel(self):
        self.assertNotEqual(self.box.process.exec("python3 -c 'import ipykernel'").exit_code, 0)

    def test_a_worker_that_dies_is_told_and_replaced(self):
        died = self.run_code("import os; print('last words'); os._exit(3)")
        self.assertEqual((died.stdout, died.error.name), ("last words\n", "KernelDied"))
        self.assertEqual(self.run_code("print('a new one')").stdout, "a new one\n")

    def test_what_programs_write_is_output_and_await_works(self):
        code = "import asyncio, subprocess\nsubprocess.run(['echo', 'child'])\nawait asyncio.sleep(0)\nprint('then')"
        self.assertEqual(self.run_code(code).stdout, "child\nthen\n")


class Lsp(Shared):
    params = {"snapshot": INTERPRETER}

    def server(self):
        self.box.fs.upload_file(b"import os\n\nclass Shape:\n    def area(self):\n        return os.pa\n\ndef make():\n    return Shape()\n",
                                f"{self.dir}/m.py")
        lsp = self.box.create_lsp_server("python", self.dir)
        lsp.start()
        self.addCleanup(lsp.stop)
        lsp.did_open(f"{self.dir}/m.py")
        return lsp

    def test_relative_paths_are_below_the_working_directory(self):
        self.box.process.exec("mkdir -p ~/lsp/sub && echo 'class Home: pass' > ~/lsp/h.py && echo 'class Sub: pass' > ~/lsp/sub/s.py")
        lsp = self.box.create_lsp_server("python", "lsp")
        lsp.start()
        self.addCleanup(lsp.stop)
        home = self.box.get_user_home_dir()
        # Against the working directory; where that file is missing, against the project.
        for path, name, file in (("lsp/h.py", "Home", "h.py"), ("h.py", "Home", "h.py"), ("./lsp/sub/../sub/s.py", "Sub", "sub/s.py"),
                                 ("sub/s.py", "Sub", "sub/s.py"), (f"{home}/lsp/h.py", "Home", "h.py")):
            lsp.did_open(path)
            found = lsp.document_symbols(path)
            self.assertEqual([s.name for s in found], [name], path)
            self.assertEqual(found[0].location.uri, f"file://{home}/lsp/{file}", path)
            lsp.did_close(path)
        self.assertIn("Sub", {s.name for s in lsp.sandbox_symbols("Sub")})
        # The same server by its absolute path.
        same = self.box.create_lsp_server("python", f"{home}/lsp/")
        self.assertEqual([s.name for s in same.document_symbols("lsp/h.py")], ["Home"])
        with self.assertRaises(DaytonaError):
            lsp.did_open("lsp/none.py")

    def test_the_default_snapshot_has_a_server_for_typescript_and_javascript(self):
        node = self.box.process.exec("node --version").result
        self.assertGreaterEqual(int(node.lstrip("v").split(".")[0]), 20, node)
        for language, end in (("typescript", "ts"), ("javascript", "js")):
            folder = f"{self.dir}/{language}"
            self.box.fs.create_folder(folder, "755")
            self.box.fs.upload_file(b"class Shape {}\nfunction area() { return Math.ab }\n", f"{folder}/m.{end}")
            lsp = self.box.create_lsp_server(language, folder)
            lsp.start()
            self.addCleanup(lsp.stop)
            lsp.did_open(f"{folder}/m.{end}")
            self.assertLessEqual({"Shape", "area"}, {s.name for s in lsp.document_symbols(f"{folder}/m.{end}")})
            found = lsp.completions(f"{folder}/m.{end}", LspCompletionPosition(line=1, character=32))
            self.assertIn("abs", {item.label for item in found.items})

    def test_a_server_that_the_template_lacks_is_named_with_its_packages(self):
        box = self.create(snapshot="debian")
        box.fs.create_folder("/tmp/ts", "755")
        with self.assertRaises(DaytonaError) as refused:
            box.create_lsp_server("typescript", "/tmp/ts").start()
        self.assertIn("npm install -g typescript@5.9 typescript-language-server@5", str(refused.exception))

    def test_symbols_of_a_file(self):
        lsp = self.server()
        names = {s.name for s in lsp.document_symbols(f"{self.dir}/m.py")}
        self.assertLessEqual({"Shape", "area", "make"}, names)

    def test_completions_know_the_code(self):
        lsp = self.server()
        found = lsp.completions(f"{self.dir}/m.py", LspCompletionPosition(line=4, character=20))
        self.assertTrue([i for i in found.items if i.label.startswith("path")], [i.label for i in found.items][:9])
        lsp.did_close(f"{self.dir}/m.py")

    def test_symbols_of_the_whole_project(self):
        lsp = self.server()
        for ask in (lsp.workspace_symbols, lsp.sandbox_symbols):
            self.assertIn("Shape", {s.name for s in ask("Shape")})
            self.assertEqual(ask("NothingOfThatName"), [])

    def test_a_server_that_was_not_started_is_said_so(self):
        lsp = self.box.create_lsp_server("python", f"{self.dir}/elsewhere")
        with self.assertRaises(DaytonaError):
            lsp.document_symbols(f"{self.dir}/m.py")

    def test_a_language_without_a_server_here_is_said_so(self):
        with self.assertRaises(DaytonaError) as refused:
            self.box.create_lsp_server("cobol", self.dir).start()
        self.assertTrue(str(refused.exception))
