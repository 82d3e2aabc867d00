// A web app in a sandbox, seen from outside: start it, open a preview, change a file, look again.
import { Atoll } from 'atoll-sandbox';

const APP = `
import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
createServer((request, response) => {
  if (request.url === '/api/time') return response.end(JSON.stringify({ now: typeof Date.now() }));
  response.setHeader('content-type', 'text/html');
  response.end(readFileSync('page.html'));
}).listen(3000, () => console.log('listening'));
`;

const client = new Atoll();
await using sandbox = await client.sandboxes.create('debian', { autoPauseS: 600 });
await sandbox.files.write('app.mjs', APP);
await sandbox.files.write('page.html', '<h1>Version 1</h1>\n');

const server = await sandbox.commands.start(['node', 'app.mjs']);
for await (const event of server.output()) {
  if (event.type === 'stdout' && event.data.includes('listening')) break;
  if (event.type === 'exit') throw new Error(`the app ended with ${event.exitCode}`);
}

// Browsers open preview.url. Programs that cannot resolve names below localhost use the path at the server's own address.
const preview = await sandbox.previews.create(3000, { expiresS: 600 });
const address = new URL(preview.path, client.url);
const get = async (path: string) => {
  const target = new URL(address);
  target.pathname += path;
  const response = await fetch(target);
  return `${response.status} ${(await response.text()).trim()}`;
};
console.log('preview:', new URL(preview.url).hostname.replace(sandbox.id, 'ID'));
console.log('page:', await get(''));
console.log('api:', await get('api/time'));

await sandbox.files.edit('page.html', [{ find: 'Version 1', replace: 'Version 2' }]);
console.log('after an edit:', await get(''));

await sandbox.previews.delete(preview);
console.log('after the preview is closed:', (await get('')).slice(0, 3));
await server.kill();
console.log('the app ended with', (await server.wait()).exitCode);
