/** Where the server is and which key to use: from the program, or from the environment. */
import { AuthenticationError, InvalidError } from './errors.js';
import { Transport } from './transport.js';

export interface AtollOptions {
  /** Address of the server. Default: `ATOLL_URL`, else `http://127.0.0.1:7070`. */
  url?: string;
  /** Default: `ATOLL_API_KEY`. */
  apiKey?: string;
  /** Time limit of a request in seconds. Default: 60; calls that take longer by nature have their own. 0 is none. */
  timeoutS?: number;
  /** How often a request that can be repeated is sent again. Default: 2. */
  maxRetries?: number;
  /** Instead of the platform's. */
  fetch?: typeof globalThis.fetch;
  /** A WebSocket class that takes headers, such as that of the package `ws`, instead of the platform's. */
  webSocket?: unknown;
}

const DEFAULT_URL = 'http://127.0.0.1:7070';

/** A variable of the environment, where the platform has one. */
export function environment(name: string): string | undefined {
  const known = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return known.process?.env?.[name] || undefined;
}

export function connect(options: AtollOptions = {}): Transport {
  const apiKey = options.apiKey ?? environment('ATOLL_API_KEY');
  if (!apiKey) {
    throw new AuthenticationError({
      status: 0,
      code: 'unauthenticated',
      message: 'missing API key',
      hint: 'pass apiKey or set ATOLL_API_KEY; `atoll key create` makes a key',
    });
  }
  const url = options.url ?? environment('ATOLL_URL') ?? DEFAULT_URL;
  if (!/^https?:\/\//.test(url)) {
    throw new InvalidError({
      status: 0,
      code: 'invalid_argument',
      message: `"${url}" is not an address of a server`,
      hint: 'it begins with http:// or https://',
    });
  }
  return new Transport({
    url: url.replace(/\/+$/, ''),
    apiKey,
    timeoutS: options.timeoutS ?? 60,
    maxRetries: options.maxRetries ?? 2,
    // fetch of a browser must be called on its window.
    fetch: options.fetch ?? ((input, init) => globalThis.fetch(input, init)),
  });
}
