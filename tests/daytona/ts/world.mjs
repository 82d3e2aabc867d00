// What every test of the TypeScript SDK shares. Started by tests/tests/daytona.rs with what `atoll env daytona` prints; DAYTONA_MODULES
// names the node_modules that scripts/get-daytona-sdk made. Nothing of the SDK is changed.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { randomBytes } from 'node:crypto'
import { after } from 'node:test'

const need = createRequire(`${process.env.DAYTONA_MODULES}/x.js`)
export const sdk = need('@daytonaio/sdk')
export const INTERPRETER = process.env.DAYTONA_INTERPRETER ?? 'code-interpreter-slim'

let known
export const client = () => (known ??= new sdk.Daytona())

export const name = (word = 't') => `${word}-${randomBytes(5).toString('hex')}`
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

export async function until(what, check, within = 60_000) {
  const end = Date.now() + within
  for (;;) {
    const found = await check()
    if (found) return found
    if (Date.now() > end) throw new Error(`not within ${within} ms: ${what}`)
    await sleep(20)
  }
}

const made = []
export async function create(params = {}, options) {
  const box = await client().create(params, options)
  made.push(box.id)
  return box
}

// One sandbox for a file of tests.
export function shared(params) {
  let box
  return async () => (box ??= await create(params))
}

after(async () => {
  await Promise.all(
    made.map(async (id) => {
      try {
        await (await client().get(id)).delete()
      } catch (gone) {
        if (!(gone instanceof sdk.DaytonaNotFoundError)) throw gone
      }
    }),
  )
  await known?.[Symbol.asyncDispose]?.()
})

// Runs a command that must succeed and answers what it wrote.
export async function sh(box, command, ...more) {
  const done = await box.process.executeCommand(command, ...more)
  assert.equal(done.exitCode, 0, `${command}: ${done.result}`)
  return done.result
}

export const refused = (ask, kind = sdk.DaytonaError) => assert.rejects(ask, (error) => {
  assert.ok(error instanceof kind, `${error?.constructor?.name}: ${error?.message}`)
  return true
})
