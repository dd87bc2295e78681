// SPDX-License-Identifier: GPL-2.0-or-later
// CPU × queue: how many packets a second arrive where, and where applications read them; the load of
// each CPU.

import { element, fill, mark, say } from "./element.js";
import { UNKNOWN, counted, percent, short, whole } from "./number.js";

const LEVELS = ["0", "under 100", "100", "1K", "10K", "100K or more"]; // packets a second, from
const FEW_CPUS = 32; // that are all shown without being asked for
const ANY = -1; // a queue that is confined to no one CPU

function level(rate) {
  return rate < 1 ? 0 : Math.min(Math.max(Math.floor(Math.log10(rate)), 1), LEVELS.length - 1);
}

export class Heat {
  #where;
  #everyCpu;
  #queues = [];
  #counted = new Map(); // of a queue: packets, when, a second
  #used = new Map(); // of a CPU and a queue: flows
  #worked = null; // CPU times as they were last read
  #loads = new Map(); // of a CPU: the share of the time in which it was busy
  #drawn = new Map(); // of an interface: its table
  #cpus = null;
  #why = null;

  constructor(where, legend, everyCpu) {
    this.#where = where;
    this.#everyCpu = everyCpu;
    legend.append(...LEVELS.map((text, n) => element("li", { "data-heat": n }, text)));
    everyCpu.addEventListener("change", () => this.show());
  }

  forget() {
    this.#counted.clear();
    this.#used.clear();
    this.#worked = null;
    this.#loads.clear();
  }

  /** CPU times as the daemon has them; it may have read them at the look before. */
  work(times) {
    const before = this.#worked;
    if (before?.read_ns === times.read_ns) {
      return;
    }
    const busy = new Map(before?.cpus.map((each) => [each.cpu, each.busy_ns]));
    const known = times.cpus.filter((each) => busy.has(each.cpu));
    const share = (each) => (each.busy_ns - busy.get(each.cpu)) / (times.read_ns - before.read_ns);
    this.#loads = new Map(known.map((each) => [each.cpu, Math.min(Math.max(share(each), 0), 1)]));
    this.#worked = times;
  }

  /** Queues as the daemon has them, at `now` in ms. */
  count(queues, now) {
    const counted = new Map();
    for (const queue of queues) {
      const name = `${queue.nic} ${queue.queue}`;
      const before = this.#counted.get(name);
      const known = queue.packets !== null && before?.packets != null && queue.packets >= before.packets;
      const rate = known && now > before.now ? (1000 * (queue.packets - before.packets)) / (now - before.now) : null;
      counted.set(name, { packets: queue.packets, now, rate });
    }
    this.#queues = queues;
    this.#counted = counted;
  }

  /** Flows of the table: which application reads which queue's packets on which CPU. */
  use(flows) {
    this.#used.clear();
    for (const flow of flows.filter((each) => each.app_cpu !== null)) {
      const name = `${flow.nic} ${flow.rx_queue} ${flow.app_cpu}`;
      this.#used.set(name, 1 + (this.#used.get(name) ?? 0));
    }
  }

  /** The CPUs of the machine. */
  has(cpus) {
    if (this.#cpus === null) {
      this.#everyCpu.checked = cpus.length <= FEW_CPUS;
    }
    this.#cpus = cpus;
  }

  /** `why` there is nothing to show. */
  show(why = this.#why) {
    this.#why = why;
    const nics = Map.groupBy(this.#queues, (queue) => queue.nic);
    const tables = [...nics].map(([nic, queues]) => this.#table(nic, queues));
    fill(this.#where, tables.length > 0 || why === null ? tables : [element("p", {}, why)]);
    for (const gone of [...this.#drawn.keys()].filter((nic) => !nics.has(nic))) {
      this.#drawn.delete(gone);
    }
  }

  #rows(nic, queues) {
    const busy = new Set(queues.map((queue) => queue.cpu ?? ANY));
    for (const name of this.#used.keys()) {
      const [of, queue, cpu] = name.split(" ");
      if (of === nic && queue !== "null") {
        busy.add(Number(cpu));
      }
    }
    if (this.#everyCpu.checked && this.#cpus !== null) {
      this.#cpus.filter((cpu) => cpu.online).forEach((cpu) => busy.add(cpu.cpu));
    }
    return [...busy].sort((a, b) => a - b);
  }

  #table(nic, queues) {
    const cpus = this.#rows(nic, queues);
    const shape = `${cpus} of ${queues.map((queue) => queue.queue)}`;
    let drawn = this.#drawn.get(nic);
    if (drawn?.shape !== shape) {
      drawn = blank(nic, cpus, queues, shape);
      this.#drawn.set(nic, drawn);
    }
    cpus.forEach((cpu, row) => {
      say(drawn.loads[row], cpu === ANY ? "" : percent(this.#loads.get(cpu) ?? null, 0));
    });
    queues.forEach((queue, column) => {
      const { rate } = this.#counted.get(`${nic} ${queue.queue}`);
      cpus.forEach((cpu, row) => {
        const here = (queue.cpu ?? ANY) === cpu;
        this.#cell(drawn.cells[row][column], queue, cpu, here, rate);
      });
    });
    return drawn.whole;
  }

  #cell({ cell, packets, flows }, queue, cpu, here, rate) {
    const used = this.#used.get(`${queue.nic} ${queue.queue} ${cpu}`) ?? 0;
    const arrive = rate === null ? "packets not counted yet" : `${whole(rate)} packets/s arrive`;
    const said = [here ? [arrive] : [], used > 0 ? [`${counted(used, "flow")} read here`] : []].flat().join("; ");
    mark(cell, "data-heat", here && rate !== null ? level(rate) : null);
    mark(cell, "data-used", used > 0 ? used : null);
    mark(cell, "title", said ? `queue ${queue.queue}, ${named(cpu)}: ${said}` : null);
    say(packets, !here ? "" : rate === null ? UNKNOWN : short(rate));
    say(flows, used > 0 ? counted(used, "flow") : "");
  }
}

function named(cpu) {
  return cpu === ANY ? "any CPU" : `CPU ${cpu}`;
}

/** A table without numbers; `loads` by row, `cells` by row and column. */
function blank(nic, cpus, queues, shape) {
  const heads = queues.map((queue) => element("th", { scope: "col" }, `queue ${queue.queue}`));
  const body = element("tbody");
  const loads = cpus.map(() => element("span", { class: "load" }));
  const cells = cpus.map((cpu, n) => {
    const row = element("tr", {}, element("th", { scope: "row" }, named(cpu), " ", loads[n]));
    body.append(row);
    return queues.map((queue) => {
      const packets = element("span");
      const flows = element("small");
      const cell = element("td", { "data-cpu": cpu, "data-queue": queue.queue }, packets, " ", flows);
      row.append(cell);
      return { cell, packets, flows };
    });
  });
  const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "CPU load"), ...heads));
  const table = element("table", { class: "heat" }, element("caption", {}, nic), head, body);
  const whole = element("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": nic }, table);
  return { shape, loads, cells, whole };
}
