/** Server-sent events, as an async iterator. */

export interface ServerEvent {
  name: string;
  id: string | undefined;
  data: unknown;
}

/** Reads the events of a body until it ends. Leaving the loop cancels the request. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      let start = 0;
      let end: number;
      while ((end = rest.indexOf('\n\n', start)) >= 0) {
        const event = parseEvent(rest.slice(start, end));
        start = end + 2;
        if (event) yield event;
      }
      rest = rest.slice(start);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** One event. Comments, which keep the connection alive, give nothing. */
export function parseEvent(block: string): ServerEvent | undefined {
  let name = 'message';
  let id: string | undefined;
  let data: string | undefined;
  for (const line of block.split('\n')) {
    const colon = line.indexOf(':');
    if (colon <= 0) continue;
    const value = line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    const field = line.slice(0, colon);
    if (field === 'event') name = value;
    else if (field === 'id') id = value;
    else if (field === 'data') data = data === undefined ? value : `${data}\n${value}`;
  }
  return data === undefined ? undefined : { name, id, data: JSON.parse(data) };
}
