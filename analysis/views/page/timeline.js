"use strict";

/* The data is JSON, deflated, in base64. Columns of times are differences. */

const OWNERS = ["attention", "tail", "state", "slab", "cached", "free"];
const OWNER_WORDS = {
  attention: "attention, held", tail: "tails, held", state: "states, held", slab: "slabs, held",
  cached: "cached", free: "free",
};
const PHASES = ["waiting", "prefill", "decode", "preempted"];
const RUNS = [1, 2];  // of these, those in which a request runs
const MARKS = ["published", "lost", "retained", "pinned"];
const MARK_SIGNS = { published: "▴", lost: "×", retained: "○", pinned: "■" };
const HEIGHTS = { published: 0.74, lost: 0.26, retained: 0.74, pinned: 0.5 };  // in a lane
const SECOND = 1e6;  // times are microseconds
const FOOT = 18;     // below a panel, for its times
const ROW = 15;      // of the checkpoints
const DENSE = 20000; // marks in view beyond which lanes leave them to the strip

const $ = (id) => document.getElementById(id);
const number = (value) => Math.round(value).toLocaleString("en-US");

function sums(column) {
  const out = new Float64Array(column.length);
  let total = 0;
  for (let i = 0; i < column.length; i++) out[i] = total += column[i];
  return out;
}

