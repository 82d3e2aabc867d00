// Which public methods of the SDK a run has called. Each is wrapped to count and otherwise goes on as it was.

import * as interpreter from '@e2b/code-interpreter'
import { PlainSandbox } from './world.mjs'

// Declared private or protected in the SDK's types.
const INTERNAL = new Set([
  'constructor', 'jupyterUrl', 'getJupyterRequestUrl', 'includeDiagnostics', 'handleRequestError', 'resolveApiOpts', 'fileUrl',
  'resolveOpts', 'createSandbox', 'forkSandbox', 'connectSandbox', 'getFullInfo', 'collectStackTrace', 'instructionsWithHashes',
  'serialize', 'build#', 'toJSON#', 'toDockerfile#', 'runGit', 'runShell', 'getRemoteUrl', 'resolveRemoteName',
  'withRemoteCredentials', 'hasUpstream', 'start', 'iterateEvents', 'handleEvents', 'flushDecoders', 'updatePagination',
  'envdApiUrl', 'envdDirectUrl', 'supportsStdinClose',
])

const all = new Set()
const called = new Set()

function wrap(owner, name, label, of) {
  const described = Object.getOwnPropertyDescriptor(owner, name)
  if (!described || typeof described.value !== 'function' || !described.writable) return
  all.add(label)
  const original = described.value
  owner[name] = function (...args) {
    called.add(label)
    return original.apply(this, args)
  }
  Object.defineProperty(owner[name], 'name', { value: of })
}

function watchClass(label, cls) {
  for (let p = cls.prototype; p && p !== Object.prototype; p = Object.getPrototypeOf(p))
    for (const name of Object.getOwnPropertyNames(p))
      if (!INTERNAL.has(name) && !INTERNAL.has(name + '#') && !name.startsWith('_')) wrap(p, name, `${label}.${name}`, name)
  for (let c = cls; c && c !== Function.prototype; c = Object.getPrototypeOf(c))
    for (const name of Object.getOwnPropertyNames(c))
      if (!INTERNAL.has(name) && !name.startsWith('_')) wrap(c, name, `${label}.${name} of the class`, name)
}

/** Counts from now on; `box` gives the classes that the package does not name. */
export function watch() {
  watchClass('Sandbox', interpreter.Sandbox)
  watchClass('Volume', interpreter.Volume)
  watchClass('Secret', interpreter.Secret)
  watchClass('Template', interpreter.TemplateBase)
  watchClass('Git', interpreter.Git)
  // A sandbox that is nobody's: its parts have the classes that are not exported.
  const nobody = new PlainSandbox({ sandboxId: 'nobody', envdVersion: '0.6.13', apiKey: 'e2b_none' })
  watchClass('Filesystem', nobody.files.constructor)
  watchClass('Commands', nobody.commands.constructor)
  watchClass('Pty', nobody.pty.constructor)
  for (const [label, pages] of [['SandboxPaginator', PlainSandbox.list()], ['SnapshotPaginator', PlainSandbox.listSnapshots()], ['SecretPaginator', interpreter.Secret.list()]])
    watchClass(label, pages.constructor)
  called.clear()
}

/** The classes of handles are known when the first one is seen. */
export function watchHandle(label, handle) {
  if (![...all].some((name) => name.startsWith(`${label}.`))) watchClass(label, handle.constructor)
}

export const withoutACase = () => [...all].filter((name) => !called.has(name)).sort()
