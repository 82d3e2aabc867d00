// What the tests of the web page share. Started by tests/tests/web.rs with ATOLL_URL, ATOLL_API_KEY (a tenant), ATOLL_OTHER_KEY
// (another tenant), ATOLL_ADMIN_KEY, CHROMIUM and FOLDER (a folder for files).

import assert from 'node:assert/strict'
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { chromium } from 'playwright-core'

export const URL = process.env.ATOLL_URL
export const KEY = process.env.ATOLL_API_KEY
export const ADMIN_KEY = process.env.ATOLL_ADMIN_KEY
export const FOLDER = process.env.FOLDER

// LIMIT: for what a loaded machine may take; what is measured has its own bar.
export const PATIENCE = 30_000

/** A request to the API as a program would send it. */
export async function api(method, path, body, key = KEY) {
  const raw = typeof body === 'string'
  const response = await fetch(URL + path, {
    method,
    headers: { authorization: `Bearer ${key}`, ...(body === undefined ? {} : { 'content-type': raw ? 'application/octet-stream' : 'application/json' }) },
    body: body === undefined ? undefined : raw ? body : JSON.stringify(body),
  })
  const text = await response.text()
  assert(response.ok, `${method} ${path}: ${response.status} ${text}`)
  return text ? JSON.parse(text) : undefined
}

export const create = (body = {}, key = KEY) => api('POST', '/v1/sandboxes', body, key)
export const exec = (id, command) => api('POST', `/v1/sandboxes/${id}/exec`, { command })
export const readFile = async (id, path) =>
  (await fetch(`${URL}/v1/sandboxes/${id}/files?${new URLSearchParams({ path })}`, { headers: { authorization: `Bearer ${KEY}` } })).text()

/** Waits for something true and answers it. */
export async function until(what, check, withinMs = PATIENCE) {
  const deadline = Date.now() + withinMs
  for (;;) {
    const found = await check()
    if (found) return found
    if (Date.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

const require = createRequire(import.meta.url)

export class Browser {
  /** What a page may never do: run foreign code, break its policy, throw. */
  faults = []

  static async start() {
    const made = new Browser()
    made.browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'] })
    return made
  }

  /** A page of a new viewer, with a key or without. */
  async page({ key = KEY, hash = '#/resources', ...options } = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 800 }, bypassCSP: false, ...options })
    // The policy of the page refuses foreign scripts; this one comes from the debugger.
    await context.addInitScript({ path: require.resolve('axe-core/axe.min.js') })
    const page = await context.newPage()
    page.setDefaultTimeout(PATIENCE)
    page.on('pageerror', (error) => this.faults.push(`threw: ${error.stack ?? error}`))
    page.on('console', (message) => {
      const text = message.text()
      if (/Content Security Policy|TrustedHTML|Trusted Type/i.test(text)) this.faults.push(`policy: ${text}`)
    })
    page.on('dialog', (dialog) => {
      if (dialog.type() === 'alert') this.faults.push(`an injected script ran: ${dialog.message()}`)
      void dialog.dismiss().catch(() => {})
    })
    if (key) {
      await page.addInitScript((secret) => {
        // Frames with content of sandboxes have no storage.
        if (window === top && !sessionStorage.getItem('atoll.key')) sessionStorage.setItem('atoll.key', secret)
      }, key)
    }
    await page.goto(`${URL}/${hash}`)
    return page
  }

  /** Fails for what pages did since the last call. */
  check() {
    assert.deepEqual(this.faults.splice(0), [])
  }
}

/** Opens a page of the same viewer without a reload. */
export async function go(page, hash) {
  await page.evaluate((to) => { location.hash = to }, hash)
}

/** No serious violation of the rules for screen readers and contrast. */
export async function accessible(page, what, rules = {}) {
  const found = await page.evaluate(async (rules) => {
    const result = await window.axe.run(document, { resultTypes: ['violations'], rules })
    return result.violations.filter((one) => one.impact === 'serious' || one.impact === 'critical')
      .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`)
  }, rules)
  assert.deepEqual(found, [], what)
}

/** Asks tests/tests/web.rs to stop and start the server; answers when it is back. */
export async function restartServer() {
  writeFileSync(join(FOLDER, 'restart'), '')
  await until('the server is back', () => existsSync(join(FOLDER, 'restarted')), 60_000)
}

/** Makes the server wait at a place (crates/service/src/failpoint.rs) until the function that this returns is called. */
export function holdServer(place) {
  const file = join(FOLDER, 'hold-at')
  writeFileSync(file, `${place}:wait`)
  return () => rmSync(file)
}

export const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]

/** How far above a bar a busy machine may be. */
const BUSY = 20

/** Prints a measurement beside its bar. The machine may be busy with other tests, and the server is a debug build, so a bar is
 * asserted only where load cannot miss it; the others have a limit far above. */
export function report(t, what, value, unit, bar) {
  t.diagnostic(`bar: ${what}: ${value.toFixed(1)} ${unit} (at most ${bar} ${unit})${value > bar ? ' MISSED' : ''}`)
  assert(value <= bar * BUSY, `${what}: ${value} ${unit}`)
}
