// SPDX-License-Identifier: GPL-2.0-or-later
// The page: polls the daemon while it is visible, and shows the answers.

import { lines, object } from "./ask.js";
import { element, say } from "./element.js";
import { Flows } from "./flows.js";
import { Forwarded } from "./forwarded.js";
import { Heat } from "./heat.js";
import { Locality } from "./locality.js";
import { Moves } from "./moves.js";
import { counted, span, whole } from "./number.js";

const EVERY_MS = 2000;
const SHARE = 4; // rest between flow reads, in times of one read
const at = (id) => document.getElementById(id);

const locality = new Locality(at("locality"));
const heat = new Heat(at("heat"), at("legend"), at("every-cpu"));
const flows = new Flows(at("flows"), at("filter"), at("misplaced"), at("cut"));
const moves = new Moves(at("moves"));
const forwarded = new Forwarded(at("count-forwarded"), at("forwarded-said"), at("forwarded"));
let cpus = null;
let run = null; // of the daemon: a new run counts from zero
let looking = null;

/** The line on top. */
function showStatus(status, queues) {
  const nics = [...new Set(queues.map((queue) => queue.nic))];
  const others = nics.filter((nic) => !status.armed.includes(nic));
  const losses = [
    [status.events_lost, "event", "lost"],
    [status.overflow, "flow", "found the table or the NIC full"],
    [status.actions_refused, "action", "refused"],
    [status.late_packets, "packet", "late"],
  ].filter(([count]) => count > 0);
  const said = {
    armed: status.armed.join(", ") || "none: observing only",
    "not armed": others.join(", "),
    observer: `${status.observer}: ${status.observer_why}`,
    table: `${whole(status.table_entries)} of ${counted(status.table_capacity, "flow")}`,
    losses: losses.map(([count, noun, how]) => `${counted(count, noun)} ${how}`).join(", ") || "none",
    atfnd: `${status.version}, up ${span(status.uptime_s)}`,
  };
  const list = at("status");
  for (const [name, text] of Object.entries(said)) {
    let value = list.querySelector(`[data-of="${name}"]`);
    if (value === null) {
      value = element("dd", { "data-of": name });
      list.append(element("div", {}, element("dt", {}, name), value));
    }
    value.parentElement.hidden = text === "";
    say(value, text);
  }
}

/** Ask for everything once, and show it. */
async function look(signal) {
  const status = await object("/v1/status", signal);
  if (run !== status.since_wall_s) {
    run = status.since_wall_s;
    cpus = null;
    for (const each of [locality, heat, flows, moves]) {
      each.forget(performance.now());
    }
  }
  locality.count(status, performance.now());
  locality.show(status, performance.now());
  moves.count(status.moves, performance.now());
  const { queues } = await object("/v1/queues", signal);
  heat.count(queues, performance.now());
  heat.work(await object("/v1/cpu-time", signal));
  showStatus(status, queues);
  heat.show(cpus);
  if (forwarded.wanted()) {
    forwarded.show(await object("/v1/pairs/latest", signal));
  }
  const rows = [];
  const began = performance.now();
  for await (const row of lines("/v1/flows/stream", signal)) {
    rows.push(row);
  }
  flows.count(rows, performance.now());
  flows.show();
  heat.use(rows);
  cpus ??= (await object("/v1/topology", signal)).cpus;
  heat.show(cpus);
  moves.show(performance.now());
  return performance.now() - began;
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
      locality.forget(performance.now());
      say(at("connection"), `the daemon does not answer: ${fault.message}`);
      document.body.classList.add("stale");
    }
    await new Promise((done) => setTimeout(done, Math.max(EVERY_MS, SHARE * took)));
  }
}

function begin() {
  looking?.abort();
  if (document.hidden) {
    locality.forget(performance.now());
    say(at("connection"), "paused while hidden");
    return;
  }
  looking = new AbortController();
  watch(looking.signal);
}

document.addEventListener("visibilitychange", begin);
begin();
