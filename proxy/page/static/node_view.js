// The node and its cluster, as they are now.
import { get } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, card, counted, duration, el, number, replace, table, when } from "./dom.js";

const SOURCES = ["mounts, from the cache's files", "proxy, from its cache", "other nodes", "store"];
const SAMPLES_MAX = 150;
const COUNTED_MAX = 20; // datasets whose cached bytes are counted by themselves

export class NodeView {
  constructor() {
    this.samples = [];
    this.state = null;
    this.cached = new Map();
    this.counting = false;
    this.chart = new Chart(SOURCES);
    this.cards = el("div", { class: "cards" });
    this.rest = el("div");
    this.element = el("div", {}, el("h1", {}, "This node"), this.cards,
      card("Bytes for readers, by where they came from", this.chart.element), this.rest);
  }

  history(samples) {
    this.samples = samples;
    this.drawChart();
  }

  sample(sample) {
    this.samples.push(sample);
    this.samples.splice(0, this.samples.length - SAMPLES_MAX);
    this.drawChart();
  }

  node(state) {
    this.state = state;
    this.drawCards();
    this.drawRest();
    this.count();
  }

  // What has the focus is not taken away from under somebody's keyboard.
  drawRest() {
    if (this.rest.contains(document.activeElement)) return;
    replace(this.rest, this.peers(), this.mounts(), this.reads(), this.jobs(), this.pins(), this.datasets());
  }

  drawChart() {
    if (!this.element.isConnected) return;
    this.rates = this.chart.draw(this.samples);
    this.drawCards();
  }

  drawCards() {
    if (this.state === null) return;
    const f = this.state.figures;
    const total = sum(this.rates ?? []);
    const [, direct = 0, cached = 0, peers = 0, store = 0] = this.samples.at(-1) ?? [];
    const local = direct + cached;
    const far = peers + store;
    const share = local + far ? Math.round((100 * local) / (local + far)) : null;
    const used = f.cache_used_bytes ?? 0;
    const limit = f.cache_size_bytes_max ?? 0;
    replace(this.cards,
      figure("Throughput", `${bytes(total)}/s`, `${number(f.requests)} requests so far`),
      figure("From this node's cache", share === null ? "–" : `${share} %`,
        `${bytes(local)} of ${bytes(local + far)} since it began`),
      figure("Cache", bytes(used), `of ${bytes(limit)}; ${bytes(this.state.pinned_bytes)} pinned`,
        limit ? el("meter", { min: 0, max: limit, value: used,
          "aria-label": `cache: ${bytes(used)} of ${bytes(limit)}` }) : null),
      figure("Under way", counted(Math.max(0, (f.streams ?? 0) - (f.listeners ?? 0)), "request", "requests"),
        `${bytes(f.in_flight_bytes ?? 0)} coming; ${counted(f.connections ?? 0, "connection", "connections")}`));
  }

  peers() {
    const { peers, peers_total } = this.state;
    if (!peers.length) return null;
    const rows = peers.map((peer) => [
      `${peer.address}${peer.self ? " (this node)" : ""}`,
      peer.self ? "" : el("span", { class: peer.state === "well" ? "good" : "bad" },
        peer.state ?? "", peer.reason ? `: ${peer.reason}` : ""),
      peer.latency_s ? `${(peer.latency_s * 1000).toFixed(1)} ms` : "–",
      bytes(peer.received_bytes), bytes(peer.sent_bytes)]);
    return card(`Nodes of the cluster (${number(peers_total)})`, table("Nodes", [
      { name: "Node" }, { name: "State" }, { name: "Latency", number: true, wide: true },
      { name: "Received", number: true }, { name: "Sent", number: true, wide: true }], rows));
  }

  mounts() {
    const mounts = this.state.mounts ?? [];
    if (!mounts.length) return null;
    const rows = mounts.map((one) => [el("span", { class: "path" }, one.mount),
      one.repo ? version(one.repo, one.commit) : "–", number(one.reads), bytes(one.read_bytes)]);
    return card("Mounts and volumes that read here", table("Mounts", [{ name: "At" },
      { name: "Dataset" }, { name: "Reads", number: true, wide: true },
      { name: "Bytes", number: true }], rows));
  }

