// The code interpreter.

import { NotFoundError, SandboxError, TimeoutError } from 'e2b'
import { assert, CodeSandbox, describe, rejects, sandbox, shared, test } from './world.mjs'

export default () => {
  shared('code', CodeSandbox, (box) => {
    test('values and names', async () => {
      assert.equal((await box().runCode('1 + 1')).text, '2')
      await box().runCode('kept = 41')
      const ran = await box().runCode('kept + 1')
      assert.deepEqual([ran.text, ran.results[0].isMainResult, ran.error], ['42', true, undefined])
    })

    test('output is told by its stream', async () => {
      const out = []
      const err = []
      const ran = await box().runCode("import sys\nprint('ä')\nprint('bad', file=sys.stderr)", {
        onStdout: (message) => void out.push(message.line), onStderr: (message) => void err.push(message.line),
      })
      assert.deepEqual([out.join(''), err.join(''), ran.logs.stdout.join('')], ['ä\n', 'bad\n', 'ä\n'])
    })

    test('errors have name, value and trace', async () => {
      const told = []
      const { error } = await box().runCode('1 / 0', { onError: (e) => void told.push(e) })
      assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero'])
      assert.match(error.traceback, /ZeroDivisionError/)
      assert.equal(told.length, 1)
    })

    test('a chart is a picture and data', async () => {
      const ran = await box().runCode("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [3, 7]); plt.title('Bars'); plt.show()")
      const result = ran.results.find((each) => each.png)
      assert.ok(Buffer.from(result.png, 'base64').subarray(1, 4).equals(Buffer.from('PNG')))
      assert.deepEqual([result.chart.type, result.chart.title], ['bar', 'Bars'])
      assert.deepEqual(result.chart.elements.map((e) => [e.label, Number(e.value)]), [['a', 3], ['b', 7]])
    })

    test('rich results have their fields', async () => {
      const { results } = await box().runCode("from IPython.display import *\ndisplay(HTML('<b>x</b>'), Markdown('# t'), JSON({'a': 1}))")
      assert.deepEqual([results[0].html, results[1].markdown, results[2].json], ['<b>x</b>', '# t', { a: 1 }])
    })

    test('contexts know nothing of each other', async () => {
      const one = await box().createCodeContext({ cwd: '/tmp' })
      const two = await box().createCodeContext()
      await box().runCode('x = 1', { context: one })
      assert.equal((await box().runCode('x', { context: two })).error.name, 'NameError')
      assert.equal((await box().runCode('import os; os.getcwd()', { context: one })).text, '/tmp')
      await box().restartCodeContext(one)
      assert.equal((await box().runCode('x', { context: one })).error.name, 'NameError')
      await box().removeCodeContext(one)
      const ids = (await box().listCodeContexts()).map((context) => context.id)
      assert.deepEqual([ids.includes(one.id), ids.includes(two.id)], [false, true])
      // The SDK leaves its timer running after a refusal, and node waits for it.
      await rejects(box().runCode('1', { context: one, requestTimeoutMs: 3000 }), SandboxError)
    })

    test('other languages and environment', async () => {
      assert.equal((await box().runCode('[1, 2].map(n => n * 2).join()', { language: 'javascript' })).text, '2,4')
      assert.equal((await box().runCode('echo hi', { language: 'bash' })).logs.stdout.join(''), 'hi\n')
      assert.equal((await box().runCode("import os; os.environ['A']", { envs: { A: 'b' } })).text, 'b')
    })

    test('what takes too long is interrupted, and the next works', async () => {
      await rejects(box().runCode('import time; time.sleep(600)', { timeoutMs: 1000 }), TimeoutError)
      assert.equal((await box().runCode('2 + 2', { timeoutMs: 60_000 })).text, '4')
    })
  })

  describe('ends of code', { concurrency: 2 }, () => {
    test('killing the sandbox in the middle of a run is told', async (t) => {
      const box = await sandbox(t, CodeSandbox)
      setTimeout(() => box.kill(), 700)
      const began = Date.now()
      await rejects(box.runCode('import time; time.sleep(600)', { requestTimeoutMs: 5000 }), TimeoutError)
      assert.ok(Date.now() - began < 60_000)
    })

    test('names survive a pause', async (t) => {
      const box = await sandbox(t, CodeSandbox)
      await box.runCode('x = 42')
      await box.pause()
      const again = await box.connect()
      assert.equal((await again.runCode('x')).text, '42')
    })
  })
}
