// Takes the pictures of docs/web: every page in both themes. Run it by hand against a server that has no sandboxes:
//
//   ATOLL_URL=http://127.0.0.1:7070 ATOLL_API_KEY=$(cat DATA/admin.key) CHROMIUM=/usr/bin/chromium FOLDER=OUT node screenshots.mjs
//
// WIDTHS=360,1280,3840 takes each page at these widths, to be looked at; without it the width is 1280.

import assert from 'node:assert/strict'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { Browser, FOLDER, KEY, URL, api, create, exec, until } from './world.mjs'

const widths = (process.env.WIDTHS ?? '1280').split(',').map(Number)
const only = process.env.ONLY?.split(',')

/** Names that are looked up again and again: traffic without an internet. */
const TRAFFIC = "import socket, time\nwhile True:\n  for n in range(int(time.time()) % 25):\n    try: socket.getaddrinfo(f'n{n}.example.com', 443)\n    except OSError: pass\n  time.sleep(0.5)"

async function content(ci) {
  const box = await create({ name: 'data-analysis', template: 'code-interpreter-slim', labels: { team: 'red', tier: '1' }, timeout_s: 7_200, auto_pause_s: 900, network: { mode: 'custom', allow_domains: ['pypi.org', 'docs.example.org'] } })
  await exec(box.id, "mkdir -p src data && printf 'import csv\\n\\ndef mean(values):\\n    return sum(values) / len(values)\\n' > src/stats.py && printf 'day,count\\nmon,12\\ntue,19\\n' > data/visits.csv && printf '# Visits\\n\\nHow many visitors came each day.\\n' > README.md")
  await api('POST', `/v1/sandboxes/${box.id}/exec`, { command: 'for n in 1 2 3 4 5 6; do echo "$(date +%T) request $n: 200 OK"; done; printf "\\033[33mwarning\\033[0m: the cache is cold\\n"; exec python3 -m http.server 8080', detach: true, tag: 'web' })
  await api('POST', `/v1/sandboxes/${box.id}/previews`, { port: 8080, expires_s: 3_600 })
  for (const name of ['pypi.org', 'example.com', 'telemetry.example.net']) await exec(box.id, `python3 -c "import socket; socket.getaddrinfo('${name}', 443)" 2>/dev/null; true`)
  await api('POST', `/v1/sandboxes/${box.id}/snapshots`, { name: 'before-upgrade' })
  const fork = await api('POST', `/v1/sandboxes/${box.id}/fork`, { count: 2 })
  const others = []
  for (const [name, labels] of [['ci-runner-1', { team: 'blue' }], ['ci-runner-2', { team: 'blue' }], ['docs-preview', { team: 'green' }], ['nightly-report', {}]]) others.push(await create({ name, labels }, name.startsWith('ci') ? ci.secret : KEY))
  await api('POST', `/v1/sandboxes/${others[1].id}/pause`)
  await api('POST', `/v1/sandboxes/${others[2].id}/stop`)
  await api('POST', `/v1/sandboxes/${others[0].id}/hold`, { for_s: 3_600, reason: 'a long test' })
  await api('POST', `/v1/sandboxes/${others[3].id}/exec`, { argv: ['python3', '-c', TRAFFIC], detach: true })
  for (const thread of ['conversation-7', 'support-1821', 'release-notes']) others.push(await create({ thread }))
  return [box, ...fork.sandboxes, ...others]
}

async function code(page) {
  for (const text of ["import matplotlib.pyplot as plt\nplt.figure(figsize=(5, 2.4))\nplt.plot([12, 19, 15, 23, 30, 28, 35])\nplt.title('Visits')\nplt.show()", "print('mean', sum([12, 19, 15]) / 3)\n[n * n for n in range(8)]"]) {
    await page.getByLabel('Code', { exact: true }).focus()
    await page.keyboard.insertText(text)
    await page.keyboard.press('Control+Enter')
    await until('the cell ends', async () => (await page.getByRole('article').last().getAttribute('data-state')) === 'done')
  }
}

