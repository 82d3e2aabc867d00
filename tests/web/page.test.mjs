// The web page in a real browser against a real server. Every wait is for something that happens; there are no pauses.

import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { ADMIN_KEY, Browser, FOLDER, KEY, URL, accessible, api, create, exec, go, readFile, restartServer, until } from './world.mjs'

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

const sandboxUrl = (id, tab = 'overview') => `#/sandboxes/${id}/${tab}`
const chip = (page, phase) => page.locator(`.head [data-phase="${phase}"]`)

test('a wrong key is refused, the right one opens the page and stays in this session', async () => {
  const page = await browser.page({ key: null })
  await page.getByLabel('API key').fill('atl_wrong')
  await page.getByRole('button', { name: 'Open' }).click()
  await page.getByRole('alert').first().waitFor()
  await page.getByLabel('API key').fill(KEY)
  await page.getByRole('button', { name: 'Open' }).click()
  await page.getByText('No sandboxes yet').waitFor()
  await accessible(page, 'empty list')
  assert.deepEqual(await page.context().cookies(), [])
  assert.equal(await page.evaluate(() => Object.values({ ...localStorage }).join()), '')
  // Another tab of the same viewer gets the key from this one; another viewer does not.
  const tab = await page.context().newPage()
  await tab.goto(URL)
  await tab.getByText('No sandboxes yet').waitFor()
  const stranger = await browser.page({ key: null })
  await stranger.getByLabel('API key').waitFor()
  await stranger.context().close()
  await page.context().close()
  browser.check()
})

test('a link hands the key over once', async () => {
  const { code } = await api('POST', '/v1/keys/invites')
  const page = await browser.page({ key: null, hash: `#/open/${code}` })
  await page.getByText('No sandboxes yet').waitFor()
  assert(!page.url().includes(code))
  const late = await browser.page({ key: null, hash: `#/open/${code}` })
  await late.getByText('used before').waitFor()
  await late.context().close()
  await page.context().close()
  browser.check()
})

test('a login is approved by its typed code, and the page says who asks for what', async () => {
  const login = await api('POST', '/v1/logins', { name: 'anna@laptop' })
  const page = await browser.page({ hash: '#/approve' })
  await page.getByLabel('Code that').fill(login.code.toLowerCase())
  await page.getByRole('button', { name: 'Continue' }).click()
  await page.getByText('anna@laptop').waitFor()
  await page.getByText('a user key').waitFor()
  await accessible(page, 'a login to approve')
  await page.getByRole('button', { name: 'Approve', exact: true }).click()
  await page.getByRole('status').getByText('anna@laptop').waitFor()
  const got = await api('POST', '/v1/logins/poll', undefined, login.secret)
  assert.deepEqual([got.state, got.key.scope, got.key.name], ['approved', 'user', 'anna@laptop'])
  await page.context().close()
  browser.check()
})

test('a link to another account asks before it replaces the key', async () => {
  const other = process.env.ATOLL_OTHER_KEY
  const [mine, theirs] = await Promise.all([KEY, other].map((key) => api('GET', '/v1/keys/current', undefined, key)))
  const link = async () => `#/open/${(await api('POST', '/v1/keys/invites', undefined, other)).code}`
  const question = (page) => page.getByRole('dialog', { name: 'Change to another account?' })
  const held = (page) => page.evaluate(() => sessionStorage.getItem('atoll.key'))
  // In a page that has a key: the question names both accounts, and "no" keeps the viewer's own.
  const page = await browser.page()
  await page.getByText('No sandboxes yet').waitFor()
  await go(page, await link())
  await question(page).waitFor()
  const text = await question(page).innerText()
  for (const key of [mine, theirs]) assert(text.includes(key.name ?? key.id) && text.includes(key.tenant_name), text)
  await accessible(page, 'the question')
  assert.equal(await held(page), KEY)
  await question(page).getByRole('button', { name: 'Cancel' }).click()
  assert.equal(await held(page), KEY)
  // In a new tab of the same viewer, which gets its key from the first one.
  const tab = await page.context().newPage()
  await tab.goto(`${URL}/${await link()}`)
  await question(tab).waitFor()
  assert.equal(await held(tab), KEY)
  await question(tab).getByRole('button', { name: 'Change account' }).click()
  await until('the other key', async () => (await held(tab)) === other)
  // A link to the viewer's own account needs no question.
  const redeemed = page.waitForResponse((response) => response.url().endsWith('/redeem'))
  await go(page, `#/open/${(await api('POST', '/v1/keys/invites')).code}`)
  await (await redeemed).finished()
  await page.getByText('No sandboxes yet').waitFor()
  assert.equal(await question(page).count(), 0)
  assert.equal(await held(page), KEY)
  await page.context().close()
  browser.check()
})

