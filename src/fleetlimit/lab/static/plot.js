// One time axis: the starts within the last period above, a lane for each instance below.
// Started: a disc above its lane's base line; denied: a cross below it.

const NS = "http://www.w3.org/2000/svg";
const LEFT = 40, RIGHT = 14, TOP = 46, CURVE = 104, GAP = 34, AXIS = 26;
const LANES = TOP + CURVE + GAP;
const CROWD = 400; // more marks than this are drawn smaller
const SECOND = 1e6;
const TICKS = [
  ...[1e-3, 1e-2, 0.1].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 1200, 1800,
  ...[1, 2, 6, 12, 24, 48, 120, 240].map((hours) => hours * 3600),
].map((seconds) => seconds * SECOND);
const HOUR = 3600 * SECOND;

/** Minutes and seconds, and hours where there are any. */
function clock(us, digits) {
  const scale = 10 ** digits;
  const ticks = Math.floor((us / SECOND) * scale + 1e-6);
  const [minutes, rest] = [Math.floor(ticks / (60 * scale)), ticks % (60 * scale)];
  const seconds = `${rest / scale < 10 ? "0" : ""}${(rest / scale).toFixed(digits)}`;
  if (minutes < 60) return `${minutes}:${seconds}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${seconds}`;
}

/** The name of a tick on the axis. */
function tick(us, step) {
  if (step >= HOUR) return `${Math.round(us / HOUR)} h`;
  return clock(us, step >= SECOND ? 0 : Math.round(-Math.log10(step / SECOND) + 0.49));
}

function duration(us) {
  if (us < SECOND) return `${Math.ceil(us / 1e3)} ms`;
  return us < 2 * HOUR ? `${(us / SECOND).toFixed(1)} s` : `${(us / HOUR).toFixed(1)} h`;
}

