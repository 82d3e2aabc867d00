
// Static imports of a cell. A cell is a script, in which `import` is no statement, so they are taken out of it and loaded
// first. Answers them and the rest of the code, with every line where it was. Declared as a function, so that the code above
// can call it while it runs.
function takeImports(code, typescript) {
  if (!/\bimport\b/.test(code)) return { imports: [], rest: code };
  const name = '[\\p{ID_Start}$_][\\p{ID_Continue}$]*';
  const token = new RegExp(
    `\\s+|//[^\\n]*|/\\*[^]*?\\*/|"(?:\\\\[^]|[^"\\\\\\n])*"|'(?:\\\\[^]|[^'\\\\\\n])*'|${name}|\\d[\\w.]*|[^]`, 'uy');
  const regex = /\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+\/[a-z]*/uy;
  const statement =
    /import\s*(?:([^'"`;()=]*?)\bfrom\s*)?("(?:\\[^]|[^"\\\n])*"|'(?:\\[^]|[^'\\\n])*')(?:\s*(with|assert)\s*(\{[^}]*\}))?[ \t]*;?/uy;
  const clause = new RegExp(`^(${name})?\\s*,?\\s*(?:\\*\\s*as\\s+(${name})|\\{([^}]*)\\})?$`, 'u');
  const typed = new RegExp(`^type(?:\\s+${name}|\\s*[{*])`, 'u');

  // What one statement binds: [[name in the module, name here]], `*` for the module itself; null where it is none.
  const bound = (words) => {
    const parts = clause.exec(words);
    if (!parts) return null;
    const [, own, all, listed] = parts;
    const names = (listed || '').split(',').map((one) => one.trim()).filter((one) => one && !(typescript && /^type\s+\S/.test(one)));
    const pairs = names.map((one) => one.split(/\s+as\s+/)).map(([from, to]) => [from, to || from]);
    return [...(own ? [['default', own]] : []), ...(all ? [['*', all]] : []), ...pairs];
  };
  const match = (pattern, at) => {
    pattern.lastIndex = at;
    return pattern.exec(code);
  };
  // A slash after one of these begins a regular expression; after anything else it divides.
  const opens = (before) => /^(?:|[([{},;=:!&|?+\-*%~^<>]|return|typeof|case|in|of|new|delete|void|throw|else|do|await)$/.test(before);

  const [imports, cuts, inside] = [[], [], []];
  let before = '';
  for (let at = 0; at < code.length; ) {
    if (inside.at(-1) === '`') {
      if (code.startsWith('${', at)) inside.push('{');
      else if (code[at] === '`') inside.pop();
      at += code[at] === '\\' || code.startsWith('${', at) ? 2 : 1;
      continue;
    }
    const literal = code[at] === '/' && !/^\/[/*]/.test(code.slice(at, at + 2)) && opens(before) && match(regex, at);
    const text = (literal || match(token, at))[0];
    const found = text === 'import' && !inside.length && before !== '.' ? match(statement, at) : null;
    const words = found && (found[1] || '').replace(/\/\/[^\n]*|\/\*[^]*?\*\//g, ' ').trim();
    const names = found && bound(words);
    if (names) {
      // Types alone are nothing that could be loaded.
      if (!(typescript && typed.test(words))) imports.push({ from: JSON.parse(quoted(found[2])), how: found[3], attributes: found[4], names });
      cuts.push([at, at + found[0].length]);
      at += found[0].length;
      before = ';';
      continue;
    }
    if ('([{`'.includes(text)) inside.push(text);
    else if (')]}'.includes(text)) inside.pop();
    if (!/^(?:\s|\/\/|\/\*)/.test(text)) before = text;
    at += text.length;
  }
  let rest = code;
  for (const [from, to] of cuts) rest = rest.slice(0, from) + rest.slice(from, to).replace(/[^\n]/g, ' ') + rest.slice(to);
  return { imports, rest };

  // A literal of either kind as one of JSON.
  function quoted(literal) {
    return literal[0] === '"' ? literal : '"' + literal.slice(1, -1).replace(/"/g, '\\"').replace(/\\'/g, "'") + '"';
  }
}