test('a link asks too while the account of the own key cannot be read', async () => {
  const other = process.env.ATOLL_OTHER_KEY
  const question = (page) => page.getByRole('dialog', { name: 'Change to another account?' })
  const held = (page) => page.evaluate(() => sessionStorage.getItem('atoll.key'))
  for (const status of [503, 429]) {
    const page = await browser.page()
    await page.getByText('No sandboxes yet').waitFor()
    // The server answers so for the viewer's own key alone.
    await page.route('**/v1/keys/current', (route) => {
      const own = route.request().headers().authorization === `Bearer ${KEY}`
      return own ? route.fulfill({ status, json: { code: 'unavailable', message: 'not now' } }) : route.continue()
    })
    await go(page, `#/open/${(await api('POST', '/v1/keys/invites', undefined, other)).code}`)
    await question(page).waitFor()
    assert.match(await question(page).innerText(), /current account could not be read/)
    assert.equal(await held(page), KEY)
    await question(page).getByRole('button', { name: 'Cancel' }).click()
    assert.equal(await held(page), KEY)
    await page.context().close()
  }
  browser.check()
})

test('three steps end in a terminal that has colours, sizes and a past', async () => {
  const page = await browser.page()
  await page.getByRole('button', { name: 'Create and open a terminal' }).click()
  const view = page.locator('[data-status="open"]')
  await view.waitFor()
  const rows = page.locator('.xterm-rows')
  await page.locator('.xterm-helper-textarea').focus()
  await page.keyboard.type("printf '\\033[31mred%s\\033[0m\\n' word")
  await page.keyboard.press('Enter')
  await until('coloured output', () => rows.evaluate((node) => [...node.querySelectorAll('span')].some((span) => span.textContent.includes('redword') && /fg-1/.test(span.className))))
  await page.keyboard.press('Control+c')
  const size = async () => {
    const name = `size-${Math.random().toString(36).slice(2)}`
    await page.keyboard.type(`stty size > /tmp/${name}`)
    await page.keyboard.press('Enter')
    const id = (await api('GET', '/v1/sandboxes')).items[0].id
    return until('the size', async () => (await exec(id, `cat /tmp/${name} 2>/dev/null; true`)).stdout.trim())
  }
  const before = await size()
  await page.setViewportSize({ width: 900, height: 560 })
  await until('a smaller terminal', async () => (await size()) !== before)
  await page.reload()
  await page.locator('[data-status="open"]').waitFor()
  await until('the past of the terminal', () => page.locator('.xterm-rows').evaluate((node) => node.textContent.includes('stty')))
  await page.context().close()
  browser.check()
})

test('files are uploaded, edited and shown', async () => {
  const { id } = (await api('GET', '/v1/sandboxes')).items[0]
  const page = await browser.page({ hash: sandboxUrl(id, 'files') })
  const tree = page.getByRole('tree', { name: 'Files' })
  await tree.waitFor()
  writeFileSync(join(FOLDER, 'notes.py'), 'print("first")\n')
  const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64')
  writeFileSync(join(FOLDER, 'dot.png'), png)
  await page.getByLabel('Files to upload').setInputFiles([join(FOLDER, 'notes.py'), join(FOLDER, 'dot.png')])
  await tree.getByText('notes.py').click()
  const editor = page.getByLabel('Content of notes.py')
  await editor.waitFor()
  await editor.focus()
  await page.keyboard.press('Control+a')
  await page.keyboard.type('print("second")')
  await page.keyboard.press('Control+s')
  await page.waitForURL(/path=/)
  const path = decodeURIComponent(new globalThis.URL(page.url().replace('#', '')).searchParams.get('path'))
  await until('the saved text', async () => (await readFile(id, path)) === 'print("second")')
  await tree.getByText('dot.png').click()
  await page.locator('img[alt="dot.png"]').waitFor()
  assert.match(await page.locator('img[alt="dot.png"]').getAttribute('src'), /^blob:/)
  await page.context().close()
  browser.check()
})

