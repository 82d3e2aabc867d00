/**
 * A WebSocket with the key, on every platform.
 *
 * A page cannot set headers, so it sends the key as a sub-protocol. Programs send a header: the WebSocket of Node 22, Bun and Deno
 * takes headers as an option, the package `ws` too. Node 20 has no WebSocket of its own; `ws` is used there if it is installed.
 */
import { ConnectionFailedError, UnsupportedError } from './errors.js';

/** The part of the standard's WebSocket that terminals use. `ws` has it too. */
export interface Socket {
  binaryType: string;
  readonly readyState: number;
  send(data: string | Uint8Array): void;
  close(): void;
  addEventListener(type: string, listener: (event: { data?: unknown; message?: string; error?: unknown }) => void): void;
}

type Open = (url: string, key: string) => Socket;
type SocketClass = new (url: string, protocols?: unknown, options?: unknown) => Socket;

/** Opens a socket, after `attach` has seen it; `given` is a class to use instead of the platform's, such as that of `ws`. */
export async function openSocket(url: string, key: string, given: unknown, attach: (socket: Socket) => void): Promise<void> {
  const open = given ? withOptions(given as SocketClass) : await platform();
  const socket = open(url, key);
  socket.binaryType = 'arraybuffer';
  attach(socket);
  await new Promise<void>((resolve, reject) => {
    socket.addEventListener('open', () => resolve());
    const refused = (event: { message?: string }) =>
      reject(new ConnectionFailedError(url, new Error(event.message || 'the WebSocket was refused')));
    socket.addEventListener('error', refused);
    socket.addEventListener('close', refused);
  });
}

async function platform(): Promise<Open> {
  const global = (globalThis as { WebSocket?: SocketClass }).WebSocket;
  if (global) return isBrowser() ? withProtocol(global) : withHeaders(global);
  return withOptions(await packageSocket());
}

function isBrowser(): boolean {
  const known = globalThis as { process?: { versions?: { node?: string } }; Deno?: unknown; Bun?: unknown };
  return !known.process?.versions?.node && !known.Deno && !known.Bun;
}

const authorization = (key: string) => ({ authorization: `Bearer ${key}` });

/** A page: the server finds the key in the sub-protocol, and checks the origin. */
const withProtocol =
  (known: SocketClass): Open =>
  (url, key) =>
    new known(url, ['atoll', `atoll.key.${key}`]);

const withHeaders =
  (known: SocketClass): Open =>
  (url, key) =>
    new known(url, { protocols: ['atoll'], headers: authorization(key) });

const withOptions =
  (known: SocketClass): Open =>
  (url, key) =>
    new known(url, ['atoll'], { headers: authorization(key) });

async function packageSocket(): Promise<SocketClass> {
  // A name that bundlers do not follow: the package is optional.
  const name = 'ws';
  try {
    const found = (await import(name)) as { WebSocket?: SocketClass; default?: SocketClass };
    const known = found.WebSocket ?? found.default;
    if (known) return known;
  } catch {
    // Said below.
  }
  throw new UnsupportedError({
    status: 0,
    code: 'unsupported',
    message: 'terminals need a WebSocket, which this version of Node does not have',
    hint: 'use Node 22 or newer, or: npm install ws',
  });
}
