// A relay worker: one line of JSON in for each message, one line out. With in_flight above 1 several are handled at once.
import { createInterface } from "node:readline";

const running = new Map(); // message id: how to give it up
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

async function handle(message, signal) {
  const order = JSON.parse(message.data);
  if (order.id === undefined) return { verdict: "dead", error: "an order without an id" };
  return { verdict: "ack", result: { billed: order.id } }; // pass signal to fetch and the like
}

async function take(message) {
  const abort = new AbortController();
  running.set(message.id, abort);
  const answer = await handle(message, abort.signal).catch((e) => ({ verdict: "retry", error: String(e) }));
  running.delete(message.id);
  say({ id: message.id, ...answer });
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.cancel === undefined) take(message);
  else running.get(message.cancel)?.abort();
});
say({ ready: true });
