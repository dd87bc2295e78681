// SPDX-License-Identifier: GPL-2.0-or-later
// Forwarded packets: from which interface to which TX queue, and on which CPUs. Counted only while
// somebody asks for them: the count makes each packet of the machine take longer.

import { element, say } from "./element.js";
import { UNKNOWN, bits, counted, percent, short, whole } from "./number.js";

const MOST = 100; // rows
const DISTANCES = { cpu: "same CPU", core: "same core", llc: "LLC", node: "node", machine: "far" };
const COLUMNS = {
  in: (pair) => pair.ingress,
  queue: (pair) => whole(pair.rx_queue),
  CPU: (pair) => whole(pair.cpu),
  out: (pair) => pair.egress,
  "TX queue": (pair) => whole(pair.tx_queue),
  "TX CPU": (pair) => whole(pair.tx_cpu),
  distance: (pair) => DISTANCES[pair.distance] ?? UNKNOWN,
  "packets/s": (pair) => short(pair.packets_pps),
  rate: (pair) => bits(8 * pair.bytes_per_s),
};

export class Forwarded {
  #asked;
  #said;
  #where;
  #body;

  constructor(asked, said, where) {
    this.#asked = asked;
    this.#said = said;
    this.#body = element("tbody");
    const heads = Object.keys(COLUMNS).map((name) => element("th", { scope: "col" }, name));
    this.#where = where;
    where.append(element("table", { class: "pairs" }, element("thead", {}, element("tr", {}, ...heads)), this.#body));
    asked.addEventListener("change", () => this.show(null));
  }

  /** The reader wants them counted. */
  wanted() {
    return this.#asked.checked;
  }

  /** The daemon's answer; null, none yet. */
  show(answer) {
    if (!this.wanted() || answer === null) {
      say(this.#said, this.wanted() ? "asking…" : "");
      this.#where.hidden = true;
      return;
    }
    const rows = answer.pairs.slice(0, MOST);
    this.#where.hidden = rows.length === 0;
    while (this.#body.rows.length > rows.length) {
      this.#body.deleteRow(-1);
    }
    rows.forEach((pair, n) => {
      const row = this.#body.rows[n] ?? this.#body.insertRow();
      Object.values(COLUMNS).forEach((of, column) => say(row.cells[column] ?? row.insertCell(), of(pair)));
    });
    say(this.#said, described(answer));
  }
}

function described({ why_empty, pairs, missed_packets, elsewhere }) {
  const others = elsewhere.map(({ netns, packets_pps }) => ` Namespace ${netns}: ${short(packets_pps)} packets/s.`).join("");
  if (why_empty !== null) {
    return others ? `${why_empty}.${others}` : why_empty;
  }
  const all = pairs.reduce((sum, pair) => sum + pair.packets_pps, 0);
  const share = (distance) => {
    const packets = pairs.reduce((sum, pair) => sum + (pair.distance === distance ? pair.packets_pps : 0), 0);
    return all > 0 ? packets / all : null;
  };
  const unknown = share(null) > 0 ? `, of ${percent(share(null))} it is not known` : "";
  const cut = pairs.length > MOST ? ` The first ${MOST} of ${counted(pairs.length, "pair")}.` : "";
  const missed = missed_packets > 0 ? ` ${counted(missed_packets, "packet")} found no room.` : "";
  return `${percent(share("cpu"))} are received and sent on one CPU${unknown}.${cut}${missed}${others}`;
}