test('code runs as in a notebook: output, tables, charts, errors', async () => {
  const { id } = await create({ template: 'code-interpreter-slim', name: 'notebook' })
  const page = await browser.page({ hash: sandboxUrl(id, 'run') })
  const run = async (code) => {
    await page.getByLabel('Code', { exact: true }).focus()
    await page.keyboard.insertText(code)
    await page.keyboard.press('Control+Enter')
    const cell = page.getByRole('article').last()
    await until('the cell ends', async () => (await cell.getAttribute('data-state')) === 'done')
    return cell
  }
  await (await run('x = 6 * 7\nprint("from", "stdout")\nx')).getByText('42', { exact: true }).waitFor()
  await (await run('import matplotlib.pyplot as p\np.plot([1, 4, 9])\np.show()')).locator('img').waitFor()
  const html = await run('from IPython.display import HTML\nHTML("<table><tr><td>a cell</td></tr></table><script>alert(1)</script>")')
  await html.frameLocator('iframe').getByText('a cell').waitFor()
  await (await run('1 / 0')).getByText('ZeroDivisionError').first().waitFor()
  await accessible(page, 'run')
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('a pause elsewhere is seen, and a click resumes', async () => {
  const { id } = await create({ name: 'sleeper' })
  const page = await browser.page({ hash: sandboxUrl(id) })
  await chip(page, 'running').waitFor()
  await api('POST', `/v1/sandboxes/${id}/pause`)
  await chip(page, 'paused').waitFor()
  await page.getByRole('button', { name: 'Resume' }).click()
  await chip(page, 'running').waitFor()
  await page.context().close()
  browser.check()
})

test('forks are a tree, and a snapshot is gone back to', async () => {
  const { id } = (await api('GET', '/v1/sandboxes?name=sleeper')).items[0]
  const page = await browser.page({ hash: sandboxUrl(id, 'snapshots') })
  await page.getByLabel('Name').first().fill('before')
  await page.getByRole('button', { name: 'Take a snapshot' }).click()
  await page.getByRole('cell', { name: /^before/ }).waitFor()
  await exec(id, 'echo later > later.txt')
  await page.getByRole('button', { name: 'Roll back' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click()
  await until('the file is gone', async () => (await exec(id, 'test -e later.txt || echo gone')).stdout.includes('gone'))
  await page.getByLabel('Copies').fill('2')
  await page.getByRole('button', { name: 'Fork', exact: true }).click()
  const items = page.getByRole('tree', { name: 'Lineage' }).getByRole('treeitem')
  await until('a tree of three', async () => (await items.count()) === 3)
  await accessible(page, 'snapshots')
  await page.context().close()
  browser.check()
})

test('a refused name is allowed with a click', async () => {
  const { id } = await create({ name: 'gated', network: { mode: 'custom', allow_domains: ['allowed.test'] } })
  const page = await browser.page({ hash: sandboxUrl(id, 'egress') })
  await exec(id, 'python3 -c "import socket; socket.getaddrinfo(\'wanted.test\', 80)" 2>&1; true')
  const row = page.getByRole('row').filter({ hasText: 'wanted.test' }).first()
  await row.getByText('refused').waitFor()
  await row.getByRole('button', { name: 'Allow' }).click()
  await until('the policy has the name', async () => (await api('GET', `/v1/sandboxes/${id}`)).network.allow_domains?.includes('wanted.test'))
  await accessible(page, 'egress')
  await page.context().close()
  browser.check()
})

test('nothing that a sandbox says becomes more than text', async () => {
  const bad = '<img src=x onerror=alert(1)><script>alert(2)</script>'
  const { id } = await create({ name: 'hostile', thread: `${bad}/"'`, labels: { note: bad, 'x': '"><svg onload=alert(3)>' } })
  const q = (text) => `'${text.replaceAll("'", "'\\''")}'`
  await exec(id, `touch ${q(bad.replaceAll('/', '_'))}; printf '<script>alert(4)</script><b>bold</b>' > page.html; printf '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(5)"><script>alert(6)</script></svg>' > image.svg; mkdir ${q('"onmouseover="alert(7)')}`)
  await api('POST', `/v1/sandboxes/${id}/exec`, { command: `printf '%s\\n' ${q(bad)} '\\033]0;<script>alert(8)</script>\\007' '\\033[31m<b>red</b>'; sleep 600`, detach: true, tag: bad })
  const page = await browser.page({ hash: '#/resources' })
  await page.getByRole('link', { name: 'hostile' }).waitFor()
  await page.getByText('note=<img').first().waitFor()
  await go(page, '#/threads')
  await page.getByRole('link', { name: bad }).click()
  await page.getByRole('heading', { name: bad }).waitFor()
  for (const tab of ['overview', 'settings', 'processes', 'events', 'egress', 'snapshots']) {
    await go(page, sandboxUrl(id, tab))
    await page.locator(`nav [aria-current="page"][href$="/${tab}"]`).waitFor()
    await page.locator('section.body .card').first().waitFor()
  }
  await go(page, sandboxUrl(id, 'logs'))
  await page.getByRole('log').getByText(bad).waitFor()
  await go(page, sandboxUrl(id, 'files'))
  const tree = page.getByRole('tree', { name: 'Files' })
  await tree.getByText('onmouseover').waitFor()
  for (const name of ['page.html', 'image.svg']) {
    await tree.getByText(name).click()
    const frame = page.locator(`iframe[title="${name}"]`)
    await frame.waitFor()
    assert.equal(await frame.getAttribute('sandbox'), '')
  }
  await until('the frame shows the page', async () => { await tree.getByText('page.html').click(); return page.frameLocator('iframe[title="page.html"]').getByText('bold').isVisible() })
  await go(page, sandboxUrl(id, 'terminal'))
  await page.locator('[data-status="open"]').waitFor()
  await page.locator('.xterm-helper-textarea').focus()
  await page.keyboard.type(`printf '%s\\033]0;<script>alert(9)</script>\\007' '${bad}'`)
  await page.keyboard.press('Enter')
  await until('it is text in the terminal', () => page.locator('.xterm-rows').evaluate((node) => node.textContent.includes('onerror') && !node.querySelector('img, script')))
  assert.equal(await page.evaluate(() => document.querySelectorAll('img[src="x"], main script, svg[onload]').length), 0)
  // The policy of the page says so too. Its frames refuse scripts loudly, which is no fault of the page.
  browser.faults = browser.faults.filter((fault) => !/Blocked script execution in 'about:srcdoc'|about:srcdoc/.test(fault))
  await page.context().close()
  browser.check()
})

test('two tenants do not see each other', async () => {
  const page = await browser.page({ key: process.env.ATOLL_OTHER_KEY })
  await page.getByText('No sandboxes yet').waitFor()
  const { id } = (await api('GET', '/v1/sandboxes?name=hostile')).items[0]
  await go(page, sandboxUrl(id))
  await page.getByRole('alert').waitFor()
  await create({ name: 'theirs' }, process.env.ATOLL_OTHER_KEY)
  await go(page, '#/resources')
  await page.getByRole('link', { name: 'theirs' }).waitFor()
  const mine = await browser.page()
  await mine.getByRole('link', { name: 'hostile' }).waitFor()
  assert.equal(await mine.getByRole('link', { name: 'theirs' }).count(), 0)
  await mine.context().close()
  await page.context().close()
  browser.check()
})

test('the keyboard reaches everything', async () => {
  const page = await browser.page()
  await page.getByRole('link', { name: 'hostile' }).waitFor()
  await page.keyboard.press('/')
  await page.keyboard.type('gated')
  await until('one row', async () => (await page.locator('[data-id]').count()) === 1)
  await page.waitForURL(/q=gated/)
  await page.keyboard.press('Escape')
  await page.keyboard.press('j')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'gated' }).waitFor()
  await page.keyboard.press('g')
  await page.keyboard.press('r')
  await page.getByRole('link', { name: 'hostile' }).waitFor()
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox', { name: /Search/ }).fill('pause gated')
  await page.getByRole('option', { name: 'Pause gated' }).first().waitFor()
  await page.keyboard.press('Enter')
  await page.getByText('Paused gated', { exact: true }).waitFor()
  await page.keyboard.press('?')
  await page.getByRole('dialog', { name: 'Keyboard shortcuts' }).waitFor()
  await page.keyboard.press('Escape')
  await page.context().close()
  browser.check()
})

test('settings: secrets, volumes, templates, server', async () => {
  const page = await browser.page({ hash: '#/settings/secrets' })
  await page.getByLabel('Name').fill('token')
  await page.getByLabel('Value').fill('canary-of-the-page')
  await page.getByRole('button', { name: 'Create', exact: true }).click()
  await page.getByRole('cell', { name: 'token' }).waitFor()
  assert(!(await page.content()).includes('canary-of-the-page'))
  await go(page, '#/settings/volumes')
  await page.getByLabel('Name').fill('shared')
  await page.getByRole('button', { name: 'Create', exact: true }).click()
  await page.getByRole('button', { name: 'shared' }).click()
  await page.getByText('This folder is empty.').waitFor()
  await go(page, '#/settings/templates')
  await page.getByRole('cell', { name: /debian|host/ }).first().waitFor()
  for (const section of ['sandbox', 'templates', 'volumes', 'secrets', 'keys', 'tenants', 'server']) {
    await go(page, `#/settings/${section}`)
    await page.locator(`nav[aria-label="Settings"] [aria-current="page"][href="#/settings/${section}"]`).waitFor()
    await page.getByRole('heading', { level: 1 }).waitFor()
    await accessible(page, section)
  }
  // What belongs to the operator is for admin keys.
  await page.getByText('an admin key sees its checks').waitFor()
  const operator = await browser.page({ key: ADMIN_KEY, hash: '#/settings/server' })
  await operator.locator('[data-part="checks"]').getByText('user namespaces').waitFor()
  await operator.locator('[data-part="settings"]').getByText('--listen').waitFor()
  await accessible(operator, 'the server')
  await operator.context().close()
  await api('DELETE', '/v1/volumes/shared')
  await api('DELETE', '/v1/secrets/token')
  await page.context().close()
  browser.check()
})

test('no serious violation of accessibility in either theme and at three widths', async () => {
  const { id } = (await api('GET', '/v1/sandboxes?name=hostile')).items[0]
  for (const colorScheme of ['light', 'dark']) {
    const page = await browser.page({ colorScheme })
    for (const width of [360, 1280, 3840]) {
      await page.setViewportSize({ width, height: 900 })
      for (const hash of ['#/resources', '#/resources?view=grid', sandboxUrl(id), sandboxUrl(id, 'settings')]) {
        await go(page, hash)
        await page.getByText('hostile').first().waitFor()
        if (width !== 3840) await accessible(page, `${hash} ${colorScheme} ${width}`)
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
        assert(over <= 0, `${hash} is ${over} px wider than ${width}`)
      }
    }
    await page.context().close()
  }
  browser.check()
})

test('the server restarts and the page goes on', async () => {
  const page = await browser.page()
  await page.getByText('Live', { exact: true }).waitFor()
  const lost = page.getByText('Not live').waitFor()
  await Promise.all([restartServer(), lost])
  await page.getByText('Live', { exact: true }).waitFor()
  const { id } = await create({ name: 'afterwards' })
  await page.getByRole('link', { name: 'afterwards' }).waitFor()
  assert(id)
  await page.context().close()
  browser.check()
})

test('bulk delete asks once and empties the list', async () => {
  const page = await browser.page()
  await page.getByRole('link', { name: 'afterwards' }).waitFor()
  await page.getByLabel('Select all').click()
  await page.getByRole('toolbar').getByRole('button', { name: 'Delete' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await page.getByText('No sandboxes yet').waitFor()
  for (const snapshot of (await api('GET', '/v1/snapshots')).items) await api('DELETE', `/v1/snapshots/${snapshot.id}`)
  for (const { thread } of (await api('GET', '/v1/threads')).items) await api('DELETE', `/v1/threads/${encodeURIComponent(thread)}`)
  await page.context().close()
  browser.check()
})
