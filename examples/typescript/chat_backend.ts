// A chat back end for many users: every conversation has a sandbox of its own, which sleeps between messages and is found by its thread.
import { createServer, type IncomingMessage } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { type AgentModel, Atoll, AtollSandboxToolkit, SandboxAgent } from 'atoll-sandbox';

// Stands for a model: "remember X" writes a file, anything else reads it. A real one would decide by itself.
const model: AgentModel = async ({ messages }) => {
  const last = messages.at(-1)!;
  if (last.role === 'tool') return { text: last.content === 'ok' ? 'I will remember that.' : `You told me: ${last.content}` };
  const wish = last.content.match(/^remember (.*)/)?.[1];
  const call = wish
    ? { name: 'sandbox_atoll_write_file', arguments: { path: 'memory.txt', contents: wish } }
    : { name: 'sandbox_atoll_read_file', arguments: { path: 'memory.txt' } };
  return { toolCalls: [{ id: 'call', ...call }] };
};

const read = async (request: IncomingMessage) => {
  let text = '';
  for await (const piece of request) text += piece;
  return text;
};

/** One message: the agent of the conversation answers, then its sandbox is paused. */
async function answer(thread: string, text: string): Promise<string> {
  const toolkit = new AtollSandboxToolkit({ thread, template: 'debian', create: { memoryMib: 256, network: 'deny-all' } });
  await using agent = new SandboxAgent({ model, toolkits: [toolkit] });
  return (await agent.run(text)).text;
}

const server = createServer(async (request, response) => {
  const thread = `example-${request.url!.slice(1)}`;
  response.end(await answer(thread, await read(request)).catch((error: Error) => `error: ${error.message}`));
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

async function say(user: string, text: string): Promise<void> {
  const response = await fetch(`${address}/${user}`, { method: 'POST', body: text });
  console.log(`${user}: ${text}\n  -> ${await response.text()}`);
}

await say('ann', 'remember the cake');
await say('bob', 'what did I say?');
await say('bob', 'remember the candles');
await say('ann', 'what did I say?');
await say('bob', 'what did I say?');

const client = new Atoll();
for (const user of ['ann', 'bob']) {
  const thread = await client.threads.get(`example-${user}`);
  console.log(`the sandbox of ${user} is ${thread.phase}`);
  await (await client.sandboxes.get(thread.sandbox!)).delete();
  await client.threads.end(`example-${user}`);
}
server.close();
