// One process for all suites, so that at its end every public method can be asked for a case.

import { assert, describe, PlainSandbox, test } from './world.mjs'
import { watch, watchHandle, withoutACase } from './surface.mjs'

watch()
const suites = ['sandbox', 'commands', 'files', 'life', 'network', 'code', 'git', 'template', 'stores']
const modules = await Promise.all(suites.map((name) => import(`./${name}.mjs`)))
const first = await PlainSandbox.create()
const handle = await first.commands.run('sleep 9', { background: true })
watchHandle('CommandHandle', handle)
const watching = await first.files.watchDir('/tmp', () => {})
watchHandle('WatchHandle', watching)
await watching.stop()
await handle.kill()
await handle.wait().catch(() => {})
await first.kill()

describe('E2B', { concurrency: 6 }, () => {
  for (const module of modules) module.default()
})

test('every public method has a case', () => {
  if (!process.execArgv.some((word) => word.includes('test-name-pattern'))) assert.deepEqual(withoutACase(), [])
})
