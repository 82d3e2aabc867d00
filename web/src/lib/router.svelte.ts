// Hash routes: `#/resources?q=…`, `#/sandboxes/{id}/{tab}`, `#/threads/{thread}`, `#/settings/{section}`.

class Route {
  parts = $state.raw<string[]>([]);
  query = $state.raw(new URLSearchParams());

  constructor() {
    this.#read();
    addEventListener('hashchange', () => this.#read());
  }

  #writing: ReturnType<typeof setTimeout> | undefined;

  #read(): void {
    clearTimeout(this.#writing);
    const hash = location.hash.slice(1) || '/resources';
    const cut = hash.indexOf('?');
    const path = cut < 0 ? hash : hash.slice(0, cut);
    this.parts = path.split('/').filter(Boolean).map(decode);
    this.query = new URLSearchParams(cut < 0 ? '' : hash.slice(cut + 1));
  }

  go(hash: string): void {
    location.hash = hash;
  }

  /** Changes parameters in place, without a new entry in the history. Empty values are removed. */
  set(changes: Record<string, string | null>): void {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    const path = this.parts.map(encodeURIComponent).join('/');
    this.query = query;
    // Browsers refuse many changes in a short time, such as one per key.
    clearTimeout(this.#writing);
    this.#writing = setTimeout(() => history.replaceState(null, '', `#/${path}${text ? `?${text}` : ''}`), 120);
  }
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = new Route();

export function sandboxHref(id: string, tab = 'overview'): string {
  return `#/sandboxes/${encodeURIComponent(id)}/${tab}`;
}

export function threadHref(thread: string): string {
  return `#/threads/${encodeURIComponent(thread)}`;
}
