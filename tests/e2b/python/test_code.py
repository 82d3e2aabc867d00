"""The code interpreter: values, output, rich results and charts, contexts, languages, ends that are not normal."""

import base64
import json
import re
import threading
import time

from e2b import InvalidArgumentException, NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox
from e2b_code_interpreter.charts import BarChart, BoxAndWhiskerChart, ChartType, LineChart, PieChart, ScatterChart, SuperChart
from world import Case, SharedCode, until


class Values(SharedCode):
    def run_code(self, code, **more):
        ran = self.box.run_code(code, **more)
        self.assertIsNone(ran.error, ran)
        return ran

    def test_the_last_expression_is_the_result(self):
        ran = self.run_code("1 + 1")
        self.assertEqual(ran.text, "2")
        self.assertTrue(ran.results[0].is_main_result)
        self.assertEqual(self.run_code("'text'").text, "text")
        self.assertIsNone(self.run_code("x = 5").text)
        self.assertEqual(json.loads(ran.to_json())["results"][0]["text"], "2")

    def test_programs_inside_find_it_at_its_port(self):
        self.assertEqual(self.box.commands.run("curl -s http://localhost:49999/health").stdout, '"OK"')
        self.run_code("of_kernel = 6")
        asked = self.box.commands.run(
            """curl -sN -X POST -H 'Content-Type: application/json' -d '{"code": "of_kernel * 7"}' http://localhost:49999/execute"""
        )
        lines = [json.loads(line) for line in asked.stdout.splitlines()]
        self.assertEqual([line["text"] for line in lines if line["type"] == "result"], ["42"])
        contexts = json.loads(self.box.commands.run("curl -s http://localhost:49999/contexts").stdout)
        self.assertTrue({"python", "javascript"} <= {context["language"] for context in contexts})

    def test_names_stay_from_one_run_to_the_next(self):
        self.run_code("kept = 40")
        self.assertEqual(self.run_code("kept + 2").text, "42")
        self.run_code("def twice(n):\n    return n * 2\nimport math")
        self.assertEqual(self.run_code("twice(math.floor(21.9))").text, "42")

    def test_output_is_told_by_its_stream_while_it_runs(self):
        out, err = [], []

        def hear(message):
            out.append(message.line)
            if len(out) == 1:
                self.box.files.write("/tmp/heard", "")

        # It goes on only after its first line was heard.
        ran = self.run_code(
            "import os, sys, time\nprint('one')\nwhile not os.path.exists('/tmp/heard'): time.sleep(0.05)\n"
            "print('two ä')\nprint('bad', file=sys.stderr)",
            on_stdout=hear,
            on_stderr=lambda m: err.append(m.line),
        )
        self.assertEqual(("".join(out), "".join(err)), ("one\ntwo ä\n", "bad\n"))
        self.assertEqual(("".join(ran.logs.stdout), "".join(ran.logs.stderr)), ("one\ntwo ä\n", "bad\n"))
        self.assertEqual(json.loads(ran.logs.to_json())["stderr"], ["bad\n"])

    def test_an_error_has_name_value_and_trace(self):
        told = []
        ran = self.box.run_code("def f():\n    return 1 / 0\nf()", on_error=told.append)
        self.assertEqual((ran.error.name, ran.error.value), ("ZeroDivisionError", "division by zero"))
        self.assertIn("return 1 / 0", re.sub("\x1b\\[[0-9;]*m", "", ran.error.traceback))
        self.assertEqual(told[0].name, "ZeroDivisionError")
        self.assertEqual(json.loads(ran.error.to_json())["name"], "ZeroDivisionError")
        self.assertEqual(self.box.run_code("if").error.name, "SyntaxError")
        self.assertEqual(self.run_code("'alive'").text, "alive")

    def test_runs_are_counted(self):
        context = self.box.create_code_context()
        counts = [self.box.run_code("1", context=context).execution_count for _ in range(3)]
        self.assertEqual(counts, [counts[0], counts[0] + 1, counts[0] + 2])

    def test_environment_is_the_runs_own(self):
        self.assertEqual(self.run_code("import os; os.environ['A']", envs={"A": "b"}).text, "b")
        self.assertEqual(self.run_code("os.environ.get('A', 'gone')").text, "gone")

    def test_a_sandboxs_environment_is_in_the_kernel(self):
        box = self.sandbox(kind=Sandbox, envs={"OF_SANDBOX": "here"})
        self.assertEqual(box.run_code("import os; os.environ['OF_SANDBOX'], os.getcwd()").text, "('here', '/home/user')")

    def test_the_kernel_and_the_shell_see_the_same_files(self):
        self.run_code("open('/home/user/by-code', 'w').write('code')")
        self.assertEqual(self.box.files.read("/home/user/by-code"), "code")
        self.box.files.write("/home/user/by-files", "files")
        self.assertEqual(self.run_code("open('by-files').read()").text, "files")
        self.assertEqual(self.run_code("!whoami").logs.stdout[0].strip(), "root")

    def test_kernels_are_roots_and_start_in_the_users_home(self):
        seen = "import os; open('/root/by-code', 'w').write('x'); os.getuid(), os.getcwd(), open('/root/by-code').read()"
        self.assertEqual(self.run_code(seen).text, "(0, '/home/user', 'x')")
        context = self.box.create_code_context(cwd="/root")
        self.assertEqual((context.cwd, self.run_code("import os; os.getcwd()", context=context).text), ("/root", "/root"))
        self.box.remove_code_context(context)
        self.assertEqual(self.run_code("[process.getuid(), process.cwd()].join()", language="js").text, "0,/home/user")
        self.assertEqual("".join(self.run_code("id -u; pwd", language="bash").logs.stdout), "0\n/home/user\n")
        self.assertEqual(self.box.commands.run("id -un").stdout, "user\n")

    def test_top_level_await_works(self):
        self.assertEqual(self.run_code("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nawait f()").text, "7")

    def test_a_megabyte_of_output_comes_whole(self):
        ran = self.run_code("print('x' * 1_000_000)\nfor i in range(2000): print(i)")
        said = "".join(ran.logs.stdout)
        self.assertEqual(len(said), 1_000_001 + sum(len(str(n)) + 1 for n in range(2000)))
        self.assertTrue(said.endswith("1998\n1999\n"))

    def test_asking_for_input_is_an_error_and_not_a_wait(self):
        self.assertIsNotNone(self.box.run_code("input('?')", timeout=60).error)