async function terminal(page) {
  await page.locator('[data-status="open"]').waitFor()
  await page.locator('.xterm-helper-textarea').focus()
  await page.keyboard.type('ls --color=always -la && python3 --version')
  await page.keyboard.press('Enter')
  await until('the version', () => page.locator('.xterm-rows').evaluate((node) => /Python 3\.\d+\.\d+/.test(node.textContent)))
}

/** Name, address, and what happens before the picture. */
function pages(id, busy) {
  const tab = (name, act) => [name, `#/sandboxes/${id}/${name}`, act]
  const section = (name, act) => [`settings-${name}`, `#/settings/${name}`, act]
  const thread = async (page) => {
    await page.getByLabel('Command', { exact: true }).fill('uname -sr && echo done')
    await page.keyboard.press('Enter')
    await page.getByRole('log').getByText('done').last().waitFor()
  }
  return [
    ['resources', '#/resources'], ['resources-grid', '#/resources?view=grid'], ['threads', '#/threads'], ['thread', '#/threads/conversation-7', thread],
    ['new-thread', '#/threads', (page) => page.getByRole('button', { name: 'New thread' }).click()],
    ['new-sandbox', '#/resources', (page) => page.getByRole('button', { name: 'New sandbox' }).click()],
    ['copy-as', '#/resources', async (page) => {
      await page.getByRole('button', { name: 'Actions for data-analysis' }).first().click()
      await page.getByRole('button', { name: 'Copy Pause as code' }).click()
      await page.getByRole('button', { name: 'Python', exact: true }).click()
    }],
    tab('overview'), tab('terminal', terminal), tab('files', (page) => page.getByRole('tree', { name: 'Files' }).getByText('README.md').click()),
    tab('run', code), tab('processes'), tab('logs'), ['metrics', `#/sandboxes/${busy}/metrics`, (page) => page.getByRole('img', { name: 'Network over time' }).waitFor()], tab('egress'), tab('snapshots'), tab('events'), tab('settings'),
    section('sandbox'), section('templates'), section('volumes'), section('secrets'), section('keys'), section('tenants'), section('server'),
  ].filter(([name]) => !only || only.includes(name))
}

const ci = await api('POST', '/v1/keys', { name: 'ci' })
const made = await content(ci)
const busy = made.find(({ name }) => name === 'nightly-report').id
// The plots need a few samples, which the server takes every ten seconds.
if (!only || only.includes('metrics')) await until('samples', async () => (await api('GET', `/v1/sandboxes/${busy}/metrics/history`)).items.length > 6, 120_000)
const browser = await Browser.start()
mkdirSync(FOLDER, { recursive: true })
for (const colorScheme of ['light', 'dark']) {
  for (const width of widths) {
    const viewport = { width, height: width === 3840 ? 2160 : 800 }
    const suffix = widths.length > 1 ? `-${width}` : ''
    for (const [name, hash, act] of pages(made[0].id, busy)) {
      const page = await browser.page({ colorScheme, viewport, key: KEY, hash })
      await page.getByText(/^(Live|Not live)$/).waitFor({ state: 'attached' })
      await act?.(page)
      // For plots and pictures, which draw after their data.
      await page.waitForTimeout(700)
      const wrong = await page.locator('[role="alert"], .notice.red, .notice.amber').allInnerTexts()
      assert.deepEqual(wrong, [], `${name} shows an error`)
      await page.screenshot({ path: join(FOLDER, `${name}${suffix}-${colorScheme}.png`) })
      await page.context().close()
    }
    if (!only || only.includes('wake-page')) {
      const page = await browser.page({ colorScheme, viewport, key: null })
      await page.goto(`${URL.replace('127.0.0.1', `3000-${made[0].id}.localhost`)}/`)
      await page.screenshot({ path: join(FOLDER, `wake-page${suffix}-${colorScheme}.png`) })
      await page.context().close()
    }
  }
}
await browser.browser.close()
for (const { id } of made) await api('DELETE', `/v1/sandboxes/${id}`).catch(() => {})
for (const snapshot of (await api('GET', '/v1/snapshots')).items) await api('DELETE', `/v1/snapshots/${snapshot.id}`)
for (const { thread } of (await api('GET', '/v1/threads')).items) await api('DELETE', `/v1/threads/${encodeURIComponent(thread)}`)
await api('DELETE', `/v1/keys/${ci.id}`)
