// What the tests share. The server is started by tests/tests/sdk_typescript.rs, which sets these variables.
import { randomBytes } from 'node:crypto';
import { Atoll, type CreateOptions, type Sandbox } from 'atoll-sandbox';

const need = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: tests/tests/sdk_typescript.rs starts these tests`);
  return value;
};

export const url = need('ATOLL_URL');
/** The key of a tenant. */
export const apiKey = need('ATOLL_API_KEY');
export const adminKey = need('ATOLL_ADMIN_KEY');
/** The repository. */
export const repository = need('ATOLL_REPOSITORY');

/** A template with Python, node, git and a kernel. */
export const INTERPRETER = 'code-interpreter-slim';

export const client = new Atoll({ url, apiKey });

export const word = (prefix: string): string => `${prefix}-${randomBytes(5).toString('hex')}`;

/** A sandbox that is deleted when the test is over. */
export async function sandbox(t: { after(end: () => Promise<void>): void }, options: CreateOptions & { template?: string } = {}): Promise<Sandbox> {
  const { template, ...rest } = options;
  const made = await client.sandboxes.create(template ?? 'debian', rest);
  t.after(() => made[Symbol.asyncDispose]());
  return made;
}

export async function until<T>(what: string, check: () => Promise<T | undefined | false>): Promise<T> {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const found = await check();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`not within a minute: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}