class Rich(SharedCode):
    def shown(self, code):
        results = []
        ran = self.box.run_code(code, on_result=results.append)
        self.assertIsNone(ran.error, ran)
        self.assertEqual(len(results), len(ran.results))
        return ran.results

    def test_every_kind_of_result_has_its_field(self):
        (html,) = self.shown("from IPython.display import *\nHTML('<b>bold</b>')")
        self.assertEqual(html.html, "<b>bold</b>")
        self.assertIn("html", html.formats())
        kinds = {
            "Markdown('# title')": ("markdown", "# title"),
            "SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"><g/></svg>')": ("svg", "<svg"),
            "Latex('$x^2$')": ("latex", "$x^2$"),
            "Javascript('alert(1)')": ("javascript", "alert(1)"),
        }
        for code, (field, value) in kinds.items():
            (result,) = self.shown(code)
            self.assertIn(value, getattr(result, field), code)
        (data,) = self.shown("JSON({'a': [1, 2]})")
        self.assertEqual(data.json, {"a": [1, 2]})
        (other,) = self.shown("display({'application/x-own': 'mine', 'text/plain': 't'}, raw=True)")
        self.assertEqual(other.extra, {"application/x-own": "mine"})

    def test_what_is_displayed_is_no_main_result(self):
        first, last = self.shown("from IPython.display import display, HTML\ndisplay(HTML('<i>1</i>'))\n'end'")
        self.assertEqual((first.is_main_result, last.is_main_result, last.text), (False, True, "end"))

    def test_a_picture_is_a_picture(self):
        picture = (
            "import struct, zlib\n"
            "def chunk(t, d): return struct.pack('>I', len(d)) + t + d + struct.pack('>I', zlib.crc32(t + d))\n"
            "png = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 1, 1, 8, 2, 0, 0, 0)) "
            "+ chunk(b'IDAT', zlib.compress(b'\\0\\xff\\0\\0')) + chunk(b'IEND', b'')\n"
            "from IPython.display import Image\nImage(png)"
        )
        (result,) = self.shown(picture)
        self.assertTrue(base64.b64decode(result.png).startswith(b"\x89PNG"))

    def test_a_picture_of_pillow_is_a_result_where_it_is_saved_or_shown(self):
        make = "from PIL import Image\nimage = Image.new('RGBA', (2, 2), 'red')\n"
        for act in ("image.save('test.png')", "image.show()"):
            (result,) = self.shown(make + act + "\nprint('done')")
            self.assertTrue(base64.b64decode(result.png).startswith(b"\x89PNG"), act)
        self.assertEqual(self.shown("import io; image.save(io.BytesIO(), 'PNG')"), [], "not saved as a file")
        self.assertTrue(self.box.files.exists("/home/user/test.png"))
        (figure,) = self.shown(self.PLOT + "plt.plot([1, 2]); plt.savefig('figure.png'); plt.show()")
        self.assertIsNotNone(figure.chart)

    PLOT = "import matplotlib.pyplot as plt\n"

    def chart(self, code):
        (result,) = [r for r in self.shown(self.PLOT + code + "\nplt.show()") if r.png]
        self.assertTrue(base64.b64decode(result.png).startswith(b"\x89PNG"))
        return result.chart

    def test_a_line_chart_is_data(self):
        chart = self.chart("plt.plot([1, 2, 3], [4, 5, 6], label='up')\nplt.title('Title')\nplt.xlabel('time (s)')\nplt.ylabel('y')")
        self.assertIsInstance(chart, LineChart)
        self.assertEqual((chart.title, chart.x_label, chart.y_label), ("Title", "time (s)", "y"))
        self.assertEqual(chart.elements[0].label, "up")
        self.assertEqual([list(point) for point in chart.elements[0].points], [[1, 4], [2, 5], [3, 6]])
        self.assertEqual(chart.x_unit, "s")

    def test_a_scatter_chart_is_data(self):
        chart = self.chart("plt.scatter([1, 2], [3, 4], label='dots')")
        self.assertIsInstance(chart, ScatterChart)
        self.assertEqual([list(point) for point in chart.elements[0].points], [[1, 3], [2, 4]])

    def test_a_bar_chart_is_data(self):
        chart = self.chart("plt.bar(['a', 'b'], [3, 7], label='g')\nplt.title('Bars')")
        self.assertIsInstance(chart, BarChart)
        self.assertEqual([(e.label, float(e.value)) for e in chart.elements], [("a", 3.0), ("b", 7.0)])

    def test_a_pie_chart_is_data(self):
        chart = self.chart("plt.pie([1, 3], labels=['q', 'r'])")
        self.assertIsInstance(chart, PieChart)
        self.assertEqual([e.label for e in chart.elements], ["q", "r"])
        self.assertAlmostEqual(chart.elements[1].angle, 270, delta=0.5)
        chart = self.chart("plt.pie([90, 10], labels=['no', 'yes'], startangle=90)")
        self.assertEqual([e.angle for e in chart.elements], [324, 36])

    def test_a_box_chart_is_data(self):
        chart = self.chart("plt.boxplot([[1, 2, 3, 4, 5]])")
        self.assertIsInstance(chart, BoxAndWhiskerChart)
        box = chart.elements[0]
        self.assertEqual((box.min, box.first_quartile, box.median, box.third_quartile, box.max), (1, 2, 3, 4, 5))

    def test_several_in_one_figure_are_one_superchart(self):
        chart = self.chart("f, (a, b) = plt.subplots(1, 2)\na.plot([1], [1])\nb.bar(['x'], [2])")
        self.assertIsInstance(chart, SuperChart)
        self.assertEqual([c.type for c in chart.elements], [ChartType.LINE, ChartType.BAR])


