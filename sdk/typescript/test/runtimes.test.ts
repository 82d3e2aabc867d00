// One smoke test on Bun, on Deno, on Node and in Chromium: the same program everywhere.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';
import { test } from 'node:test';
import { apiKey, url } from './world.js';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const CHROMIUM = '/usr/bin/chromium';
const EXPECTED = {
  exitCode: 3,
  stdout: 'hi\n',
  streamed: ['start', 'stdout', 'exit'],
  file: 'héllo',
  missing: 'NotFoundError file_not_found',
  terminal: '42',
  tool: '{"output":"7\\n","exitCode":0}',
};

const PROGRAMS: Record<string, { binary: string; args: string[] }> = {
  Node: { binary: process.execPath, args: [] },
  Bun: { binary: here('../node_modules/@oven/bun-linux-x64/bin/bun'), args: ['run'] },
  Deno: { binary: here('../node_modules/@deno/linux-x64-glibc/deno'), args: ['run', '--allow-all', '--no-lock', '--node-modules-dir=manual'] },
};

for (const [name, { binary, args }] of Object.entries(PROGRAMS)) {
  test(`the package works on ${name}`, { skip: existsSync(binary) ? false : `${name} is not for this machine` }, async () => {
    const env = { ...process.env, ATOLL_URL: url, ATOLL_API_KEY: apiKey, NO_COLOR: '1', DENO_NO_UPDATE_CHECK: '1' };
    const { stdout } = await promisify(execFile)(binary, [...args, here('./smoke.js')], { env, cwd: here('..') });
    assert.deepEqual(JSON.parse(stdout), EXPECTED);
  });
}

test('the package works in Chromium', { skip: existsSync(CHROMIUM) ? false : `there is no ${CHROMIUM}` }, async () => {

  // The page comes from this test and not from the address of the server, so Chromium would count the server as a foreign local network.
  const args = ['--no-sandbox', '--disable-gpu', '--disable-features=LocalNetworkAccessChecks'];
  const browser = await chromium.launch({ executablePath: CHROMIUM, args });
  try {
    const page = await browser.newPage();
    const failures: string[] = [];
    page.on('pageerror', (error) => failures.push(String(error)));
    page.on('console', (message) => failures.push(message.text()));
    // A page of the server's own origin whose files are those of the package, as an application would serve them.
    await page.route(`${url}/app/**`, async (route) => {
      const path = new URL(route.request().url()).pathname.slice('/app/'.length);
      if (path === '') return route.fulfill({ contentType: 'text/html', body: PAGE });
      const file = path === 'smoke.js' ? here('./smoke.js') : here(`../node_modules/atoll-sandbox/dist/${path}`);
      return route.fulfill({ contentType: 'text/javascript', body: readFileSync(file, 'utf8') });
    });
    await page.goto(`${url}/app/`);
    const result = await page.evaluate(
      async ([address, key]) => {
        // @ts-expect-error A file of the page.
        const { smoke } = await import('/app/smoke.js');
        return smoke({ url: address, apiKey: key });
      },
      [url, apiKey] as const,
    );
    assert.deepEqual(result, EXPECTED, failures.join('\n'));
  } finally {
    await browser.close();
  }
});

const PAGE = '<!doctype html><script type="importmap">{"imports": {"atoll-sandbox": "/app/index.js"}}</script>';
