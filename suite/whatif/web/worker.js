// Runs the suite's Python files under Pyodide, away from the page's own thread. It answers the newest question only.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const QUIET = 300; // milliseconds without a newer question before the slow parts begin
const here = (name) => new URL(name, import.meta.url).href;
const pause = (milliseconds = 0) => new Promise((done) => setTimeout(done, milliseconds));
const send = (message, buffer) => postMessage(message, buffer ? [buffer] : []);

let page;
let newest = 0;

const start = async () => {
  send({ progress: "Loading Python", part: 0.1 });
  const files = Promise.all(["suite.zip", "choices.json", "evidence.json"].map((name) => fetch(here(name))));
  const python = await loadPyodide({ indexURL: here("pyodide/") });
  send({ progress: "Loading the suite", part: 0.7 });
  const [modules, choices, evidence] = await files;
  for (const { ok, url } of [modules, choices, evidence]) if (!ok) throw new Error(`${url} is missing`);
  python.unpackArchive(await modules.arrayBuffer(), "zip", { extractDir: "/suite" });
  send({ progress: "Starting the suite", part: 0.8 });
  python.runPython("import gc, sys; gc.disable(); sys.path.insert(0, '/suite')");
  page = python.pyimport("suite.whatif.page").load(await choices.text(), await evidence.text());
  send({ ready: true });
};

// Sends an answer and its numbers; false for an error
const reply = (id, words, run) => {
  const pair = page.reply.callKwargs(words, { run });
  const [text, numbers] = [pair.get(0), pair.get(1)];
  const view = numbers.getBuffer();
  const copy = view.data.slice();
  view.release();
  numbers.destroy();
  pair.destroy();
  const answer = JSON.parse(text);
  send({ id, kind: "answer", ...answer, numbers: copy }, copy.buffer);
  return !answer.error;
};

const ready = start().catch((error) => send({ failed: String(error) }));

onmessage = async ({ data: { id, kind, words, run, number, index } }) => {
  newest = id;
  await ready;
  await pause(); // a newer question may be waiting
  if (id !== newest || !page) return;
  try {
    if (kind === "explain") {
      send({ id, kind, text: page.explain(number, index) });
      return;
    }
    if (reply(id, words, run)) {
      const parts = page.parts(words);
      for (await pause(QUIET); id === newest; await pause()) {
        const part = parts.next();
        if (part.done) break;
        send({ id, kind: "part", ...JSON.parse(part.value) });
      }
      parts.destroy();
    }
  } catch (error) {
    send({ id, kind: "answer", error: `The suite stopped: ${error}` });
  }
  if (id === newest) send({ id, kind: "done" });
};