/* The last place whose value is at most x; -1 if there is none. */
function lastUpTo(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/* Seconds with as many decimals as a span of time needs. */
function seconds(time, span) {
  const decimals = Math.min(Math.max(1 - Math.floor(Math.log10(Math.max(span, 1) / SECOND)), 0), 6);
  return (time / SECOND).toLocaleString("en-US", {
    minimumFractionDigits: decimals, maximumFractionDigits: decimals,
  });
}

/* A moment in a span that is in view, a hundred times finer than its axis. */
const moment = (time, view) => `${seconds(time, (view.to - view.from) / 100)} s`;

function lasting(time) {
  return time < SECOND ? `${(time / 1e3).toPrecision(3)} ms` : `${(time / SECOND).toFixed(2)} s`;
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

/* Lanes, phases, marks and samples with absolute times. */
function unpack(data) {
  const lanes = [], starts = sums(data.lanes.start);
  let place = 0;
  for (let lane = 0; lane < starts.length; lane++) {
    const first = place, count = data.lanes.phases[lane];
    let now = starts[lane], ran = Infinity;
    for (; place < first + count; place++) {
      now += data.phases.gap[place];
      data.phases.gap[place] = now;  // its start from here on
      if (RUNS.includes(data.phases.kind[place])) ran = Math.min(ran, now);
      now += data.phases.length[place];
    }
    lanes.push({
      id: data.lanes.id[lane], start: starts[lane], ran, end: now, first, last: place,
      tokens: data.lanes.tokens[lane], finished: data.lanes.finished[lane],
    });
  }
  return {
    ...data,
    lanes,
    phases: { ...data.phases, start: data.phases.gap },
    marks: { ...data.marks, time: sums(data.marks.time) },
    samples: { ...data.samples, time: sums(data.samples.time) },
    load: { ...data.load, time: sums(data.load.time) },
  };
}

async function load() {
  const text = $("data").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return unpack(await new Response(stream).json());
}

/* -- drawing -------------------------------------------------------------------------------- */

let colors = {};

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "ink", "soft", "line", "panel", "padding", "stranded", "chosen",
    ...OWNERS, ...PHASES, ...MARKS];
  colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function hatch(context, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 1.4;
  pen.beginPath();
  for (const offset of [-6, 0, 6]) { pen.moveTo(offset, 6); pen.lineTo(offset + 6, 0); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

class Panel {
  constructor(canvas, height) {
    this.canvas = canvas;
    this.height = height;
    this.context = canvas.getContext("2d");
  }

  get left() { return this.width < 600 ? 60 : 70; }
  get right() { return this.width - 8; }

  /* Returns the pen of an empty canvas, in units of CSS pixels. */
  begin() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    const pen = this.context;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = '11px system-ui, "DejaVu Sans", sans-serif';
    pen.textBaseline = "middle";
    return pen;
  }

  x(time, view) {
    return this.left + (time - view.from) / (view.to - view.from) * (this.right - this.left);
  }

  time(x, view) {
    return view.from + (x - this.left) / (this.right - this.left) * (view.to - view.from);
  }

  /* Ticks of time below, with their unit. */
  times(pen, view) {
    const bottom = this.height - FOOT, span = view.to - view.from;
    const step = niceStep(span * 80 / Math.max(this.right - this.left, 80));
    pen.strokeStyle = colors.line;
    pen.fillStyle = colors.soft;
    pen.textAlign = "center";
    pen.lineWidth = 1;
    pen.beginPath();
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
      const x = Math.round(this.x(time, view)) + 0.5;
      pen.moveTo(x, 0);
      pen.lineTo(x, bottom + 4);
      const label = seconds(time, step * 10);
      const half = pen.measureText(label).width / 2;
      if (x - half > this.left - 6 && x + half < this.right - 14) pen.fillText(label, x, bottom + 11);
    }
    pen.stroke();
    pen.textAlign = "right";
    pen.fillText("s", this.right + 4, bottom + 11);
  }

  /* Marks of the vertical axis: [value's text, y]. */
  labels(pen, marks) {
    pen.fillStyle = colors.soft;
    pen.textAlign = "right";
    for (const [text, y] of marks) pen.fillText(text, this.left - 6, y);
  }
}

/* Columns of pixels and what is drawn in each: the sample with the fewest pages left. */
function columns(panel, view, times, fuller) {
  const out = [];
  let place = Math.max(lastUpTo(times, view.from), 0);
  for (; place < times.length && times[place] < view.to; place++) {
    const end = place + 1 < times.length ? times[place + 1] : view.end;
    const from = Math.max(Math.round(panel.x(times[place], view)), panel.left);
    const to = Math.min(Math.max(Math.round(panel.x(end, view)), from + 1), panel.right);
    const last = out[out.length - 1];
    if (last && from < last.to) {  // the same pixel
      if (fuller(place, last.place)) last.place = place;
      last.to = Math.max(last.to, to);
      continue;
    }
    if (to > from) out.push({ from, to, place });
  }
  return out;
}

class PoolPanel extends Panel {
  constructor(canvas, run, pool) {
    super(canvas, 150);
    this.run = run;
    this.pool = pool;
    this.values = run.samples.pages[pool];
    this.usable = run.pools[pool].usable;
  }

  numLeft(place) {
    return this.values[4][place] + this.values[5][place];
  }

  draw(view) {
    const pen = this.begin(), bottom = this.height - FOOT, top = 6;
    const y = (pages) => bottom - pages / this.usable * (bottom - top);
    this.times(pen, view);
    const drawn = columns(this, view, this.run.samples.time,
      (one, other) => this.numLeft(one) < this.numLeft(other));
    const below = new Float64Array(drawn.length);
    OWNERS.forEach((owner, row) => {
      if (owner === "free") return;
      pen.fillStyle = colors[owner];
      pen.beginPath();
      drawn.forEach((column, i) => {
        const pages = this.values[row][column.place];
        if (pages) {
          const high = y(below[i] + pages);
          pen.rect(column.from, high, column.to - column.from, y(below[i]) - high);
        }
        below[i] += pages;
      });
      pen.fill();
    });
    if (this.pool === 0) this.padding(pen, drawn, y);
    this.stranded(pen, drawn, y);
    pen.strokeStyle = colors.soft;
    pen.strokeRect(this.left - 0.5, top, this.right - this.left, bottom - top);
    const half = Math.round(this.usable / 2);
    this.labels(pen, [["0", bottom - 4], [number(half), y(half)], [number(this.usable), top + 4]]);
  }

  padding(pen, drawn, y) {
    pen.fillStyle = hatch(pen, colors.padding);
    for (const column of drawn) {
      const attention = this.values[0][column.place];
      const pages = Math.min(this.run.samples.padding[column.place] / this.run.block_size, attention);
      if (pages) {
        const high = y(attention);
        pen.fillRect(column.from, high, column.to - column.from, y(attention - pages) - high);
      }
    }
  }

  stranded(pen, drawn, y) {
    pen.fillStyle = hatch(pen, colors.stranded);
    for (const column of drawn) {
      const pages = this.strandedPages(column.place);
      if (pages) pen.fillRect(column.from, y(this.usable), column.to - column.from,
        y(this.usable - pages) - y(this.usable));
    }
  }

  strandedPages(place) {
    const left = this.run.samples.pages.map((values) => values[4][place] + values[5][place]);
    return Math.min(...left) === 0 ? left[this.pool] : 0;
  }

  hit(x, _, view) {
    const time = this.time(x, view);
    const place = lastUpTo(this.run.samples.time, time);
    if (place < 0 || x < this.left) return null;
    const pool = this.run.pools[this.pool];
    const lines = [`Pool ${pool.name} at ${moment(time, view)}`];
    OWNERS.forEach((owner, row) => {
      const pages = this.values[row][place];
      if (pages || owner === "free") lines.push(
        `${OWNER_WORDS[owner]}: ${number(pages)} pages, ` +
        `${(100 * pages / this.usable).toFixed(1)} %, ${bytes(pages * pool.page_bytes)}`);
    });
    const padding = this.run.samples.padding[place];
    if (this.pool === 0 && padding) lines.push(
      `padding: room for ${number(padding)} tokens in the pages of running requests`);
    const stranded = this.strandedPages(place);
    if (stranded) lines.push(`stranded: ${number(stranded)} pages, because another pool has none left`);
    return { lines };
  }
}

function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${+value.toPrecision(3)} ${unit}`;
    value /= 1024;
  }
  return `${+value.toPrecision(3)} GiB`;
}

class CheckpointPanel extends Panel {
  constructor(canvas, run) {
    super(canvas, MARKS.length * ROW + FOOT + 4);
    this.run = run;
  }

  draw(view) {
    const pen = this.begin(), { time, kind } = this.run.marks;
    this.times(pen, view);
    const width = Math.max(Math.ceil(this.right - this.left), 1);
    const counts = MARKS.map(() => new Uint32Array(width + 1));
    for (let i = lastUpTo(time, view.from - 1) + 1; i < time.length && time[i] <= view.to; i++) {
      counts[kind[i]][Math.floor(this.x(time[i], view) - this.left)]++;
    }
    MARKS.forEach((mark, row) => {
      const most = Math.max(...counts[row], 1), y = row * ROW + 2;
      pen.fillStyle = colors[mark];
      counts[row].forEach((count, x) => {
        if (!count) return;
        pen.globalAlpha = 0.45 + 0.55 * count / most;
        pen.fillRect(this.left + x, y, 2, ROW - 4);
      });
      pen.globalAlpha = 1;
    });
    this.labels(pen, MARKS.map((mark, row) => [mark, row * ROW + ROW / 2]));
  }

  hit(x, y, view) {
    const row = Math.floor(y / ROW), { time, kind } = this.run.marks;
    if (row < 0 || row >= MARKS.length || x < this.left) return null;
    const from = this.time(x - 3, view), to = this.time(x + 3, view), found = [];
    for (let i = lastUpTo(time, from) + 1; i < time.length && time[i] <= to; i++) {
      if (kind[i] === row) found.push(i);
    }
    if (!found.length) return null;
    const shown = found.slice(0, 4).map((mark) => this.run.describe(mark, view));
    if (found.length > 4) shown.push(`and ${number(found.length - 4)} more here`);
    return { lines: [`Checkpoints ${MARKS[row]}: ${number(found.length)}`, ...shown] };
  }
}

class LanePanel extends Panel {
  constructor(canvas, run) {
    super(canvas, Math.min(Math.max(run.lanes.length * 3, 240), 900) + FOOT);
    this.run = run;
    this.chosen = null;
    this.onlyRan = false;
  }

  /* The requests that are there in the time in view. */
  find(view) {
    this.shown = [];
    this.row = new Int32Array(this.run.lanes.length).fill(-1);
    this.run.lanes.forEach((lane, i) => {
      const from = this.onlyRan ? lane.ran : lane.start;
      if (lane.end >= view.from && from <= view.to) {
        this.row[i] = this.shown.length;
        this.shown.push(i);
      }
    });
    this.step = Math.min((this.height - FOOT) / Math.max(this.shown.length, 1), 22);
  }

  draw(view) {
    this.find(view);
    const pen = this.begin(), { step, run } = this;
    this.times(pen, view);
    const high = step > 4 ? step - 1.5 : Math.max(step * 0.9, 1);
    const left = this.left, right = this.right;
    const paths = PHASES.map(() => new Path2D());
    this.shown.forEach((lane, row) => {
      const y = row * step, { first, last } = run.lanes[lane];
      for (let i = first; i < last; i++) {
        const start = run.phases.start[i], end = start + run.phases.length[i];
        if (end < view.from || start > view.to) continue;
        const from = Math.max(this.x(start, view), left), to = Math.min(this.x(end, view), right);
        paths[run.phases.kind[i]].rect(from, y, Math.max(to - from, 0.6), high);
      }
    });
    paths.forEach((path, kind) => {
      pen.fillStyle = colors[PHASES[kind]];
      pen.fill(path);
    });
    this.drawMarks(pen, view, high);
    this.drawChosen(pen);
    this.drawIds(pen);
  }

  drawMarks(pen, view, high) {
    const { time, kind, lane } = this.run.marks;
    const first = lastUpTo(time, view.from - 1) + 1, last = lastUpTo(time, view.to);
    this.hasMarks = last - first < DENSE && this.step >= 1.5;
    if (!this.hasMarks) return;
    const size = Math.min(Math.max(high * 0.24, 1.6), 4.5);
    for (let i = first; i <= last; i++) {
      const row = lane[i] < 0 ? -1 : this.row[lane[i]];
      if (row < 0) continue;
      const x = this.x(time[i], view), y = row * this.step + high * HEIGHTS[MARKS[kind[i]]];
      sign(pen, MARKS[kind[i]], x, y, size);
    }
  }

  drawChosen(pen) {
    const row = this.chosen === null ? -1 : this.row[this.chosen];
    if (row < 0) return;
    pen.strokeStyle = colors.chosen;
    pen.lineWidth = 2;
    pen.strokeRect(this.left - 1, row * this.step - 2, this.right - this.left + 2, Math.max(this.step, 3) + 3);
    pen.lineWidth = 1;
  }

  drawIds(pen) {
    const every = Math.max(Math.ceil(13 / this.step), 1), marks = [];
    for (let row = 0; row < this.shown.length; row += every) {
      const id = this.run.lanes[this.shown[row]].id, most = this.width < 600 ? 8 : 10;
      marks.push([id.length > most ? `…${id.slice(1 - most)}` : id, row * this.step + Math.max(this.step / 2, 5)]);
    }
    this.labels(pen, marks);
  }

  laneAt(y) {
    const row = Math.floor(y / this.step);
    return row >= 0 && row < this.shown.length ? this.shown[row] : null;
  }

  hit(x, y, view) {
    const lane = this.laneAt(y);
    if (lane === null) return null;
    const time = this.time(x, view), lines = this.run.life(lane, time, view);
    const mark = this.markAt(lane, x, view);
    if (mark !== null) lines.push(this.run.describe(mark, view));
    return { lines, lane };
  }

  markAt(lane, x, view) {
    const marks = this.run.marks;
    let best = null, nearest = 6;
    if (!this.hasMarks) return null;
    const to = this.time(x + 6, view);
    for (let i = lastUpTo(marks.time, this.time(x - 6, view)) + 1; i < marks.time.length && marks.time[i] <= to; i++) {
      const distance = Math.abs(this.x(marks.time[i], view) - x);
      if (marks.lane[i] === lane && distance < nearest) { nearest = distance; best = i; }
    }
    return best;
  }
}

function sign(pen, mark, x, y, size) {
  pen.strokeStyle = pen.fillStyle = colors[mark];
  pen.lineWidth = Math.max(size / 2.6, 1);
  pen.beginPath();
  if (mark === "published") {
    pen.moveTo(x, y - size); pen.lineTo(x + size, y + size); pen.lineTo(x - size, y + size);
    pen.fill();
  } else if (mark === "lost") {
    pen.moveTo(x - size, y - size); pen.lineTo(x + size, y + size);
    pen.moveTo(x + size, y - size); pen.lineTo(x - size, y + size);
    pen.stroke();
  } else if (mark === "retained") {
    pen.arc(x, y, size, 0, 2 * Math.PI);
    pen.stroke();
  } else {
    pen.fillRect(x - size, y - size, 2 * size, 2 * size);
  }
}

class Overview extends Panel {
  constructor(canvas, run) {
    super(canvas, 46);
    this.run = run;
    this.most = 1;
    run.load.running.forEach((running, i) => {
      this.most = Math.max(this.most, running + run.load.waiting[i]);
    });
  }

  draw(view) {
    const pen = this.begin(), { time, running, waiting } = this.run.load;
    const whole = { from: 0, to: view.end, end: view.end };
    const y = (count) => 42 - count / this.most * 38;
    const drawn = columns(this, whole, time, (one, other) =>
      running[one] + waiting[one] > running[other] + waiting[other]);
    for (const [name, base, value] of [
      ["decode", () => 0, (i) => running[i]], ["waiting", (i) => running[i], (i) => waiting[i]]]) {
      pen.fillStyle = colors[name];
      for (const { from, to, place } of drawn) {
        const high = y(base(place) + value(place));
        pen.fillRect(from, high, to - from, y(base(place)) - high);
      }
    }
    this.labels(pen, [["0", 38], [number(this.most), 8]]);
    pen.fillStyle = colors.page;
    pen.globalAlpha = 0.66;
    pen.fillRect(this.left, 0, this.x(view.from, whole) - this.left, 46);
    pen.fillRect(this.x(view.to, whole), 0, this.right - this.x(view.to, whole), 46);
    pen.globalAlpha = 1;
    pen.strokeStyle = colors.ink;
    pen.strokeRect(this.x(view.from, whole) + 0.5, 1.5, Math.max(this.x(view.to, whole) - this.x(view.from, whole) - 1, 1), 42);
  }

  hit(x, _, view) {
    const whole = { from: 0, to: view.end }, time = this.time(x, whole);
    const place = lastUpTo(this.run.load.time, time);
    if (place < 0) return null;
    return { lines: [moment(time, whole),
      `${number(this.run.load.running[place])} requests run, ${number(this.run.load.waiting[place])} wait`] };
  }
}

/* -- words ------------------------------------------------------------------------------------ */

class Run {
  constructor(data) {
    Object.assign(this, data);
  }

  id(lane) {
    return lane < 0 ? null : this.lanes[lane].id;
  }

  /* A mark of a checkpoint: what, which state, how deep, for whom. */
  describe(mark, view) {
    const marks = this.marks, kind = MARKS[marks.kind[mark]];
    const state = `state ${marks.page[mark]}.${marks.life[mark]}`;
    const producer = this.id(marks.producer[mark]), request = this.id(marks.lane[mark]);
    const depth = `${number(marks.tokens[mark])} tokens`;
    const at = moment(marks.time[mark], view);
    if (kind === "published") return `${at}: request ${request} published ${state} at ${depth}`;
    const whose = `${state} at ${depth}, of request ${producer},`;
    if (kind === "lost") return `${at}: ${whose} lost: ${this.causes[marks.cause[mark]]}` +
      (request === null ? "" : ` request ${request}`);
    return `${at}: ${whose} ${kind} for request ${request}`;
  }

  /* What a request does at a time, and its whole life without one. */
  life(lane, time, view) {
    const { id, start, end, first, last, tokens, finished } = this.lanes[lane];
    const lines = [`Request ${id}` + (tokens ? `, ${number(tokens)} prompt tokens` : "")];
    for (let i = first; i < last; i++) {
      const from = this.phases.start[i], length = this.phases.length[i];
      const isHere = time === null || (time >= from && time <= from + length);
      if (!isHere || !length) continue;
      const note = this.notes[this.phases.note[i]];
      lines.push(`${PHASES[this.phases.kind[i]]} from ${moment(from, view)} for ` +
        lasting(length) + (note ? `: ${note}` : ""));
    }
    if (time !== null) lines.push(`in all ${moment(start, view)} to ` +
      `${moment(end, view)}` + (finished ? "" : ", not finished"));
    return lines;
  }
}

/* -- the page ---------------------------------------------------------------------------------- */

function section(title, small, legend) {
  const panel = document.createElement("section"), head = document.createElement("div");
  const heading = document.createElement("h2"), more = document.createElement("small");
  const list = document.createElement("ul"), canvas = document.createElement("canvas");
  panel.className = "panel";
  heading.textContent = `${title} `;
  more.textContent = small;
  heading.append(more);
  list.className = "legend";
  for (const [name, words, form] of legend) {
    const item = document.createElement("li");
    const swatch = document.createElement(form === "sign" ? "b" : "i");
    if (form === "sign") {
      swatch.textContent = MARK_SIGNS[name];
      swatch.style.color = `var(--${name})`;
    } else if (form === "hatch") {
      swatch.className = "hatch";
      swatch.style.setProperty("--swatch", `var(--${name})`);
      if (name === "padding") swatch.style.backgroundColor = "var(--attention)";
    } else {
      swatch.style.background = `var(--${name})`;
    }
    item.append(swatch, words);
    list.append(item);
  }
  head.append(heading, list);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}, ${small}`);
  panel.append(head, canvas);
  $("view").append(panel);
  return canvas;
}

