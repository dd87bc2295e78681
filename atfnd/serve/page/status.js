// SPDX-License-Identifier: GPL-2.0-or-later
// The top of the page: whether steering pays and what prevents it, then the daemon at a glance.

import { element, fill, mark, say } from "./element.js";
import { UNKNOWN, counted, span, whole } from "./number.js";

const BAD = ["stopped", "cannot judge"];
const MOST = 6; // findings

export class StatusView {
  #guard;
  #doctor;
  #findings;
  #list;

  constructor(verdict, findings, list) {
    this.#guard = row(verdict, "guard");
    this.#doctor = row(verdict, "doctor");
    this.#findings = findings;
    this.#list = list;
  }

  show(status, queues) {
    const nics = [...new Set(queues.map((queue) => queue.nic))];
    const ordered = status.disarmed;
    const others = nics.filter((nic) => ![...status.armed, ...ordered].includes(nic));
    const none = ordered.length > 0 ? "none" : "none: observing only; `atfnctl gain` says what arming could gain";
    const losses = [
      [status.events_lost, "event", "lost"],
      [status.overflow, "flow", "found the table or the NIC full"],
      [status.actions_refused, "action", "refused"],
      [status.late_packets, "packet", "late"],
    ].filter(([count]) => count > 0);
    const said = {
      armed: status.armed.join(", ") || none,
      disarmed: ordered.map((nic) => `${nic} by an order, although the policy arms it`).join("; "),
      "not armed": others.join(", "),
      observer: `${status.observer}: ${status.observer_why}`,
      table: `${whole(status.table_entries)} of ${counted(status.table_capacity, "flow")}`,
      losses: losses.map(([count, noun, how]) => `${counted(count, noun)} ${how}`).join(", ") || "none",
      atfnd: `${status.version}, up ${span(status.uptime_s)}`,
    };
    for (const [name, text] of Object.entries(said)) {
      const value = this.#list.querySelector(`[data-of="${name}"]`) ?? row(this.#list, name);
      value.parentElement.hidden = text === "";
      say(value, text);
    }
    say(this.#guard, status.guard.map((each) => `${each.nic}: ${each.said}`).join("; ") || UNKNOWN);
    mark(this.#guard, "data-bad", status.guard.some((each) => BAD.includes(each.state)) ? "" : null);
  }

  /** What doctor has found in the way; worst first. */
  find({ findings }) {
    const blockers = findings.filter((each) => each.level === "blocker").length;
    const warnings = findings.length - blockers;
    const many = [[blockers, "blocker"], [warnings, "warning"]].filter(([count]) => count > 0);
    const found = many.map(([count, noun]) => counted(count, noun)).join(", ") || "nothing is in the way";
    say(this.#doctor, blockers > 0 ? `${found}: nothing can be steered before these are removed` : found);
    mark(this.#doctor, "data-bad", blockers > 0 ? "" : null);
    const shown = findings.slice(0, MOST).map(({ nic, level, what, advice }) => {
      const does = advice === null ? [] : [element("span", {}, ` → ${advice}`)];
      return element("li", { "data-of": level }, `${level}, ${nic ?? "machine"}: ${what}`, ...does);
    });
    const more = findings.length > MOST ? [element("li", {}, "`atfnctl doctor` lists them all")] : [];
    fill(this.#findings, [...shown, ...more]);
  }
}

/** A name in a list, and what is said of it. */
function row(list, name) {
  const value = element("dd", { "data-of": name }, "asking…");
  list.append(element("div", {}, element("dt", {}, name), value));
  return value;
}
