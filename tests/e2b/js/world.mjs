// What every test of the E2B front in JavaScript shares. Started by tests/tests/e2b.rs with exactly the variables that
// `atoll env e2b` prints, plus E2B_OTHER_KEY, the key of another tenant. Nothing of the SDK is replaced but for counting.

import assert from 'node:assert/strict'
import http from 'node:http'
import { randomBytes } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { Sandbox as PlainSandbox } from 'e2b'
import { Sandbox as CodeSandbox } from '@e2b/code-interpreter'

export { after, assert, before, CodeSandbox, describe, PlainSandbox, test }

// A process whose memory is its state.
export const COUNTER = `
import os, time
n = 0
while True:
    n += 1
    with open("/tmp/count.new", "w") as f: f.write("%d %d" % (os.getpid(), n))
    os.rename("/tmp/count.new", "/tmp/count")
    time.sleep(0.02)
`

export const word = (prefix) => `${prefix}-${randomBytes(5).toString('hex')}`
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Waits for something true and answers it. */
export async function until(what, check, withinMs = 60_000) {
  const deadline = Date.now() + withinMs
  for (;;) {
    const found = await check()
    if (found) return found
    if (Date.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`)
    await sleep(50)
  }
}

/** One plain HTTP request, as somebody without the SDK would send it. */
export function raw(method, url, headers = {}, body = undefined) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method, headers, agent: false }, (answer) => {
      const pieces = []
      answer.on('data', (piece) => pieces.push(piece))
      answer.on('error', reject)
      answer.on('end', () => resolve({ status: answer.statusCode, body: Buffer.concat(pieces).toString() }))
    })
    request.on('error', reject)
    request.end(body)
  })
}

/** A request to an app inside by the host that the SDK names; names below localhost may have no address here. */
export const preview = (box, port, path = '/', headers = {}) =>
  raw('GET', process.env.E2B_SANDBOX_URL + path, { ...headers, host: box.getHost(port) })

/** Serves the current folder of a sandbox on a port. */
export async function serve(box, port, folder) {
  await box.commands.run(`setsid python3 -m http.server ${port} -d ${folder} >/dev/null 2>&1 </dev/null &`)
  await until('it listens', async () => (await box.commands.run(`ss -Htln sport = :${port}`)).stdout !== '')
}

export async function count(box) {
  await box.files.write('/tmp/counter.py', COUNTER)
  await box.commands.run('setsid python3 /tmp/counter.py >/dev/null 2>&1 </dev/null &')
  await until('it counts', () => box.files.exists('/tmp/count'))
  return counted(box)
}

export const counted = async (box) => (await box.files.read('/tmp/count')).split(' ').map(Number)

const undone = new WeakMap()

/** Does something when the test is over; what was asked for last is done first. */
export function later(t, undo) {
  if (!undone.has(t)) {
    undone.set(t, [])
    t.after(async () => {
      for (const each of undone.get(t).reverse()) await each()
    })
  }
  undone.get(t).push(undo)
}

/** A sandbox that is gone when the test is over. */
export async function sandbox(t, ...args) {
  const kind = typeof args[0] === 'function' ? args.shift() : PlainSandbox
  const made = await kind.create(...args)
  later(t, () => made.kill())
  return made
}

/** A suite over one sandbox: `body(box)` declares tests that use `box()`. */
export function shared(name, kind, body) {
  describe(name, { concurrency: 1 }, () => {
    let made
    before(async () => {
      made = await kind.create({ timeoutMs: 600_000 })
    })
    after(() => made.kill())
    body(() => made)
  })
}

export const rejects = (call, kind) => assert.rejects(call, (error) => error instanceof kind || assert.fail(`${error?.name}: ${error?.message} is no ${kind.name}`))
