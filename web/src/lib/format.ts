const UNITS: [number, string][] = [
  [86_400, 'd'],
  [3_600, 'h'],
  [60, 'm'],
  [1, 's'],
];

/** A duration in its two largest units: `3h 12m`. */
export function duration(seconds: number): string {
  let rest = Math.max(0, Math.round(seconds));
  if (rest < 60) return `${rest}s`;
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    if (rest >= size || parts.length) {
      const count = Math.floor(rest / size);
      if (count) parts.push(`${count}${unit}`);
      rest -= count * size;
      if (parts.length === 2 || (parts.length === 1 && size <= 60)) break;
    }
  }
  return parts.join(' ');
}

/** How long ago: `3m`, in one unit. */
export function age(at: string, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(at)) / 1_000);
  for (const [size, unit] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  return '0s';
}

/** A time in the viewer's zone, with the zone. */
export function absolute(at: string): string {
  return new Date(at).toLocaleString(undefined, {
    year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit', timeZoneName: 'short',
  });
}

export function clockTime(at: string | number): string {
  return new Date(at).toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
}

export function bytes(count: number): string {
  if (count < 1_024) return `${count} B`;
  let value = count;
  let unit = '';
  for (unit of ['KiB', 'MiB', 'GiB', 'TiB']) {
    value /= 1_024;
    if (value < 1_024) break;
  }
  return `${value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${unit}`;
}

export const mebibytes = (count: number) => bytes(count * 1_048_576);

export function plural(count: number, noun: string): string {
  return `${count.toLocaleString()} ${noun}${count === 1 ? '' : noun.endsWith('x') ? 'es' : 's'}`;
}

/** Seconds from text such as `90`, `15m`, `2h`; `undefined` where it is none. */
export function parseSeconds(text: string): number | undefined {
  const found = /^\s*(\d+)\s*([smhd]?)\s*$/.exec(text);
  if (!found) return undefined;
  const size = { s: 1, m: 60, h: 3_600, d: 86_400, '': 1 }[found[2] as 's' | 'm' | 'h' | 'd' | ''];
  return Number(found[1]) * size;
}

/** Text for a field that `parseSeconds` reads. */
export function secondsText(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return '';
  for (const [size, unit] of UNITS) if (seconds >= size && seconds % size === 0) return `${seconds / size}${unit}`;
  return `${seconds}s`;
}

/** `key=value` lines to a map. */
export function parsePairs(text: string): Record<string, string> {
  const pairs: Record<string, string> = {};
  for (const line of text.split('\n')) {
    const cut = line.indexOf('=');
    if (cut > 0) pairs[line.slice(0, cut).trim()] = line.slice(cut + 1).trim();
  }
  return pairs;
}

export function pairsText(pairs: Record<string, string>): string {
  return Object.entries(pairs).map(([key, value]) => `${key}=${value}`).join('\n');
}

export function lines(text: string): string[] {
  return text.split(/[\n,]/).map((line) => line.trim()).filter(Boolean);
}

/** A word for a shell: quoted where it must be. */
export function shellWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
