/** Terminals of a sandbox, over WebSocket. */
import { snakeFields } from './case.js';
import { streamError } from './errors.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { Schemas, TerminalInfo } from './types.js';
import { openSocket, type Socket } from './web_socket.js';

export interface TerminalOptions extends RequestOptions {
  cols?: number;
  rows?: number;
  shell?: string[];
  cwd?: string;
  env?: Record<string, string>;
  user?: string;
}

export class Terminals {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
    private readonly socketClass: unknown,
  ) {}

  /** Opens a terminal and connects to it. The same thread gets the same terminal, with the end of its output. */
  async open(thread = 'default', options: TerminalOptions = {}): Promise<Terminal> {
    const [request, rest] = splitOptions(options);
    const call = { method: 'POST', path: this.path, json: { thread, ...snakeFields(rest) }, options: request };
    const info = await this.transport.json<Schemas['Terminal']>(call);
    return this.connect(info);
  }

  /** Connects to a terminal that is open. */
  async connect(info: TerminalInfo): Promise<Terminal> {
    const terminal = new Terminal(info);
    const address = this.transport.socketUrl(`${at(this.path, info.id)}/ws`);
    await openSocket(address, this.transport.settings.apiKey, this.socketClass, (socket) => terminal.attach(socket));
    return terminal;
  }

  async list(options?: RequestOptions): Promise<TerminalInfo[]> {
    return (await this.transport.json<Schemas['TerminalList']>({ method: 'GET', path: this.path, options })).items;
  }

  /** Ends a terminal and its shell. */
  async delete(terminal: TerminalInfo | string, options?: RequestOptions): Promise<void> {
    const id = typeof terminal === 'string' ? terminal : terminal.id;
    await this.transport.done({ method: 'DELETE', path: at(this.path, id), options });
  }
}

/**
 * A connection to a terminal. Read its output with `for await (const bytes of terminal)`; the loop ends with the shell or the
 * connection. Closing the connection leaves the shell running.
 */
export class Terminal implements AsyncDisposable {
  /** The exit code of the shell, once it has ended. */
  exitCode: number | undefined;
  private readonly waiting: Uint8Array[] = [];
  private ended = false;
  private failure: unknown;
  private wake: () => void = () => {};
  private socket!: Socket;

  constructor(readonly info: TerminalInfo) {}

  /** Listens to a socket before it is open, so that no output is missed. */
  attach(socket: Socket): void {
    this.socket = socket;
    socket.addEventListener('message', (event) => this.take(event.data));
    socket.addEventListener('close', () => this.end());
    socket.addEventListener('error', () => this.end());
  }

  get id(): string {
    return this.info.id;
  }

  /** Types text or bytes. */
  send(data: string | Uint8Array): void {
    this.socket.send(typeof data === 'string' ? new TextEncoder().encode(data) : data);
  }

  resize(cols: number, rows: number): void {
    this.socket.send(JSON.stringify({ type: 'resize', cols, rows }));
  }

  /** Output as it comes. */
  async *receive(): AsyncGenerator<Uint8Array> {
    for (;;) {
      const bytes = this.waiting.shift();
      if (bytes) yield bytes;
      else if (this.failure) throw this.failure;
      else if (this.ended) return;
      else await new Promise<void>((resolve) => (this.wake = resolve));
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    return this.receive();
  }

  /** Closes the connection. */
  async close(): Promise<void> {
    this.socket.close();
    this.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private take(data: unknown): void {
    if (typeof data === 'string') this.takeFrame(JSON.parse(data));
    else this.waiting.push(new Uint8Array(data as ArrayBuffer));
    this.wake();
  }

  private takeFrame(frame: { type: string; exit_code?: number; code?: string; message?: string; hint?: string }): void {
    if (frame.type === 'exit') this.exitCode = frame.exit_code;
    if (frame.type === 'error') this.failure = streamError(frame as { code: string; message: string });
  }

  private end(): void {
    this.ended = true;
    this.wake();
  }
}
