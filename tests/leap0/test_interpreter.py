"""The code interpreter on the sandbox's own host."""

from leap0 import Leap0Error, Leap0NotFoundError

from world import Shared


class Interpreter(Shared):
    ask = {"template_name": "system/code-interpreter:v0.1.0", "memory": 2048, "timeout": 600}

    def test_code_keeps_its_state_in_a_context(self):
        run = self.box.code_interpreter
        self.assertTrue(run.health())
        first = run.execute(code="x = 20\nprint('hello')\nx + 1")
        self.assertEqual((first.main_text, first.logs.stdout, first.error), ("21", ["hello\n"], None))
        self.assertEqual(run.execute(code="x * 2").main_text, "40", "the default context keeps what was defined")
        context = run.create_context(cwd="/tmp")
        self.assertEqual((context.language.value, context.cwd), ("python", "/tmp"))
        own = run.execute(code="import os; os.getcwd(), 'x' in globals()", context_id=context.id)
        self.assertEqual((own.main_text, own.context_id), ("('/tmp', False)", context.id))
        self.assertIn(context.id, [one.id for one in run.list_contexts()])
        self.assertEqual(run.get_context(context.id).id, context.id)
        run.delete_context(context.id)
        with self.assertRaises(Leap0NotFoundError):
            run.get_context(context.id)

    def test_failures_are_part_of_the_answer(self):
        done = self.box.code_interpreter.execute(code="print('before')\n1/0")
        self.assertEqual((done.error.name, done.logs.stdout), ("ZeroDivisionError", ["before\n"]))
        self.assertIn("division by zero", done.error.traceback)
        slow = self.box.code_interpreter.execute(code="import time; time.sleep(600)", timeout_ms=500)
        self.assertEqual(slow.error.name, "TimeoutError")
        with self.assertRaises(Leap0Error) as caught:
            self.box.code_interpreter.execute(code="x", language="cobol")
        self.assertEqual(caught.exception.status_code, 400)

    def test_a_stream_runs_on_its_own_and_ends_with_a_code(self):
        run = self.box.code_interpreter
        before = len(run.list_contexts())
        code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n'x' in globals()"
        events = [(event.type.value, event.data, event.code) for event in run.execute_stream(code=code)]
        self.assertIn(("stdout", "out\n", None), events)
        self.assertIn(("stderr", "err\n", None), events)
        self.assertEqual(events[-1], ("exit", "", 0))
        events = list(run.execute_stream(code="raise ValueError('no')"))
        self.assertEqual((events[-1].type.value, events[-1].code), ("exit", 1))
        self.assertEqual(len(run.list_contexts()), before, "a stream leaves no context behind")

    def test_a_paused_interpreter_wakes_with_its_state(self):
        run = self.box.code_interpreter
        run.execute(code="kept = 'kept'")
        self.box.pause()
        self.assertEqual(run.execute(code="kept").main_text, "'kept'")