  reads() {
    const rows = this.state.reads.filter((one) => sum(one.by_source)).map((one) => [
      el("a", { href: `#/repository/${one.repo}` }, one.repo), bytes(sum(one.by_source)),
      ...one.by_source.map((count) => bytes(count))]);
    return rows.length ? card("Read here since the proxy began", table("Reads by repository", [
      { name: "Repository" }, { name: "Bytes", number: true },
      ...["By mounts", "By the proxy", "Other nodes", "Store"].map((name) => ({ name, number: true, wide: true }))],
    rows)) : null;
  }

  jobs() {
    const rows = this.state.jobs.map((job) => [version(job.repo, job.commit),
      el("span", { class: job.state === "failed" ? "bad" : null }, job.state,
        job.errors.length ? `: ${job.errors[0].message}` : ""),
      job.bytes_total ? el("progress", { max: job.bytes_total, value: job.bytes_done,
        "aria-label": `${bytes(job.bytes_done)} of ${bytes(job.bytes_total)}` }) : "",
      bytes(job.bytes_done), `${bytes(job.bytes_per_s)}/s`, duration(job.eta_s)]);
    const empty = el("p", { class: "soft" }, "No warm job runs. ", el("code", {}, "lodefs warm REPO@REV"),
      " fetches a dataset here ahead of its use.");
    return card("Warm jobs", rows.length ? table("Warm jobs", [{ name: "Dataset" }, { name: "State" },
      { name: "Progress", wide: true }, { name: "Done", number: true },
      { name: "Rate", number: true, wide: true }, { name: "Left", number: true }], rows) : empty);
  }

  pins() {
    const rows = this.state.pins.map((pin) => [version(pin.repo, pin.commit),
      el("span", { class: "path" }, shownPath(pin.what)), bytes(pin.size_bytes), when(pin.pinned_until_s)]);
    return rows.length ? card("Pins", table("Pins", [{ name: "Dataset" }, { name: "What", wide: true },
      { name: "Size", number: true }, { name: "Until" }], rows)) : null;
  }

  datasets() {
    const rows = this.state.datasets.map((one) => [version(one.repo, one.commit),
      number(one.files), bytes(one.size_bytes), this.cachedCell(one)]);
    const empty = el("p", { class: "soft" }, "No dataset was asked for here yet.");
    return card("Datasets on this node", rows.length ? table("Datasets", [{ name: "Dataset" },
      { name: "Files", number: true, wide: true }, { name: "Size", number: true },
      { name: "Of it in the cache", number: true }], rows) : empty);
  }

  cachedCell(one) {
    const found = this.cached.get(`${one.repo}@${one.commit}`);
    if (found === undefined) return "…";
    if (found === null) return "too many files to count";
    return one.size_bytes ? `${bytes(found)} (${Math.min(100, Math.round((100 * found) / one.size_bytes))} %)` : bytes(found);
  }

  // One after the other, and each but once while the page is open: counting costs the node something.
  async count() {
    if (this.counting) return;
    this.counting = true;
    try {
      for (const one of this.state.datasets.slice(0, COUNTED_MAX)) {
        const key = `${one.repo}@${one.commit}`;
        if (this.cached.has(key)) continue;
        if (!this.element.isConnected) return;
        try {
          this.cached.set(key, (await get(`/page/cached/${key}`)).cached_bytes);
        } catch {
          this.cached.set(key, null);
        }
        this.drawRest();
      }
    } finally {
      this.counting = false;
    }
  }
}

function figure(title, value, note, ...more) {
  return el("section", { class: "card" }, el("h2", {}, title), el("p", { class: "figure" }, value),
    ...more, el("p", { class: "note" }, note));
}

function sum(numbers) {
  return numbers.reduce((total, one) => total + one, 0);
}

function version(repo, commit) {
  return el("a", { href: `#/browse/${repo}@${commit}/` }, `${repo}@${commit.slice(0, 10)}`);
}

export function shownPath(encoded) {
  if (!encoded) return "all of it";
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded;
  }
}
