// Times the TypeScript SDK beside the same calls by fetch, in one process: `probe.mjs ROUNDS`. Writes milliseconds by row as one JSON
// object. The two take turns, so that what disturbs the machine disturbs both.
const { Atoll } = await import(process.env.ATOLL_SDK);
const url = process.env.ATOLL_URL;
const key = process.env.ATOLL_API_KEY;
const rounds = Number(process.argv[2]);
const client = new Atoll({ url, apiKey: key });
const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };

async function post(path, body) {
  const response = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

const byFetch = {
  create: () => post('/v1/sandboxes', {}).then(({ id }) => id),
  run: (id) => post(`/v1/sandboxes/${id}/exec`, { command: 'echo hi' }).then(({ stdout }) => stdout),
};
const bySdk = {
  create: () => client.sandboxes.create(),
  run: (box) => box.commands.run('echo hi').then(({ stdout }) => stdout),
};

async function createAndRun(way) {
  const began = performance.now();
  const box = await way.create();
  const said = await way.run(box);
  const took = performance.now() - began;
  if (said !== 'hi\n') throw new Error(`it said ${said}`);
  const id = box.id ?? box;
  await fetch(`${url}/v1/sandboxes/${id}`, { method: 'DELETE', headers }).then((response) => response.arrayBuffer());
  // The pool fills up again behind the answers.
  await new Promise((resolve) => setTimeout(resolve, 50));
  return took;
}

async function run(way, box) {
  const began = performance.now();
  await way.run(box);
  return performance.now() - began;
}

const result = { sdk_create: [], raw_create: [], sdk_run: [], raw_run: [] };
for (let warm = 0; warm < 5; warm++) {
  await createAndRun(bySdk);
  await createAndRun(byFetch);
}
for (let round = 0; round < rounds; round++) {
  result.raw_create.push(await createAndRun(byFetch));
  result.sdk_create.push(await createAndRun(bySdk));
}
const box = await client.sandboxes.create();
for (let round = -10; round < rounds * 2; round++) {
  const raw = await run(byFetch, box.id);
  const sdk = await run(bySdk, box);
  if (round < 0) continue;
  result.raw_run.push(raw);
  result.sdk_run.push(sdk);
}
await box.delete();
console.log(JSON.stringify(result));
