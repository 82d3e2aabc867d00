// 5,000 sandboxes of a real server in the list. tests/tests/web.rs stores them before the server starts; they are stopped or
// failed and have no files. ATOLL_KEY_ID is the id of the key that they were created by.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Browser, go, report } from './world.mjs'

const KEY_ID = process.env.ATOLL_KEY_ID

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

/** Milliseconds of the longest task of a page's main thread in a trace of Chromium. */
function longestTask(trace) {
  const events = JSON.parse(trace).traceEvents
  const main = new Set(events.filter((one) => one.name === 'thread_name' && one.args?.name === 'CrRendererMain').map((one) => `${one.pid}:${one.tid}`))
  const tasks = events.filter((one) => one.ph === 'X' && /RunTask$/.test(one.name) && main.has(`${one.pid}:${one.tid}`))
  assert(tasks.length > 100, 'the trace has tasks')
  return Math.max(...tasks.map((one) => one.dur / 1000))
}

test('five thousand sandboxes are filtered and scrolled without a stutter', async (t) => {
  const begun = performance.now()
  const page = await browser.page()
  await page.getByText('5,000').first().waitFor()
  t.diagnostic(`5,000 rows: read from the server and shown after ${(performance.now() - begun).toFixed(0)} ms`)
  // Every row came from the server, one of each kind as it was stored.
  for (const [query, count] of [['phase=failed', 1_667], ['q=thread-', 1_000], [`key=${KEY_ID}`, 5_000]]) {
    await go(page, `#/resources?${query}`)
    await page.locator(`[role="table"][aria-rowcount="${count + 1}"]`).waitFor()
  }
  await go(page, '#/resources')
  const filtered = await page.evaluate(async () => {
    const input = document.querySelector('[data-filter]')
    const times = []
    for (const text of ['b', 'box-1', 'box-12', 'box-123', '', 'stopped', 'box-4', '']) {
      const begun = performance.now()
      input.value = text
      input.dispatchEvent(new InputEvent('input', { bubbles: true }))
      // Until the rows are drawn.
      await new Promise((resolve) => setTimeout(resolve))
      times.push(performance.now() - begun)
    }
    return Math.max(...times)
  })
  report(t, '5,000 rows: the slowest filter', filtered, 'ms', 50)
  await browser.browser.startTracing(page, { categories: ['toplevel', 'disabled-by-default-devtools.timeline', '__metadata'] })
  const frames = await page.evaluate(() => new Promise((resolve) => {
    const list = document.querySelector('[role="table"]')
    const times = []
    let last = performance.now()
    const step = (now) => {
      times.push(now - last)
      last = now
      list.scrollTop += 400
      if (times.length < 240) requestAnimationFrame(step)
      else resolve(times.slice(2))
    }
    requestAnimationFrame(step)
  }))
  const longest = longestTask(await browser.browser.stopTracing())
  const slow = frames.filter((ms) => ms > 33.4).length / frames.length
  report(t, '5,000 rows: frames over 33 ms while scrolling', slow * 100, '%', 5)
  report(t, '5,000 rows: the longest task while scrolling', longest, 'ms', 100)
  assert(await page.locator('[role="row"]').count() < 60, 'only rows on screen are in the page')
  await page.context().close()
  browser.check()
})
