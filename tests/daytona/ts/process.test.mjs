// Commands, code, sessions, terminals.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { INTERPRETER, create, name, refused, sdk, sh, shared, sleep, until } from './world.mjs'

const one = shared()
const coder = shared({ snapshot: INTERPRETER })

test('a command answers what it wrote and how it ended', async () => {
  const done = await (await one()).process.executeCommand('echo out; echo err >&2; exit 42')
  assert.equal(done.exitCode, 42)
  assert.deepEqual(done.result.trim().split('\n').sort(), ['err', 'out'])
})

test('folder and environment are of this command alone', async () => {
  assert.equal(await sh(await one(), 'pwd; echo "$A"', '/usr', { A: "ünï 'q'" }), "/usr\nünï 'q'\n")
  assert.equal(await sh(await one(), 'echo "[$A]"'), '[]\n')
})

test('a command that takes too long is ended', async () => {
  const box = await one()
  const mark = name('mark')
  await refused(box.process.executeCommand(`exec -a ${mark} sleep 300`, undefined, undefined, 1), sdk.DaytonaTimeoutError)
  await until('it is gone', async () => (await box.process.executeCommand(`pgrep -f '^${mark}'`)).exitCode === 1)
})

test('an empty command is refused', async () => refused((await one()).process.executeCommand(''), sdk.DaytonaError))

test('fifty commands at once keep apart', async () => {
  const box = await one()
  const said = await Promise.all([...Array(50).keys()].map((n) => sh(box, `sleep 0.2; echo ${n}`)))
  assert.deepEqual(said, [...Array(50).keys()].map((n) => `${n}\n`))
})

test('python code with arguments and environment', async () => {
  const done = await (await one()).process.codeRun("import sys, os; print(sys.argv[1:], os.environ['F'])", { argv: ['a', 'b'], env: { F: 'x y' } })
  assert.deepEqual([done.exitCode, done.result], [0, "['a', 'b'] x y\n"])
})

test('an exception is an exit code and its text', async () => {
  const done = await (await one()).process.codeRun("raise ValueError('unlucky')")
  assert.equal(done.exitCode, 1)
  assert.match(done.result, /ValueError: unlucky/)
})

test('typescript by the language of the sandbox', async () => {
  const box = await create({ language: 'typescript' })
  const done = await box.process.codeRun('const n: number[] = [1, 2]; interface P { x: number }; const p: P = { x: 3 }; console.log(n.length + p.x)')
  assert.deepEqual([done.exitCode, done.result.trim()], [0, '5'])
})

test('charts come as data', async () => {
  const done = await (await coder()).process.codeRun(
    "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4]); plt.title('T'); plt.show()\nprint('said')",
  )
  assert.equal(done.result, 'said\n')
  const [chart] = done.artifacts.charts
  assert.deepEqual([chart.type, chart.title, chart.elements[0].points], ['line', 'T', [[1, 3], [2, 4]]])
})

test('a session keeps its folder and variables', async () => {
  const { process } = await one()
  const id = name('s')
  await process.createSession(id)
  await process.executeSessionCommand(id, { command: 'cd /usr; X=1' })
  const done = await process.executeSessionCommand(id, { command: 'pwd; echo $X; echo err >&2; (exit 4)' })
  assert.deepEqual([done.exitCode, done.stdout, done.stderr], [4, '/usr\n1\n', 'err\n'])
  const found = await process.getSession(id)
  assert.deepEqual(found.commands.map((c) => c.exitCode), [0, 4])
  assert.ok((await process.listSessions()).some((s) => s.sessionId === id))
  await refused(process.createSession(id), sdk.DaytonaConflictError)
  await process.deleteSession(id)
  await refused(process.getSession(id), sdk.DaytonaNotFoundError)
})

test('logs of a session are followed as they are written', async () => {
  const { process, fs } = await one()
  const id = name('s')
  await process.createSession(id)
  // It goes on only after its first line was read.
  const command = `for i in 1 2 3 4; do echo o$i; echo e$i >&2; while [ ! -e /tmp/${id} ]; do sleep 0.05; done; done`
  const { cmdId } = await process.executeSessionCommand(id, { command, runAsync: true })
  let out = ''
  let err = ''
  let told
  const hear = (text) => ((told ??= fs.uploadFile(Buffer.from(''), `/tmp/${id}`)), (out += text))
  await process.getSessionCommandLogs(id, cmdId, hear, (text) => (err += text))
  await told
  assert.deepEqual([out.trim().split('\n'), err.trim().split('\n')], [['o1', 'o2', 'o3', 'o4'], ['e1', 'e2', 'e3', 'e4']])
  assert.equal((await process.getSessionCommandLogs(id, cmdId)).stdout, 'o1\no2\no3\no4\n')
  assert.equal((await process.getSessionCommand(id, cmdId)).exitCode, 0)
})

test('input reaches the command that waits for it', async () => {
  const { process } = await one()
  const id = name('s')
  await process.createSession(id)
  const { cmdId } = await process.executeSessionCommand(id, { command: 'read x; echo got-$x', runAsync: true })
  await process.sendSessionCommandInput(id, cmdId, 'wörd\n')
  await until('it ended', async () => (await process.getSessionCommand(id, cmdId)).exitCode === 0)
  assert.match((await process.getSessionCommandLogs(id, cmdId)).stdout, /got-wörd/)
  await refused(process.sendSessionCommandInput(id, cmdId, 'late\n'), sdk.DaytonaGoneError)
})

