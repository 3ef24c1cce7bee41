// Large arrays, a Map of objects and typed arrays: filled, shuffled, sorted, summed.
'use strict';
const mib = Number(process.argv[2]);
let seed = 12345;
const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff);
const floats = new Float64Array(mib * 52000);
for (let i = 0; i < floats.length; i++) floats[i] = next();
const objects = [];
const map = new Map();
for (let i = 0; i < mib * 2600; i++) {
  const object = { id: i, key: 'k' + (next() % 1000000), tail: [i, i + 1] };
  objects.push(object);
  if (i % 5 === 0) map.set(object.key, object);
}
floats.sort();
let sorted = true;
for (let i = 1; i < floats.length; i++) if (floats[i - 1] > floats[i]) sorted = false;
let sum = 0;
for (const object of objects) sum = (sum * 31 + object.tail[1] + object.key.length) % 1000000007;
const text = JSON.stringify(objects.slice(0, mib * 200));
let found = 0;
for (const [key, object] of map) if (object.key === key) found += object.id % 1000;
console.log(sorted, floats[0], floats[floats.length >> 1], sum, map.size, found, text.length);
