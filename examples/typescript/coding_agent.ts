// A coding agent on a repository: one sandbox is prepared, forked for every idea, and the best fork is kept.
import { Atoll, type Sandbox } from 'atoll-sandbox';

const client = new Atoll();
await using base = await client.sandboxes.create('debian', { labels: { job: 'coding-agent' } });

// The repository: a slow function, and the tests that it must pass.
await base.git.init('/home/user/repo', { branch: 'main' });
await base.files.write('repo/fib.py', 'def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n');
await base.files.write(
  'repo/test_fib.py',
  'import sys, time\nfrom fib import fib\nassert [fib(n) for n in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13], "wrong"\n' +
    'began = time.perf_counter(); fib(24); print(round((time.perf_counter() - began) * 1e6))\n',
);
const path = '/home/user/repo';
await base.git.add(['.'], path);
await base.git.commit('Add fib', path, { author: 'Agent', email: 'agent@example.com' });

// What a model would write: three ideas, one of them wrong.
const ideas: Record<string, string> = {
  cache: 'from functools import cache\n\n@cache\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n',
  loop: 'def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n',
  formula: 'def fib(n):\n    return round(1.6 ** n / 5 ** 0.5)\n',
};

interface Attempt {
  idea: string;
  sandbox: Sandbox;
  microseconds: number;
}

async function attempt(idea: string, code: string, sandbox: Sandbox): Promise<Attempt> {
  await sandbox.files.write('repo/fib.py', code);
  const tests = await sandbox.commands.run(['python3', '-B', 'test_fib.py'], { cwd: path, timeoutS: 60 });
  const microseconds = tests.exitCode === 0 ? Number(tests.stdout) : Infinity;
  console.log(`${idea}: ${tests.exitCode === 0 ? 'passes the tests' : tests.stderr.trim().split('\n').at(-1)}`);
  return { idea, sandbox, microseconds };
}

const before = Number((await base.commands.run(['python3', '-B', 'test_fib.py'], { cwd: path })).stdout);
const forks = await base.fork(Object.keys(ideas).length);
try {
  const attempts: Attempt[] = [];
  for (const [index, [idea, code]] of Object.entries(ideas).entries()) attempts.push(await attempt(idea, code, forks[index]!));
  const best = attempts.reduce((one, other) => (other.microseconds < one.microseconds ? other : one));
  console.log(`best is faster than before: ${best.microseconds < before / 2}, and correct: ${best.idea !== 'formula'}`);

  await best.sandbox.git.add(['fib.py'], path);
  await best.sandbox.git.commit('Make fib fast', path, { author: 'Agent', email: 'agent@example.com' });
  for (const commit of await best.sandbox.git.log(path)) console.log(`commit: ${commit.message.trim()}`);
  const patch = await best.sandbox.git.diff(path, { target: 'HEAD~1' });
  console.log(`patch: ${patch.output.split('\n').filter((line) => line.startsWith('-def fib') || line.startsWith('+++')).join(' ')}`);
} finally {
  await Promise.all(forks.map((fork) => fork.delete()));
}
console.log(`the base is unchanged: ${(await base.git.status(path)).files.length === 0}`);
