// SPDX-License-Identifier: GPL-2.0-or-later
// The Flow-to-Core table, filtered and sorted: the fastest flows of those that pass the filter.

import { element, fill, mark, say } from "./element.js";
import { UNKNOWN, bits, counted, span, whole } from "./number.js";

const MOST = 1000; // rows

const number = (known) => (known === null ? UNKNOWN : String(known));
const threadOf = ({ pid, tid }) => (tid === pid ? pid : `${pid}/${tid}`);

/** Whether a flow is placed, as it is shown; its row is marked by the first word. */
const PLACED = new Map([[true, ["yes", "yes"]], [false, ["no", "✗ no"]], [null, ["unknown", "not known"]]]);

/** What a column shows of a flow, and by what it is sorted where that is another value. The names are
 * those of `atfnctl flows`. */
const COLUMNS = {
  comm: [(flow) => (flow.comm === null ? UNKNOWN : `${flow.comm} (${threadOf(flow)})`)],
  flow: [(flow) => `${flow.proto} ${flow.local} ← ${flow.remote}`],
  nic: [(flow) => flow.nic],
  rate: [(flow) => bits(flow.rate), (flow) => flow.rate],
  "app-cpu": [(flow) => number(flow.app_cpu), (flow) => flow.app_cpu],
  "rx-queue": [(flow) => number(flow.rx_queue), (flow) => flow.rx_queue],
  "rx-cpu": [(flow) => number(flow.rx_cpu), (flow) => flow.rx_cpu],
  target: [(flow) => number(flow.target_cpu), (flow) => flow.target_cpu],
  placed: [(flow) => PLACED.get(flow.placed)[1], (flow) => flow.placed],
  state: [(flow) => flow.state],
  rule: [(flow) => flow.rule],
  "last move": [
    (flow) => (flow.move === null ? UNKNOWN : `${flow.move.mechanism}: ${flow.move.verdict}`),
  ],
  moved: [(flow) => (flow.moved_s === null ? UNKNOWN : `${span(flow.moved_s)} ago`), (flow) => flow.moved_s],
};

const textOf = (column, flow) => COLUMNS[column][0](flow);
const whyOf = (flow) => flow.fell_back ?? flow.why;
const valueOf = (column, flow) => COLUMNS[column].at(-1)(flow);

export class Flows {
  #table;
  #head;
  #filter;
  #misplaced;
  #cut;
  #empty;
  #why = null;
  #flows = [];
  #counted = new Map(); // of a flow: bytes, when they were, how many more in how long
  #rows = new Map();
  #sorted = { column: "rate", up: false };

  constructor(table, filter, misplaced, cut, empty) {
    this.#table = table;
    this.#filter = filter;
    this.#misplaced = misplaced;
    this.#cut = cut;
    this.#empty = empty;
    this.#head = Object.keys(COLUMNS).map((column) => {
      const button = element("button", { type: "button" }, column);
      button.addEventListener("click", () => this.#sort(column));
      return element("th", { scope: "col", "data-of": column }, button);
    });
    table.tHead.append(element("tr", {}, ...this.#head));
    filter.addEventListener("input", () => this.show());
    misplaced.addEventListener("change", () => this.show());
  }

  forget() {
    this.#counted.clear();
  }

  /** The whole table, at `now` in ms. */
  count(flows, now) {
    const counted = new Map();
    for (const flow of flows) {
      flow.name = `${flow.nic} ${flow.cookie} ${flow.proto} ${flow.local} ${flow.remote}`;
      const seen = speed(this.#counted.get(flow.name), flow, now / 1000);
      counted.set(flow.name, seen);
      const over = Math.max(seen.over, now / 1000 - seen.at);
      flow.rate = seen.more === null ? null : (8 * seen.more) / over;
    }
    this.#flows = flows;
    this.#counted = counted;
  }

  /** `why` the daemon has none. */
  show(why = this.#why) {
    this.#why = why;
    say(this.#empty, why ?? "");
    this.#empty.hidden = why === null;
    this.#table.hidden = why !== null;
    const words = this.#filter.value.toLowerCase().split(/\s+/).filter((word) => word);
    const only = this.#misplaced.checked;
    const passing = this.#flows.filter((flow) => (flow.placed !== true || !only) && has(flow, words));
    const shown = passing.length > MOST ? passing.toSorted(by("rate", false)).slice(0, MOST) : passing;
    const { column, up } = this.#sorted;
    fill(this.#table, shown.toSorted(by(column, up)).map((flow) => this.#row(flow)), 1); // after its head
    for (const head of this.#head) {
      mark(head, "aria-sort", head.dataset.of !== column ? "none" : up ? "ascending" : "descending");
    }
    this.#drop(shown);
    const many = whole(passing.length);
    const which = passing.length > MOST ? `the fastest ${whole(MOST)} of ${many}` : many;
    const all = passing.length < this.#flows.length ? ` that pass, of ${counted(this.#flows.length, "flow")}` : "";
    const unknown = passing.filter((flow) => flow.placed === null).length;
    const kinds = only ? `: ${whole(passing.length - unknown)} misplaced, ${whole(unknown)} not known` : "";
    say(this.#cut, (all ? which + all : `${which} ${passing.length === 1 ? "flow" : "flows"}`) + kinds);
  }

  #sort(column) {
    const again = this.#sorted.column === column;
    this.#sorted = { column, up: again ? !this.#sorted.up : column !== "rate" };
    this.show();
  }

  #row(flow) {
    const row = this.#rows.get(flow.name) ?? blank();
    this.#rows.set(flow.name, row);
    Object.keys(COLUMNS).forEach((column, n) => say(row.cells[n], textOf(column, flow)));
    say(row.why, whyOf(flow));
    mark(row.whole, "data-placed", PLACED.get(flow.placed)[0]);
    return row.whole;
  }

  /** Rows that are not shown any more. */
  #drop(shown) {
    const names = new Set(shown.map((flow) => flow.name));
    for (const name of [...this.#rows.keys()].filter((each) => !names.has(each))) {
      this.#rows.delete(name);
    }
  }
}

/** A row without texts: its columns, and below them the reason, on a line of its own. */
function blank() {
  const cells = Object.keys(COLUMNS).map((column) => element("td", { "data-of": column }));
  const why = element("div");
  const below = element("td", { "data-of": "why", colspan: cells.length }, why);
  const whole = element("tbody", {}, element("tr", {}, ...cells), element("tr", {}, below));
  return { cells, why, whole };
}

/** Each of these words stands in some column of it, or in the reason. */
function has(flow, words) {
  if (words.length === 0) {
    return true;
  }
  const texts = Object.keys(COLUMNS).map((column) => textOf(column, flow));
  const text = [...texts, whyOf(flow)].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** How many bytes more it had, in how many seconds, when they were last seen to be more: the daemon
 * looks at a socket every few seconds. */
function speed(before, flow, now) {
  const at = now - flow.age_s;
  if (before === undefined || flow.bytes < before.bytes) {
    return { bytes: flow.bytes, at, more: null, over: 0 };
  }
  const over = at - before.at;
  const more = flow.bytes - before.bytes;
  return more > 0 && over > 0.01 ? { bytes: flow.bytes, at, more, over } : before;
}

/** Unknown values come last; of equal ones, the flow that moved more bytes comes first. */
function by(column, up) {
  return (one, other) => {
    const [a, b] = [valueOf(column, one), valueOf(column, other)];
    const unknown = Number(a === null || a === UNKNOWN) - Number(b === null || b === UNKNOWN);
    const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return unknown || (up ? order : -order) || other.bytes - one.bytes || one.name.localeCompare(other.name);
  };
}