function poolSection(run, pool) {
  const { name, usable, page_bytes } = run.pools[pool];
  const seen = OWNERS.filter((owner, row) =>
    owner === "free" || run.samples.pages[pool][row].some((pages) => pages > 0));
  const legend = seen.map((owner) => [owner, OWNER_WORDS[owner]]);
  if (pool === 0) legend.push(["padding", "of attention: padding", "hatch"]);
  if (run.pools.length > 1) legend.push(["stranded", "stranded", "hatch"]);
  return section(`Pool ${name}`, `${number(usable)} pages of ${number(page_bytes)} B; pages over time in s`, legend);
}

function write(place, lines) {
  place.replaceChildren(...lines.map((line) => {
    const row = document.createElement("div");
    row.textContent = line;
    return row;
  }));
}

function start(run) {
  const end = Math.max(run.end, 1);
  const view = { from: 0, to: end, end };
  const pools = run.pools.map((_, pool) => new PoolPanel(poolSection(run, pool), run, pool));
  const signs = MARKS.map((mark) => [mark, mark, "sign"]);
  const strip = new CheckpointPanel(
    section("Checkpoints", "published, lost and kept over time in s", signs), run);
  const lanes = new LanePanel(
    section("Requests", "those in view, in order of entry, over time in s",
      [...PHASES.map((phase) => [phase, phase]), ...signs]), run);
  const overview = new Overview($("overview"), run);
  const panels = [...pools, strip, lanes];
  let pending = false;

  function draw() {
    pending = false;
    readColors();
    for (const panel of [overview, ...panels]) panel.draw(view);
    const span = view.to - view.from;
    $("range").textContent =
      `${seconds(view.from, span)} to ${seconds(view.to, span)} s, ${number(lanes.shown.length)} requests`;
  }

  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(draw);
  }

  function show(from, to) {
    const span = Math.min(Math.max(to - from, 20), end);
    view.from = Math.min(Math.max(from, 0), end - span);
    view.to = view.from + span;
    redraw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }

  function move(part) {
    const by = part * (view.to - view.from);
    show(view.from + by, view.to + by);
  }

  function choose(lane) {
    lanes.chosen = lane;
    write($("details"), lane === null ? [] : run.life(lane, null, view));
    redraw();
  }

  function reach(lane) {
    const { start: from, end: to } = run.lanes[lane];
    const around = Math.max((to - from) * 0.1, 1e4);
    show(from - around, to + around);
  }

  function next(by) {
    const row = lanes.chosen === null ? -1 : lanes.row[lanes.chosen];
    const place = row < 0 ? (by > 0 ? 0 : lanes.shown.length - 1) : row + by;
    if (place >= 0 && place < lanes.shown.length) choose(lanes.shown[place]);
  }

  function tip(event, hit) {
    const box = $("tip");
    box.hidden = hit === null;
    if (hit === null) return;
    write(box, hit.lines);
    const { width, height } = box.getBoundingClientRect();
    const x = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const y = event.clientY + 14 + height > innerHeight ? event.clientY - 14 - height : event.clientY + 14;
    box.style.left = `${Math.max(x, 4)}px`;
    box.style.top = `${Math.max(y, 4)}px`;
  }

  function place(event, canvas) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function listen(panel) {
    const { canvas } = panel;
    let grabbed = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      grabbed = { x: event.clientX, from: view.from, to: view.to, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event, canvas);
      if (grabbed && Math.abs(event.clientX - grabbed.x) > 3) grabbed.moved = true;
      if (grabbed && grabbed.moved) {
        const by = (grabbed.x - event.clientX) / (panel.right - panel.left) * (grabbed.to - grabbed.from);
        show(grabbed.from + by, grabbed.to + by);
      }
      tip(event, grabbed && grabbed.moved ? null : panel.hit(x, y, view));
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = place(event, canvas);
      const hit = panel.hit(x, y, view);
      if (grabbed && !grabbed.moved && hit && hit.lane !== undefined) choose(hit.lane);
      grabbed = null;
    });
    canvas.addEventListener("pointercancel", () => { grabbed = null; });
    canvas.addEventListener("pointerleave", (event) => tip(event, null));
    canvas.addEventListener("dblclick", (event) => {
      zoom(event.shiftKey ? 2 : 0.5, panel.time(place(event, canvas)[0], view));
    });
    canvas.addEventListener("wheel", (event) => {
      const around = panel.time(place(event, canvas)[0], view);
      if (event.ctrlKey || event.metaKey) zoom(1.0015 ** event.deltaY, around);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        move((event.deltaX || event.deltaY) / 1000);
      } else return;
      event.preventDefault();
    }, { passive: false });
  }

  function listenToOverview() {
    const { canvas } = overview, whole = { from: 0, to: end };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      from = place(event, canvas)[0];
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event, canvas);
      if (from !== null && Math.abs(x - from) > 3) {
        show(overview.time(Math.min(x, from), whole), overview.time(Math.max(x, from), whole));
      }
      tip(event, from === null ? overview.hit(x, y, view) : null);
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x] = place(event, canvas);
      if (from !== null && Math.abs(x - from) <= 3) {
        const half = (view.to - view.from) / 2, time = overview.time(x, whole);
        show(time - half, time + half);
      }
      from = null;
    });
    canvas.addEventListener("pointercancel", () => { from = null; });
    canvas.addEventListener("pointerleave", (event) => tip(event, null));
  }

  const keys = {
    "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6),
    "-": () => zoom(1 / 0.6), _: () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
    ArrowLeft: () => move(-0.15), a: () => move(-0.15),
    ArrowRight: () => move(0.15), d: () => move(0.15),
    0: () => show(0, end), Home: () => show(0, end),
    ArrowUp: () => next(-1), ArrowDown: () => next(1),
    Enter: () => { if (lanes.chosen !== null) reach(lanes.chosen); },
    Escape: () => choose(null),
  };

  document.addEventListener("keydown", (event) => {
    const inView = document.activeElement === $("view") || document.activeElement === document.body;
    if (!inView || event.ctrlKey || event.metaKey || event.altKey) return;
    const isArrow = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (isArrow && document.activeElement !== $("view")) return;  // the page scrolls
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  $("in").onclick = () => zoom(0.6);
  $("out").onclick = () => zoom(1 / 0.6);
  $("left").onclick = () => move(-0.3);
  $("right").onclick = () => move(0.3);
  $("whole").onclick = () => show(0, end);
  $("ran").onchange = () => {
    lanes.onlyRan = $("ran").checked;
    redraw();
  };
  $("theme").onclick = () => {
    const root = document.documentElement, isDark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = isDark ? "light" : "dark";
    redraw();
  };
  $("find").onsubmit = (event) => {
    event.preventDefault();
    const wanted = $("wanted").value.trim();
    const lane = run.lanes.findIndex((each) => each.id === wanted);
    if (lane < 0) { write($("details"), [`No request ${wanted}`]); return; }
    choose(lane);
    reach(lane);
  };

  $("totals").textContent = run.totals;
  $("notes").textContent = run.remarks;
  panels.forEach(listen);
  listenToOverview();
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
}

if (typeof document !== "undefined") {
  load().then((data) => start(new Run(data))).catch((error) => {
    $("totals").textContent = `The data cannot be read: ${error}`;
    $("totals").className = "bad";
  });
} else {
  module.exports = { unpack, Run, lastUpTo, seconds, niceStep };
}
