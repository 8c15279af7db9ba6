// A worker in Node, from docs/reference/frames.md alone: JSON frames on descriptor 3, many tasks a frame, no cell.
'use strict';
const fs = require('fs');
const net = require('net');

const tasks = {
  echo: async (ctx, args) => args,
  fail: async (ctx, args) => { throw new Error(args); },
  noise: async (ctx, args) => {
    fs.writeSync(1, Buffer.from([0, 0xff, 0x7b, 0x5b]));
    return args;
  },
  wait: (ctx) => new Promise((done) => { ctx.onCancel = () => done('cancelled'); }),
};

const LONGEST = 16 << 20, LARGE = 1 << 20;
const [HELLO, INIT, READY, TASKS, RESULTS, STARTED, CANCEL, RECALL, DRAIN, BYE] = [1, 2, 3, 4, 5, 6, 10, 11, 12, 13];
const socket = new net.Socket({ fd: Number(process.env.BGRP_FD), readable: true, writable: true });

function say(type, body) {
  const text = Buffer.from(JSON.stringify(body));
  const header = Buffer.alloc(8);
  header.writeUInt32LE(text.length, 0);
  header[4] = type;
  socket.write(Buffer.concat([header, text]));
}

function value([kind, what]) {
  if (kind === 0) return what;
  if (kind === 1) return Buffer.from(what, 'base64');
  const data = fs.readFileSync(what);
  fs.unlinkSync(what);
  return kind === 2 ? JSON.parse(data) : data;
}

let files = 0;
function payload(result) {
  const bytes = Buffer.isBuffer(result);
  const text = bytes ? result : JSON.stringify(result === undefined ? null : result);
  if (text.length <= LARGE) return bytes ? [1, text.toString('base64')] : [0, JSON.parse(text)];
  const path = `${require('os').tmpdir()}/bgrp-value-${process.pid}-${files++}`;
  fs.writeFileSync(path, text, { flag: 'wx', mode: 0o600 });
  return [bytes ? 3 : 2, path];
}

let held = Buffer.alloc(0), running = null, recalled = false;
const waiting = [];

async function work() {
  if (running) return;
  while (waiting.length) {
    const [type, body] = waiting.shift();
    if (type === DRAIN) { say(BYE, ['drained']); socket.end(() => process.exit(0)); return; }
    recalled = false;
    for (const [key, stops, group] of body) {
      let failed = false;
      for (const [number, id, name, attempt, limit, args] of group) {
        if ((failed && stops) || recalled) { say(RESULTS, [[number, 2, null]]); continue; }
        running = { number, id, key, attempt };
        say(STARTED, [number]);
        try {
          const task = Object.hasOwn(tasks, name) ? tasks[name] : null;
          if (!task) throw Object.assign(new Error(`${name}: this worker knows ${Object.keys(tasks)}`), { name: 'unknown_task' });
          const result = await task(running, value(args));
          say(RESULTS, [[number, 0, payload(result)]]);
        } catch (error) {
          failed = true;
          say(RESULTS, [[number, 1, [String(error.name), String(error.message), String(error.stack), -1]]]);
        }
      }
    }
    running = null;
  }
}

socket.on('data', (piece) => {
  held = Buffer.concat([held, piece]);
  while (held.length >= 8) {
    const length = held.readUInt32LE(0), type = held[4];
    if (length > LONGEST || held[5] || held[6] || held[7] || type < 1 || type > 13) {
      console.error(`not a frame: length ${length}, type ${type}`);
      process.exit(1);
    }
    if (held.length < 8 + length) break;
    const body = JSON.parse(held.subarray(8, 8 + length));
    held = held.subarray(8 + length);
    if (type === INIT) say(READY, { tasks: Object.keys(tasks), batch: true, recall: true });
    else if (type === CANCEL) { if (running && running.number === body[0] && running.onCancel) running.onCancel(); }
    else if (type === RECALL) {
      recalled = true;
      const drains = waiting.filter(([kind]) => kind === DRAIN);
      for (const [kind, groups] of waiting.splice(0, Infinity, ...drains)) {
        if (kind === TASKS) for (const [, , group] of groups) for (const [number] of group) say(RESULTS, [[number, 2, null]]);
      }
    } else if (type === TASKS || type === DRAIN) waiting.push([type, body]);
  }
  work();
});
socket.on('end', () => process.exit(0));
say(HELLO, { versions: [1], encodings: ['json'], sdk: 'node by hand' });
