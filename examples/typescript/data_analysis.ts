// Data analysis: a table goes in, figures and a chart come out. The interpreter keeps its variables between calls.
import { writeFile } from 'node:fs/promises';
import { Sandbox } from 'atoll-sandbox';

const TABLE = `month,visits,orders
January,1200,36
February,1350,54
March,1100,22
April,1800,81
`;

await using sandbox = await Sandbox.create('code-interpreter-slim', { memoryMib: 1024, network: 'deny-all' });
await sandbox.files.write('visits.csv', TABLE);

await sandbox.code.run(`
import csv
rows = list(csv.DictReader(open("visits.csv")))
rate = {row["month"]: int(row["orders"]) / int(row["visits"]) for row in rows}
`);
const best = await sandbox.code.run('max(rate, key=rate.get)');
console.log('best month:', best.text);

for await (const event of sandbox.code.stream('for month, share in rate.items(): print(f"{month:10}{share:6.1%}")')) {
  if (event.type === 'stdout') process.stdout.write(event.data);
}

const drawn = await sandbox.code.run(`
import matplotlib.pyplot as plt
plt.bar(list(rate), [100 * share for share in rate.values()])
plt.ylabel("orders per 100 visits")
plt.title("Orders")
plt.show()
`);
const chart = drawn.results.find((result) => result.png !== undefined);
if (!chart?.png) throw new Error(`there is no chart: ${drawn.error?.traceback ?? drawn.stderr}`);
const image = Buffer.from(chart.png, 'base64');
const file = process.argv[2] ?? 'chart.png';
await writeFile(file, image);
console.log('chart:', image.subarray(1, 4).toString(), image.length > 5_000 ? 'with a picture in it' : 'empty');
console.log('chart as data:', JSON.stringify((chart.chart as { title: string; type: string }).title));

const wrong = await sandbox.code.run('rate["May"]');
console.log('a mistake:', wrong.error?.name, wrong.error?.value);
