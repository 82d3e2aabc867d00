// The bars of the web page, measured in the page and printed. rows.test.mjs has those for 5,000 rows.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Browser, api, create, median, report, until } from './world.mjs'

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

test('the first load is small and soon interactive', async (t) => {
  const page = await browser.page()
  await page.getByText('No sandboxes yet').waitFor()
  const [bytes, ms] = await page.evaluate(() => {
    const files = performance.getEntriesByType('resource').filter((one) => one.name.includes('/ui/'))
    const first = performance.getEntriesByType('navigation')[0]
    return [files.reduce((sum, one) => sum + one.encodedBodySize, first.encodedBodySize), first.domContentLoadedEventEnd - first.responseStart]
  })
  report(t, 'first load, compressed', bytes / 1000, 'KB', 200)
  assert(bytes <= 200_000, `${bytes} bytes`)
  report(t, 'interactive after the first byte', ms, 'ms', 300)
  await page.context().close()
  browser.check()
})

test('typing in a terminal is fast', async (t) => {
  const { id } = await create({ name: 'typing' })
  const page = await browser.page({ hash: `#/sandboxes/${id}/terminal` })
  await page.locator('[data-status="open"]').waitFor()
  await page.locator('.xterm-helper-textarea').focus()
  await until('a prompt', () => page.locator('.xterm-rows').evaluate((node) => node.textContent.trim().length > 0))
  // From the key event in the page until the page shows the letter that the shell has echoed.
  await page.evaluate(() => {
    const rows = document.querySelector('.xterm-rows')
    const state = { typed: '', begun: 0, times: [] }
    window.typing = state
    addEventListener('keydown', (event) => {
      state.typed += event.key
      state.begun = performance.now()
    }, true)
    new MutationObserver(() => {
      if (!state.begun || !rows.textContent.includes(state.typed)) return
      state.times.push(performance.now() - state.begun)
      state.begun = 0
    }).observe(rows, { subtree: true, childList: true, characterData: true })
  })
  const letters = 'abcdefghijklmnopqrstuvwxyzabcdefghijklmn'
  for (const [at, letter] of [...letters].entries()) {
    await page.keyboard.press(letter)
    await page.waitForFunction((count) => window.typing.times.length === count, at + 1, { polling: 5 })
    // People do not type in step with the frames of the screen.
    await new Promise((resolve) => setTimeout(resolve, (at * 7) % 17))
  }
  const times = await page.evaluate(() => window.typing.times)
  report(t, 'typing, p50', median(times), 'ms', 15)
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('an event is visible at once', async (t) => {
  const { id } = await create({ name: 'watched' })
  const page = await browser.page({ hash: '#/resources' })
  const row = page.locator(`[data-id="${id}"]`)
  await row.locator('[data-phase="running"]').waitFor()
  await page.getByText('Live', { exact: true }).waitFor()
  const times = []
  for (const [verb, phase] of [['pause', 'paused'], ['resume', 'running'], ['pause', 'paused'], ['resume', 'running'], ['pause', 'paused']]) {
    await page.evaluate(([sandbox, wanted]) => {
      window.seen = new Promise((resolve) => {
        const look = () => document.querySelector(`[data-id="${sandbox}"] [data-phase="${wanted}"]`) && resolve(Date.now())
        new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true })
      })
    }, [id, phase])
    const { phase_at } = await api('POST', `/v1/sandboxes/${id}/${verb}`)
    times.push((await page.evaluate(() => window.seen)) - Date.parse(phase_at))
  }
  report(t, 'an event is visible after it happened, p50', median(times), 'ms', 100)
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('an idle page uses no CPU', async (t) => {
  const made = await Promise.all(['one', 'two', 'three'].map((name) => create({ name: `idle-${name}` })))
  const page = await browser.page({ hash: '#/resources' })
  await page.getByRole('link', { name: 'idle-three' }).waitFor()
  await page.getByText('Live', { exact: true }).waitFor()
  const session = await browser.browser.newBrowserCDPSession()
  const used = async () => {
    const { processInfo } = await session.send('SystemInfo.getProcessInfo')
    return processInfo.filter((one) => one.type === 'renderer').reduce((sum, one) => sum + one.cpuTime, 0)
  }
  // What belongs to the load ends first: a second in which the page has no task of more than a frame.
  await page.evaluate(() => new Promise((resolve) => requestIdleCallback(resolve)))
  const [before, begun] = [await used(), performance.now()]
  // A measurement over time, not a wait for something.
  await new Promise((resolve) => setTimeout(resolve, 8_000))
  const percent = ((await used()) - before) / (performance.now() - begun) * 100_000
  report(t, 'idle page, CPU of its process', percent, '%', 1)
  await session.detach()
  await page.context().close()
  for (const { id } of made) await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})