export class Plot {
  constructor(box, tip) {
    Object.assign(this, { box, tip, found: null, chosen: -1 });
    box.addEventListener("keydown", (event) => this.#key(event));
    box.addEventListener("pointermove", (event) => this.#point(event));
    box.addEventListener("pointerdown", (event) => this.#point(event));
    box.addEventListener("pointerleave", () => this.#choose(-1));
    box.addEventListener("blur", () => this.#choose(-1));
    new ResizeObserver(() => this.found && this.#render()).observe(box);
  }

  /** @param found the document of /api/run */
  draw(found) {
    this.found = found;
    this.box.setAttribute("aria-valuemax", found.marks.length);
    this.#render();
  }

  #render() {
    const { found, box } = this;
    const width = box.clientWidth;
    if (!width) return; // not shown: when it is, its size changes
    const [begin, end] = found.view;
    this.scale = (us) => LEFT + 8 + ((us - begin) / (end - begin)) * (width - LEFT - RIGHT - 8);
    this.right = width - RIGHT;
    this.#stack();
    this.bottom = LANES + this.lane * found.instances;
    this.svg = make("svg", { width, height: this.bottom + AXIS, "aria-hidden": "true" });
    this.#window();
    this.#axis();
    this.#curve();
    this.#lanes();
    this.#marks();
    this.#claim();
    this.ring = this.#add("circle", { class: "chosen", r: this.radius + 3.5, visibility: "hidden" });
    box.replaceChildren(this.svg);
    this.#choose(-1);
  }

  /** Marks keep their time exactly; where they would overlap they are stacked. A lane is as high
   *  as its highest stack, within what the page has room for. */
  #stack() {
    const { marks, instances } = this.found;
    this.radius = instances > 10 ? 2.2 : instances > 1 ? 3.4 : 4;
    if (marks.length > CROWD) this.radius = 2;
    const ends = Array.from({ length: 2 * instances }, () => []);
    this.levels = [0, 0]; // of the denied, of the started
    this.spots = marks.map(([us, instance, admitted]) => {
      const x = this.scale(us);
      const row = ends[2 * instance + admitted];
      let level = row.findIndex((end) => end <= x);
      if (level < 0) level = row.length;
      row[level] = x + 2 * this.radius + 1;
      this.levels[admitted] = Math.max(this.levels[admitted], level + 1);
      return { x, level };
    });
    const steps = this.levels[0] + this.levels[1] - 1;
    const pitch = 2 * this.radius + 1;
    const [least, most] = [Math.max(13, 96 / instances), Math.max(13, 400 / instances)];
    this.lane = Math.min(Math.max(least, (steps + 1) * pitch + 12), most);
    this.step = Math.min(pitch, (this.lane - 4 - 2 * this.radius) / Math.max(1, steps));
  }

  #add(tag, attributes, text) {
    const element = make(tag, attributes, text);
    this.svg.append(element);
    return element;
  }

  /** The worst window, behind everything. */
  #window() {
    const { worst } = this.found;
    const [x, end] = [this.scale(worst.from), this.scale(worst.to)];
    this.#add("rect", { class: "worst", x, y: TOP, width: end - x, height: this.bottom - TOP });
    const d = `M${x} ${this.bottom}V${TOP - 6}H${end}V${this.bottom}`;
    this.#add("path", { class: "bracket", d });
  }

  #axis() {
    const { view, boundaries } = this.found;
    const [begin, end] = view;
    const most = (this.right - LEFT) / 72;
    const step = TICKS.find((each) => (end - begin) / each <= most) ?? TICKS.at(-1);
    let lines = "";
    for (let us = Math.ceil(begin / step) * step; us <= end; us += step) {
      const x = this.scale(us);
      lines += `M${x} ${this.bottom}v5`;
      const anchor = x > this.right - 20 ? "end" : "middle";
      this.#add("text", { x, y: this.bottom + 18, "text-anchor": anchor }, tick(us, step));
    }
    this.#add("path", { class: "rule", d: `M${LEFT} ${this.bottom}H${this.right}${lines}` });
    const marks = boundaries.map((us) => `M${this.scale(us)} ${TOP}V${this.bottom}`).join("");
    if (marks) this.#add("path", { class: "boundary", d: marks });
  }

  /** Starts within the last period, as steps, below the limit and the algorithm's own bound. */
  #curve() {
    const { curve, limit, view, numbers, period, worst } = this.found;
    const [begin, end] = view;
    const most = Math.max(limit, numbers.bound, numbers.worst);
    const base = TOP + CURVE;
    const y = (count) => base - (count / most) * (CURVE - 14);
    const steps = (least) => {
      let d = `M${this.scale(begin)} ${y(least)}`;
      for (const [us, count] of curve) {
        if (us >= begin && us <= end) d += `H${this.scale(us)}V${y(Math.max(count, least))}`;
      }
      return `${d}H${this.scale(end)}`;
    };
    this.#add("path", { class: "area", d: `${steps(0)}V${base}Z` });
    if (numbers.worst > limit) {
      this.#add("path", { class: `excess ${worst.tone}`, d: `${steps(limit)}V${y(limit)}Z` });
    }
    this.#add("path", { class: "step", d: steps(0) });
    this.#add("path", { class: "rule", d: `M${LEFT} ${base}H${this.right}` });
    this.#line("limit", limit, y);
    if (numbers.bound !== limit) this.#line("bound", numbers.bound, y);
    for (const count of new Set([0, limit, numbers.bound, numbers.worst])) {
      const crowded = [limit, numbers.bound, 0].some((n) => n !== count && Math.abs(y(n) - y(count)) < 12);
      if (count === limit || !crowded) {
        this.#add("text", { x: LEFT - 6, y: y(count) + 4, "text-anchor": "end" }, String(count));
      }
    }
    this.#add("text", { class: "name", x: 0, y: 12 }, `Starts within the last ${period}`);
  }