test('the sandbox’s own command has a session', async () => {
  const { process } = await one()
  assert.equal((await process.getEntrypointSession()).sessionId, 'entrypoint')
  assert.equal(typeof (await process.getEntrypointLogs()).output, 'string')
})

async function terminal(options = {}) {
  const { process } = await one()
  const id = name('p')
  let seen = ''
  const decoder = new TextDecoder()
  const handle = await process.createPty({ id, cols: 100, rows: 30, onData: (data) => (seen += decoder.decode(data, { stream: true })), ...options })
  await handle.waitForConnection()
  return { id, handle, has: (word) => until(`${word} in ${seen}`, () => seen.includes(word)), process }
}

test('a terminal with a size, a folder and variables', async () => {
  const { handle, has } = await terminal({ cwd: '/usr', envs: { A: 'ünï' } })
  await handle.sendInput('stty size; pwd; echo $A-$((40+2))\n')
  await has('ünï-42')
  await has('30 100')
  await handle.resize(120, 40)
  await handle.sendInput('stty size\n')
  await has('40 120')
  await handle.sendInput('exit 5\n')
  assert.equal((await handle.wait()).exitCode, 5)
})

test('a terminal that was left is taken up again', async () => {
  const { id, handle, has, process } = await terminal()
  await handle.sendInput('KEPT=here\necho ready-$((1+1))\n')
  await has('ready-2')
  await handle.disconnect()
  let seen = ''
  const again = await process.connectPty(id, { onData: (data) => (seen += new TextDecoder().decode(data)) })
  await again.waitForConnection()
  await again.sendInput('echo still-$KEPT\n')
  await until('the variable', () => seen.includes('still-here'))
  assert.ok((await process.listPtySessions()).some((s) => s.id === id))
  assert.equal((await process.getPtySessionInfo(id)).active, true)
  assert.equal((await process.resizePtySession(id, 90, 20)).rows, 20)
  await process.killPtySession(id)
  await until('it is off the list', async () => !(await process.listPtySessions()).some((s) => s.id === id))
})

test('a terminal that is killed says so', async () => {
  const { handle, has } = await terminal()
  await handle.sendInput('echo up-$((2+2))\n')
  await has('up-4')
  await handle.kill()
  assert.equal((await handle.wait()).exitCode, 137)
})

test('state of the interpreter stays, contexts are apart', async () => {
  const { codeInterpreter } = await coder()
  await codeInterpreter.runCode('x = 40')
  let out = ''
  const done = await codeInterpreter.runCode("import sys; print(x + 2); print('e', file=sys.stderr)", { onStdout: (m) => (out += m.output) })
  assert.deepEqual([done.stdout, done.stderr, out], ['42\n', 'e\n', '42\n'])
  const context = await codeInterpreter.createContext('/usr')
  assert.equal((await codeInterpreter.runCode('print(x)', { context })).error.name, 'NameError')
  assert.equal((await codeInterpreter.runCode('import os; print(os.getcwd(), os.environ["E"])', { context, envs: { E: 'v' } })).stdout, '/usr v\n')
  assert.ok((await codeInterpreter.listContexts()).some((c) => c.id === context.id))
  await codeInterpreter.deleteContext(context)
  await refused(codeInterpreter.deleteContext(context), sdk.DaytonaNotFoundError)
})

test('an exception of the interpreter has its parts', async () => {
  const { codeInterpreter } = await coder()
  let told
  const done = await codeInterpreter.runCode('1 / 0', { onError: (error) => (told = error) })
  assert.deepEqual([done.error.name, done.error.value, told.name], ['ZeroDivisionError', 'division by zero', 'ZeroDivisionError'])
})

test('code that takes too long is interrupted and the context lives', async () => {
  const { codeInterpreter } = await coder()
  await codeInterpreter.runCode('kept = 7')
  await refused(codeInterpreter.runCode('import time; time.sleep(600)', { timeout: 1 }), sdk.DaytonaTimeoutError)
  assert.equal((await codeInterpreter.runCode('print(kept)')).stdout, '7\n')
})

test('a language server knows the code', async () => {
  const box = await coder()
  await box.fs.uploadFile(Buffer.from('class Shape:\n    def area(self):\n        return 1\n\nimport os\nos.pa\n'), '/tmp/lsp/m.py')
  const lsp = await box.createLspServer('python', '/tmp/lsp')
  await lsp.start()
  await lsp.didOpen('/tmp/lsp/m.py')
  const names = (await lsp.documentSymbols('/tmp/lsp/m.py')).map((s) => s.name)
  assert.ok(names.includes('Shape') && names.includes('area'), names.join())
  const found = await lsp.completions('/tmp/lsp/m.py', { line: 5, character: 5 })
  assert.ok(found.items.some((i) => i.label.startsWith('path')))
  await lsp.didClose('/tmp/lsp/m.py')
  await lsp.stop()
})

test('a sandbox that is deleted in the middle of a call ends the call', async () => {
  const box = await create()
  const call = box.process.executeCommand('sleep 600')
  const ended = refused(call)
  await until('it runs', async () => (await box.process.executeCommand('pgrep sleep')).exitCode === 0)
  await sleep(50)
  await box.delete()
  await ended
})
