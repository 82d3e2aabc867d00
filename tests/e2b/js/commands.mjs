// Commands and terminals.

import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, SandboxError, TimeoutError } from 'e2b'
import { assert, PlainSandbox, rejects, shared, test, until } from './world.mjs'

export default () => {
  shared('commands', PlainSandbox, (box) => {
    test('output, error and end come apart', async () => {
      const ran = await box().commands.run('echo out; echo err >&2')
      assert.deepEqual([ran.stdout, ran.stderr, ran.exitCode, ran.error], ['out\n', 'err\n', 0, undefined])
    })

    test('an end that is not zero is thrown with everything said', async () => {
      await assert.rejects(box().commands.run('echo half; echo why >&2; exit 7'), (error) => {
        assert.ok(error instanceof CommandExitError)
        assert.deepEqual([error.exitCode, error.stdout, error.stderr], [7, 'half\n', 'why\n'])
        return true
      })
    })

    test('folder, environment and user are the commands own', async () => {
      const ran = await box().commands.run('echo "$PWD $A $(id -u)"', { cwd: '/tmp', envs: { A: 'ä' }, user: 'root' })
      assert.equal(ran.stdout, '/tmp ä 0\n')
      await rejects(box().commands.run('pwd', { cwd: '/no/such/folder' }), InvalidArgumentError)
      await rejects(box().commands.run('id', { user: 'nobody-of-that-name' }), AuthenticationError)
    })

    test('every script survives, even in pieces', async () => {
      assert.equal((await box().commands.run("printf '日本 🎉'")).stdout, '日本 🎉')
      assert.equal((await box().commands.run("printf '\\xe2\\x82'; sleep 0.2; printf '\\xac'")).stdout, '€')
    })

    test('output is told while the command goes on', async () => {
      const heard = []
      // It goes on only after its first line was heard.
      const onStdout = async (text) => {
        heard.push(text)
        if (heard.length === 1) await box().files.write('/tmp/heard', '')
      }
      await box().commands.run('echo one; while [ ! -e /tmp/heard ]; do sleep 0.05; done; echo two', { onStdout })
      assert.equal(heard.join(''), 'one\ntwo\n')
    })

    test('four megabytes come whole', async () => {
      const { stdout } = await box().commands.run('seq 1 600000')
      assert.equal(stdout.length, 4088895)
      assert.ok(stdout.endsWith('599999\n600000\n'))
    })

    test('what takes too long is ended', async () => {
      await rejects(box().commands.run('exec -a too-long sleep 300', { timeoutMs: 500 }), TimeoutError)
      await until('it is gone', async () => !(await box().commands.run('ps -eo args')).stdout.includes('too-long'))
    })

    test('fifty at once keep apart', async () => {
      const said = await Promise.all(Array.from({ length: 50 }, (_, n) => box().commands.run(`sleep 0.2; echo ${n}`)))
      assert.deepEqual(said.map((ran) => ran.stdout), Array.from({ length: 50 }, (_, n) => `${n}\n`))
    })

    test('a handle tells, waits and kills once', async () => {
      const handle = await box().commands.run('sleep 60', { background: true, envs: { MARK: 'm' } })
      const listed = (await box().commands.list()).find((process) => process.pid === handle.pid)
      assert.deepEqual([listed.cmd, listed.args, listed.envs.MARK], ['/bin/bash', ['-l', '-c', 'sleep 60'], 'm'])
      assert.equal(await handle.kill(), true)
      await assert.rejects(handle.wait(), (error) => error instanceof CommandExitError && error.error === 'signal: killed')
      assert.equal(await box().commands.kill(handle.pid), false)
    })

    test('a command is found again', async () => {
      const first = await box().commands.run('while [ ! -e /tmp/connected ]; do sleep 0.02; done; echo late; exit 2', { background: true })
      await first.disconnect()
      const again = await box().commands.connect(first.pid)
      await box().files.write('/tmp/connected', '')
      await assert.rejects(again.wait(), (error) => error.exitCode === 2 && error.stdout === 'late\n')
      await rejects(box().commands.connect(999_999), NotFoundError)
    })

    test('input goes in until it is closed', async () => {
      const handle = await box().commands.run('cat; echo end', { background: true, stdin: true })
      await box().commands.sendStdin(handle.pid, 'one\n')
      await handle.sendStdin('two ä\n')
      await box().commands.closeStdin(handle.pid)
      assert.equal((await handle.wait()).stdout, 'one\ntwo ä\nend\n')
      const second = await box().commands.run('wc -c', { background: true, stdin: true })
      await second.closeStdin()
      assert.equal((await second.wait()).stdout.trim(), '0')
      const deaf = await box().commands.run('sleep 600', { background: true })
      await rejects(deaf.sendStdin('for nobody'), SandboxError)
      await deaf.kill()
      await deaf.wait().catch(() => {})
    })
  })

  shared('terminals', PlainSandbox, (box) => {
    const open = async (more = {}) => {
      const screen = { text: '' }
      screen.handle = await box().pty.create({
        cols: 80, rows: 24, timeoutMs: 0, onData: (data) => void (screen.text += Buffer.from(data).toString()), ...more,
      })
      screen.type = (text) => box().pty.sendInput(screen.handle.pid, new TextEncoder().encode(text))
      screen.shows = (text) => until(`the screen shows ${text}: ${screen.text}`, () => screen.text.includes(text))
      screen.handle.wait().catch(() => {})
      return screen
    }

    test('what is typed runs, and its size is what was asked', async () => {
      const screen = await open({ cwd: '/tmp', envs: { MARK: 'm' } })
      await screen.type('stty size; echo "[$PWD $MARK $TERM]"\n')
      await screen.shows('24 80')
      await screen.shows('[/tmp m xterm-256color]')
      await box().pty.resize(screen.handle.pid, { cols: 133, rows: 50 })
      await screen.type('stty size\n')
      await screen.shows('50 133')
      assert.equal(await box().pty.kill(screen.handle.pid), true)
      await rejects(screen.handle.wait(), CommandExitError)
      assert.equal(await box().pty.kill(screen.handle.pid), false)
    })

    test('a terminal is found again', async () => {
      const screen = await open()
      await screen.type('KEPT=yes\n')
      let second = ''
      const again = await box().pty.connect(screen.handle.pid, { timeoutMs: 0, onData: (data) => void (second += Buffer.from(data).toString()) })
      again.wait().catch(() => {})
      await screen.type('echo kept=$KEPT\n')
      await until('both see it', () => second.includes('kept=yes') && screen.text.includes('kept=yes'))
      await screen.handle.kill()
    })

    test('an exit is the end of a terminal', async () => {
      const screen = await open()
      await screen.type('exit 5\n')
      await assert.rejects(screen.handle.wait(), (error) => error.exitCode === 5)
    })
  })
}