  #line(name, count, y) {
    this.#add("path", { class: name, d: `M${LEFT} ${y(count)}H${this.right}` });
  }

  #lanes() {
    const { instances } = this.found;
    const name = instances > 1 ? "Instances" : "Instance";
    this.#add("text", { class: "name", x: 0, y: LANES - 10 }, name);
    let lines = "";
    for (let n = 0; n < instances; n++) {
      const y = LANES + n * this.lane;
      lines += `M${LEFT} ${y}H${this.right}`;
      if (this.lane >= 16 || n === 0 || n % 5 === 4) {
        const text = { x: LEFT - 6, y: y + this.lane / 2 + 4, "text-anchor": "end" };
        this.#add("text", text, String(n + 1));
      }
    }
    this.#add("path", { class: "rule", d: lines });
  }

  #marks() {
    const { radius, step, levels, lane } = this;
    const used = (levels[0] + levels[1] - 1) * step + 2 * radius;
    const shapes = ["", ""];
    this.found.marks.forEach(([, instance, admitted], n) => {
      const spot = this.spots[n];
      const row = admitted ? levels[1] - 1 - spot.level : levels[1] + spot.level;
      spot.y = LANES + instance * lane + (lane - used) / 2 + radius + row * step;
      shapes[admitted] += (admitted ? disc : cross)(spot.x, spot.y, radius);
    });
    this.#add("path", { class: "denied", d: shapes[0] });
    this.#add("path", { class: "started", d: shapes[1] });
  }

  /** The words above the shading. */
  #claim() {
    const { worst } = this.found;
    const [x, end] = [this.scale(worst.from), this.scale(worst.to)];
    const half = worst.label.length * 4.5; // about: it must not leave the plot
    const middle = Math.min(Math.max((x + end) / 2, half), this.right - half);
    const text = { class: `claim ${worst.tone}`, x: middle, y: TOP - 12, "text-anchor": "middle" };
    this.#add("text", text, worst.label);
  }

  #key(event) {
    const last = this.found.marks.length - 1;
    const to = {
      ArrowRight: Math.min(last, this.chosen + 1),
      ArrowLeft: Math.max(0, this.chosen - 1),
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#choose(to);
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [best, least] = [-1, 14 ** 2];
    this.spots.forEach((spot, n) => {
      const distance = (spot.x - x) ** 2 + (spot.y - y) ** 2;
      if (distance < least) [best, least] = [n, distance];
    });
    this.#choose(best);
  }

  #choose(n) {
    this.chosen = n;
    this.tip.hidden = n < 0;
    this.ring?.setAttribute("visibility", n < 0 ? "hidden" : "visible");
    if (n < 0) {
      this.box.setAttribute("aria-valuenow", 0);
      this.box.setAttribute("aria-valuetext", "none chosen");
      return;
    }
    const { x, y } = this.spots[n];
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
    const text = this.#tell(this.found.marks[n]);
    this.box.setAttribute("aria-valuenow", n + 1);
    this.box.setAttribute("aria-valuetext", text.replaceAll("\n", ", "));
    this.tip.textContent = text;
    const { offsetLeft, offsetTop } = this.box;
    const left = Math.min(x - this.tip.offsetWidth / 2, this.right - this.tip.offsetWidth);
    const above = y - this.tip.offsetHeight - 12;
    this.tip.style.left = `${offsetLeft + Math.max(0, left)}px`;
    this.tip.style.top = `${offsetTop + (above < 0 ? y + 12 : above)}px`;
  }

  #tell([us, instance, admitted, wait, request, number]) {
    const what = admitted
      ? "started"
      : this.found.scenario.denied === "leave"
        ? `denied; free in ${duration(wait)}`
        : `denied; told to wait ${duration(wait)}`;
    return `${clock(us, this.found.per_us < SECOND ? 6 : 3)} · instance ${instance + 1}\n${what}\nrequest ${request + 1}, ask ${number}`;
  }
}

function make(tag, attributes, text) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function disc(x, y, r) {
  return `M${(x - r).toFixed(2)} ${y.toFixed(2)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

function cross(x, y, r) {
  const s = r * 0.9;
  return `M${(x - s).toFixed(2)} ${(y - s).toFixed(2)}l${2 * s} ${2 * s}m0 ${-2 * s}l${-2 * s} ${2 * s}`;
}
