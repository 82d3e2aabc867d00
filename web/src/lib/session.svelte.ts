// The API key of this browser session. It lives in session storage, never in a cookie, and is handed to new tabs of this page
// by a channel that only pages of this origin can read.

const STORED = 'atoll.key';

class Session {
  key = $state<string | null>(sessionStorage.getItem(STORED));
  /** Set when the server refused the key. */
  refused = $state(false);
  /** Set when a link of `atoll open` was used before or is too old. */
  spent = $state(false);
  /** While other tabs or the server are asked for the key. */
  asking = $state(false);
  /** Resolves when this tab has a key, or no other tab of the viewer gave one. */
  readonly settled: Promise<void>;
  #channel = new BroadcastChannel('atoll.key');

  constructor() {
    let settle = () => {};
    this.settled = new Promise((resolve) => (settle = resolve));
    this.#channel.onmessage = (event: MessageEvent<{ ask?: true; key?: string }>) => {
      if (event.data.ask && this.key) this.#channel.postMessage({ key: this.key });
      if (event.data.key && !this.key && this.asking) {
        this.set(event.data.key);
        settle();
      }
    };
    if (this.key) {
      settle();
      return;
    }
    this.asking = true;
    this.#channel.postMessage({ ask: true });
    // A link of `atoll open` takes as long as its answer does.
    const isLink = location.hash.startsWith('#/open/');
    setTimeout(() => {
      if (!isLink) this.asking = false;
      settle();
    }, 120);
  }

  set(key: string): void {
    sessionStorage.setItem(STORED, key);
    this.key = key;
    this.refused = false;
    this.spent = false;
    this.asking = false;
  }

  clear(): void {
    sessionStorage.removeItem(STORED);
    this.key = null;
  }

  refuse(): void {
    if (!this.key) return;
    this.clear();
    this.refused = true;
  }
}

export const session = new Session();
