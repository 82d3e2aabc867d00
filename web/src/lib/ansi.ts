// Colours of terminal output as pieces of text with a class. Everything that is not a colour is dropped, so that output can
// never be more than text on the page.

export interface Piece {
  text: string;
  style: string;
}

// eslint-disable-next-line no-control-regex
const ESCAPE = /\x1b(?:\[([0-9;?]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\x00-\x08\x0b-\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;

/** Splits text at its colours. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let style = '';
  let from = 0;
  const push = (part: string) => {
    // A carriage return goes back to the beginning of the line, as progress bars do.
    const plain = part.replace(/\r\n/g, '\n').replace(/[^\n]*\r(?!\n)/g, '').replace(CONTROL, '');
    if (plain) found.push({ text: plain, style });
  };
  for (const match of text.matchAll(ESCAPE)) {
    push(text.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === 'm') style = nextStyle(style, match[1] ?? '');
  }
  push(text.slice(from));
  return found;
}

function nextStyle(style: string, codes: string): string {
  const now = new Set(style.split(' ').filter(Boolean));
  const numbers = codes.split(';').map(Number);
  const dropColour = () => now.forEach((one) => one.startsWith('fg') && now.delete(one));
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at] ?? 0;
    if (code === 0) now.clear();
    else if (code === 1) now.add('bold');
    else if (code === 22) now.delete('bold');
    else if (code === 39) dropColour();
    else if (code === 38 || code === 48) {
      const isIndexed = numbers[at + 1] === 5;
      const index = numbers[at + 2] ?? 0;
      if (code === 38) {
        dropColour();
        if (isIndexed && index < 16) now.add(`fg${index % 8}`);
      }
      at += isIndexed ? 2 : 4;
    } else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
      dropColour();
      now.add(`fg${code % 10}`);
    }
  }
  return [...now].join(' ');
}

export function plain(text: string): string {
  return pieces(text).map((piece) => piece.text).join('');
}
