// A program that every platform runs: see runtimes.test.ts. Nothing of Node is imported.
import { Atoll, type AtollOptions, AtollError, AtollSandboxToolkit } from 'atoll-sandbox';

export async function smoke(options: AtollOptions = {}) {
  const client = new Atoll(options);
  const box = await client.sandboxes.create('debian');
  try {
    const { stdout, exitCode } = await box.commands.run('echo hi; exit 3');
    const streamed: string[] = [];
    for await (const event of box.commands.stream('echo one')) streamed.push(event.type);
    await box.files.write('a.txt', 'héllo');
    const file = await box.files.readText('a.txt');
    const missing = await box.files.read('none').then(
      () => 'found',
      (error: unknown) => (error instanceof AtollError ? `${error.name} ${error.code}` : String(error)),
    );
    return { exitCode, stdout, streamed, file, missing, terminal: await type(box, 'echo $((6*7))'), tool: await callTool(options) };
  } finally {
    await box.delete();
  }
}

async function type(box: Awaited<ReturnType<Atoll['sandboxes']['create']>>, line: string): Promise<string> {
  const terminal = await box.terminals.open();
  terminal.send(`${line}; exit\n`);
  let text = '';
  for await (const bytes of terminal) text += new TextDecoder().decode(bytes);
  return text.match(/^\d+(?=\r$)/m)?.[0] ?? text;
}

async function callTool(options: AtollOptions): Promise<string> {
  const toolkit = new AtollSandboxToolkit({ apiKey: options.apiKey, baseURL: options.url, template: 'debian' });
  try {
    return await toolkit.getTools()[0]!.execute({ code: 'print(3 + 4)' });
  } finally {
    await toolkit.close();
  }
}

const known = globalThis as { document?: unknown };
if (!known.document) console.log(JSON.stringify(await smoke()));
