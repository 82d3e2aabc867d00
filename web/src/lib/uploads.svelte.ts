// Uploads that are under way, two at a time.
import { ApiFailure, message, upload } from './api';

export interface Upload {
  id: number;
  name: string;
  part: number;
  state: 'waiting' | 'sending' | 'done' | 'failed';
  error: string;
  cancel: () => void;
}

let next = 1;

export class Uploads {
  items = $state<Upload[]>([]);
  #queue: (() => Promise<void>)[] = [];
  #active = 0;

  /** Sends a file; `done` is called when it has arrived. */
  add(path: string, target: string, file: File, done: () => void): void {
    const stop = new AbortController();
    this.items.push({ id: next++, name: target, part: 0, state: 'waiting', error: '', cancel: () => stop.abort() });
    const item = this.items[this.items.length - 1]!;
    this.#queue.push(async () => {
      if (stop.signal.aborted) return;
      item.state = 'sending';
      try {
        await upload(path, { path: target }, file, (part) => (item.part = part), stop.signal);
        item.part = 1;
        item.state = 'done';
        done();
        setTimeout(() => (this.items = this.items.filter((one) => one.id !== item.id)), 2_500);
      } catch (error) {
        item.state = 'failed';
        item.error = error instanceof ApiFailure && error.hint ? `${error.message}; ${error.hint}` : message(error);
      }
    });
    void this.#work();
  }

  remove(id: number): void {
    this.items.find((one) => one.id === id)?.cancel();
    this.items = this.items.filter((one) => one.id !== id);
  }

  async #work(): Promise<void> {
    if (this.#active >= 2) return;
    this.#active++;
    for (let job = this.#queue.shift(); job; job = this.#queue.shift()) await job();
    this.#active--;
  }
}

/** The files of a drop, with their paths below the dropped folders. */
export async function droppedFiles(transfer: DataTransfer): Promise<{ path: string; file: File }[]> {
  const found: { path: string; file: File }[] = [];
  const walk = async (entry: FileSystemEntry): Promise<void> => {
    if (entry.isFile) {
      const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
      found.push({ path: entry.fullPath.replace(/^\//, ''), file });
      return;
    }
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    for (;;) {
      const batch = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
      if (!batch.length) return;
      for (const child of batch) await walk(child);
    }
  };
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry());
  if (entries.every((entry) => entry === null)) return [...transfer.files].map((file) => ({ path: file.name, file }));
  for (const entry of entries) if (entry) await walk(entry);
  return found;
}