class Contexts(SharedCode):
    def test_contexts_know_nothing_of_each_other(self):
        self.box.files.make_dir("/tmp/own")
        one, two = self.box.create_code_context(cwd="/tmp/own"), self.box.create_code_context()
        self.assertEqual((one.language, one.cwd, two.cwd), ("python", "/tmp/own", "/home/user"))
        self.box.run_code("x = 1", context=one)
        self.assertEqual(self.box.run_code("x", context=two).error.name, "NameError")
        self.assertEqual(self.box.run_code("import os; os.getcwd()", context=one).text, "/tmp/own")
        self.assertTrue({one.id, two.id} <= {context.id for context in self.box.list_code_contexts()})
        self.box.remove_code_context(one)
        self.assertNotIn(one.id, [context.id for context in self.box.list_code_contexts()])
        with self.assertRaises(NotFoundException):
            self.box.run_code("1", context=one)

    def test_a_new_context_is_the_last_of_the_list(self):
        for _ in range(2):
            made = self.box.create_code_context()
            contexts = self.box.list_code_contexts()
            self.assertEqual([context.id for context in contexts[:2]], ["default-python", "default-javascript"])
            self.assertEqual(contexts[-1].id, made.id)

    def test_a_restart_forgets_everything_but_the_context(self):
        context = self.box.create_code_context()
        self.box.run_code("x = 1", context=context)
        self.box.restart_code_context(context)
        self.assertEqual(self.box.run_code("x", context=context).error.name, "NameError")
        self.assertEqual(self.box.run_code("'back'", context=context).text, "back")

    def test_unknown_contexts_are_not_found(self):
        with self.assertRaises(NotFoundException):
            self.box.remove_code_context("no-such-context")
        with self.assertRaises(NotFoundException):
            self.box.restart_code_context("no-such-context")

    def test_a_context_has_one_language(self):
        context = self.box.create_code_context(language="python")
        with self.assertRaises(InvalidArgumentException):
            self.box.run_code("1", context=context, language="python")
        with self.assertRaises(SandboxException):
            self.box.create_code_context(language="cobol")

    def test_two_contexts_run_at_the_same_time(self):
        contexts = [self.box.create_code_context() for _ in range(2)]
        done = []

        # Each waits for the other one, so they end only when both run.
        def one(n, context):
            code = (
                f"import os, time\nopen('/tmp/meet-{n}', 'w').close()\n"
                f"while not os.path.exists('/tmp/meet-{1 - n}'): time.sleep(0.05)\n'met'"
            )
            done.append(self.box.run_code(code, context=context, timeout=60).text)

        threads = [threading.Thread(target=one, args=named) for named in enumerate(contexts)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(done, ["met", "met"])


class Languages(SharedCode):
    def test_javascript_keeps_its_names_and_shows_its_errors(self):
        for word in ("javascript", "js"):
            self.assertEqual(self.box.run_code("1 + 1", language=word).text, "2")
        self.box.run_code("const kept = [1, 2, 3]", language="javascript")
        ran = self.box.run_code("console.log(kept.length); console.error('bad'); kept.map(n => n * 2)", language="javascript")
        self.assertEqual(("".join(ran.logs.stdout), "".join(ran.logs.stderr)), ("3\n", "bad\n"))
        self.assertIn("2, 4, 6", ran.text)
        self.assertEqual(self.box.run_code("throw new TypeError('wrong')", language="javascript").error.name, "TypeError")
        self.assertEqual(self.box.run_code("await Promise.resolve(9)", language="javascript").text, "9")

    def test_modules_are_imported_by_statements(self):
        for language, typed in (("js", ""), ("ts", ": string")):
            ran = self.box.run_code(
                f"\n    import path, {{ join as j }} from 'node:path'\n    import * as os from \"os\"\n"
                f"    const made{typed} = j('a', path.basename('/x/b'))\n    made + typeof os.cpus",
                language=language,
            )
            self.assertIsNone(ran.error, ran)
            self.assertEqual(ran.text, "a/bfunction")
            self.assertEqual(self.box.run_code("path.sep + await Promise.resolve(j('', 'c'))", language=language).text, "/c")
        self.box.files.write("/home/user/node_modules/of-npm/index.mjs", "export default 41\nexport const one = 1\n")
        self.box.files.write("/home/user/node_modules/of-npm/package.json", '{"name": "of-npm", "exports": "./index.mjs"}')
        ran = self.box.run_code("import base, { one } from 'npm:of-npm@1'\nbase + one", language="js")
        self.assertEqual((ran.error, ran.text), (None, "42"))
        missing = self.box.run_code("import x from 'not-installed'", language="js", timeout=60)
        self.assertIn("npm install not-installed", missing.error.value)

    def test_a_rejected_promise_is_an_error_and_not_a_wait(self):
        ran = self.box.run_code("await Promise.reject(new RangeError('no'))", language="js", timeout=60)
        self.assertEqual((ran.error.name, ran.error.value), ("RangeError", "no"))
        self.assertEqual(self.box.run_code("await (async () => 5)()", language="js", timeout=60).text, "5")

    def test_typescript_is_taken(self):
        self.assertEqual(self.box.run_code("const n: number = 41; n + 1", language="typescript").text, "42")

    def test_bash_keeps_its_names(self):
        self.box.run_code("KEPT=yes; cd /tmp", language="bash")
        ran = self.box.run_code("echo $KEPT $PWD; echo bad >&2", language="bash")
        self.assertEqual("".join(ran.logs.stdout), "yes /tmp\n")
        self.assertIn("bad", "".join(ran.logs.stderr) + "".join(ran.logs.stdout))

    def test_a_language_that_nobody_has_is_refused(self):
        with self.assertRaises(SandboxException):
            self.box.run_code("1", language="cobol")


class Ends(Case):
    weight = 6

    def test_a_run_that_takes_too_long_is_interrupted_and_the_next_one_works(self):
        box = self.sandbox(kind=Sandbox)
        box.run_code("kept = 1")
        began = time.monotonic()
        with self.assertRaises(TimeoutException):
            box.run_code("import time; time.sleep(600)", timeout=1)
        self.assertEqual(box.run_code("kept + 1", timeout=60).text, "2")
        self.assertLess(time.monotonic() - began, 90)

    def test_a_kernel_that_dies_is_told_and_replaced(self):
        box = self.sandbox(kind=Sandbox)
        ran = box.run_code("import os; os._exit(3)", timeout=60)
        self.assertIsNotNone(ran.error, ran)
        self.assertEqual(until("there is a new one", lambda: box.run_code("6 * 7", timeout=60).text), "42")

    def test_killing_the_sandbox_in_the_middle_of_a_run_is_told(self):
        box = self.sandbox(kind=Sandbox)
        threading.Timer(0.7, box.kill).start()
        began = time.monotonic()
        with self.assertRaises(TimeoutException):
            box.run_code("import time; time.sleep(600)")
        self.assertLess(time.monotonic() - began, 60)
        with self.assertRaises(TimeoutException):
            box.run_code("1")

    def test_killing_the_sandbox_while_the_first_kernel_starts_is_told(self):
        # A variable that counts when Python starts: a kernel that waited for its sandbox is of no use.
        box = self.sandbox(kind=Sandbox, envs={"PYTHONPATH": "/opt/none"})
        kernels = lambda: set(box.commands.run("pgrep -f '[i]pykernel' || true").stdout.split())
        before = kernels()

        def kill():
            until("a kernel starts", lambda: kernels() - before)
            box.kill()

        threading.Thread(target=kill).start()
        with self.assertRaisesRegex(TimeoutException, "killed while the request was in progress"):
            box.run_code("import time; time.sleep(600)")

    def test_names_survive_a_pause(self):
        box = self.sandbox(kind=Sandbox)
        box.run_code("import itertools; counter = itertools.count(41); next(counter)")
        box.pause()
        self.assertEqual(box.connect().run_code("next(counter)").text, "42")

    def test_names_are_in_every_copy_of_a_snapshot(self):
        box = self.sandbox(kind=Sandbox)
        box.run_code("state = ['common']")
        made = box.create_snapshot()
        self.addCleanup(Sandbox.delete_snapshot, made.snapshot_id)
        copy = self.sandbox(made.snapshot_id, kind=Sandbox)
        copy.run_code("state.append('of the copy')")
        self.assertEqual(copy.run_code("state").text, "['common', 'of the copy']")
        self.assertEqual(box.run_code("state").text, "['common']")
