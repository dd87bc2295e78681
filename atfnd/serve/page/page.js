// SPDX-License-Identifier: GPL-2.0-or-later
// The page: polls the daemon while it is visible, and shows the answers.

import { Kept, lines, object } from "./ask.js";
import { say } from "./element.js";
import { Flows } from "./flows.js";
import { Forwarded } from "./forwarded.js";
import { Heat } from "./heat.js";
import { Locality } from "./locality.js";
import { Moves } from "./moves.js";
import { lasting } from "./number.js";
import { StatusView } from "./status.js";

const EVERY_MS = 2000;
const SHARE = 4; // rest between flow reads, in times of one read
const at = (id) => document.getElementById(id);

const top = new StatusView(at("verdict"), at("findings"), at("status"));
const locality = new Locality(at("locality"));
const heat = new Heat(at("heat"), at("legend"), at("every-cpu"));
const flows = new Flows(at("flows"), at("filter"), at("misplaced"), at("cut"), at("no-flows"));
const moves = new Moves(at("moves"));
const forwarded = new Forwarded(at("count-forwarded"), at("forwarded-said"), at("forwarded"));
let run = null; // of the daemon: a new run counts from zero
let kept = null; // of this run
let looking = null;

/** Ask for everything once, and show it. */
async function look(signal) {
  const status = await object("/v1/status", signal);
  if (run !== status.since_wall_s) {
    run = status.since_wall_s;
    kept = {
      history: new Kept("/v1/history", ({ every_s }) => 1000 * every_s),
      topology: new Kept("/v1/topology", () => Infinity),
      doctor: new Kept("/v1/doctor/latest", () => 60_000),
    };
    heat.forget();
    flows.forget();
  }
  const history = await kept.history.get(signal);
  const over = lasting(status.uptime_s);
  locality.show(status, history, over);
  moves.show(status.moves, history, over);
  const { queues, why_empty } = await object("/v1/queues", signal);
  heat.count(queues, performance.now());
  heat.work(await object("/v1/cpu-time", signal));
  top.show(status, queues);
  heat.show(why_empty);
  if (forwarded.wanted()) {
    forwarded.show(await object("/v1/pairs/latest", signal));
  }
  const rows = [];
  const began = performance.now();
  for await (const row of lines(`/v1/flows/stream?all=${at("every-flow").checked ? 1 : 0}`, signal)) {
    rows.push(row);
  }
  flows.count(rows, performance.now());
  flows.show(rows.length > 0 ? null : (await object("/v1/flows?limit=1", signal)).why_empty);
  const took = performance.now() - began;
  heat.use(rows);
  heat.has((await kept.topology.get(signal)).cpus);
  heat.show(why_empty);
  top.find(await kept.doctor.get(signal));
  return took;
}

/** While the page is visible. */
async function watch(signal) {
  while (!signal.aborted) {
    let took = 0;
    try {
      took = await look(signal);
      say(at("connection"), "live");
      document.body.classList.remove("stale");
    } catch (fault) {
      if (signal.aborted) {
        return;
      }
      say(at("connection"), `the daemon does not answer: ${fault.message}`);
      document.body.classList.add("stale");
    }
    await new Promise((done) => setTimeout(done, Math.max(EVERY_MS, SHARE * took)));
  }
}

function begin() {
  looking?.abort();
  if (document.hidden) {
    say(at("connection"), "paused while hidden");
    return;
  }
  looking = new AbortController();
  watch(looking.signal);
}

document.addEventListener("visibilitychange", begin);
begin();
