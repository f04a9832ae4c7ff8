// Runs the suite's Python files under Pyodide, away from the page's own thread. It answers the newest question only.
import { loadPyodide } from "./pyodide/pyodide.mjs";

let python, driver, page;
let newest = 0;

const send = (message, buffer) => postMessage(message, buffer ? [buffer] : []);
const pause = (milliseconds = 0) => new Promise((done) => setTimeout(done, milliseconds));
const QUIET = 300; // milliseconds without a newer question before the slow parts begin

const start = async () => {
  send({ progress: "Loading Python", part: 0.1 });
  const files = Promise.all(["suite.zip", "choices.json", "evidence.json"].map((name) => fetch(name)));
  python = await loadPyodide({ indexURL: new URL("pyodide/", self.location).href });
  send({ progress: "Loading the suite", part: 0.7 });
  const [modules, choices, evidence] = await files;
  for (const { ok, url } of [modules, choices, evidence]) if (!ok) throw new Error(`${url} is missing`);
  python.unpackArchive(await modules.arrayBuffer(), "zip", { extractDir: "/suite" });
  send({ progress: "Starting the suite", part: 0.8 });
  python.runPython("import gc, sys; gc.disable(); sys.path.insert(0, '/suite')");
  driver = python.pyimport("suite.whatif.page");
  page = driver.load(await choices.text(), await evidence.text());
  send({ ready: true });
};

// Calls a function of the page that returns JSON and a buffer of numbers, and sends both.
const reply = (id, kind, call) => {
  const pair = call();
  const [text, numbers] = [pair.get(0), pair.get(1)];
  const view = numbers.getBuffer();
  const copy = view.data.slice();
  for (const each of [view, numbers, pair]) (each.release ?? each.destroy).call(each);
  const answer = JSON.parse(text);
  send({ id, kind, ...answer, numbers: copy }, copy.buffer);
  return !answer.error;
};

const ready = start().catch((error) => send({ failed: String(error) }));

onmessage = async ({ data }) => {
  const { id, kind, words } = data;
  newest = id;
  await ready;
  await pause(); // a newer question may be waiting
  if (id !== newest || !page) return;
  if (kind === "explain") {
    send({ id, kind, text: page.explain(data.number, data.index) });
    return;
  }
  page.define(undefined); // null would not be None
  if (data.code !== undefined) {
    // Python that the reader typed or allowed; the suite sees its definitions only
    const names = driver.pasted.globals_of_code();
    try {
      python.runPython(data.code, { globals: names, filename: "pasted" });
    } catch (error) {
      send({ id, kind: "answer", error: String(error.message).trim().split("\n").slice(-3).join("\n"), key: "pasted" });
      return;
    }
    page.define(names);
  }
  if (reply(id, "answer", () => page.reply(words))) {
    const parts = page.parts(words);
    for (await pause(QUIET); id === newest; await pause()) {
      const part = parts.next();
      if (part.done) break;
      send({ id, kind: "part", ...JSON.parse(part.value) });
    }
    parts.destroy();
  }
  if (id === newest) send({ id, kind: "done" });
};
