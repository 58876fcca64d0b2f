// A table of moments, as areas above each other: what is in use of each kind, from moment to moment.
import { nameOf, rowsOf, type Column, type TableData } from "./data";
import { make, shape } from "./dom";
import { inUnit, ticks } from "./numbers";

/** In pixels: the room around the areas, their height, and what is below them. */
const [LEFT, RIGHT, TOP, HEIGHT] = [62, 24, 30, 280];
const BOTTOM = TOP + HEIGHT;
const [TICKS, STRIP, PHASES] = [BOTTOM + 18, BOTTOM + 30, BOTTOM + 54];
const THICKNESS = 8;
/** Of a character, of a bold one, of a line, and from one mark of an axis to the next. */
const [CHARACTER, BOLD, LINE] = [7, 8, 17];
const [ACROSS, UP] = [80, 55];
/** The room of a dot before a name. */
const DOT = 13;
/** Moments that a page key goes on by. */
const PAGE = 10;

/** A stretch of time: the first moment in it, and the first after it. */
interface Stretch {
  phase: string;
  first: number;
  end: number;
}

export class Areas {
  private readonly svg = shape("svg", { class: "areas", width: "100%", role: "slider", tabindex: 0 }) as SVGSVGElement;
  private readonly cursor = shape("g", { class: "cursor" });
  private readonly panel = make("div", { class: "details" });
  private readonly since: number[];
  private readonly phases: string[];
  /** Columns of bytes, the uppermost first. */
  private readonly kinds: Column[];
  private readonly total: number[];
  private readonly peak: number;
  private readonly stretches: Stretch[];
  private readonly end: number;
  /** The moment that is told of where the pointer is elsewhere. */
  private current: number;
  private width = 0;

  constructor(
    place: HTMLElement,
    private readonly table: TableData,
  ) {
    const column = (name: string): Column | undefined => table.columns.find((each) => each.name === name);
    this.since = rowsOf(table).map((row) => Number(column("since_ns")?.values[row] ?? 0));
    this.phases = rowsOf(table).map((row) => String(column("phase")?.values[row] ?? ""));
    this.kinds = table.columns.filter(({ unit }) => unit === "bytes");
    this.total = rowsOf(table).map((row) => this.kinds.reduce((sum, kind) => sum + bytesOf(kind, row), 0));
    this.peak = this.current = this.total.indexOf(Math.max(...this.total));
    this.stretches = stretchesOf(this.phases);
    const last = this.since[this.since.length - 1] ?? 0;
    this.end = last + last / this.since.length || 1; // the last moment is seen, too
    const legend = this.kinds.map((kind) => make("li", {}, dot(kind), kind.title));
    for (const [name, value] of Object.entries({ "aria-label": table.title, "aria-valuemin": 0, "aria-valuemax": this.since.length - 1 })) {
      this.svg.setAttribute(name, String(value));
    }
    place.append(make("ul", { class: "legend" }, ...legend), this.svg, this.panel);
    this.svg.onkeydown = (event) => this.onKey(event);
    this.svg.onpointermove = (event) => this.show(this.at(event));
    this.svg.onpointerleave = () => this.show(this.current);
    this.svg.onclick = (event) => this.choose(this.at(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.draw();
  }

  private draw(): void {
    const width = this.svg.clientWidth || 1000;
    if (width === this.width) return;
    this.width = width;
    const { lines, names } = this.names();
    const height = PHASES + lines * LINE - 9;
    this.svg.setAttribute("height", String(height));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...this.areas(), ...this.axes(), ...this.strip(), ...names, ...this.mark(), this.cursor);
    this.choose(this.current);
  }

  private x(ns: number): number {
    return round(LEFT + ((this.width - LEFT - RIGHT) * ns) / this.end);
  }

  /** Where a moment begins: the first one with the step. After the last one: where all ends. */
  private begin(moment: number): number {
    return this.x(moment ? (this.since[moment] ?? this.end) : 0);
  }

  private y(bytes: number): number {
    return round(BOTTOM - (HEIGHT * bytes) / (this.total[this.peak] || 1));
  }

  /** What is in use stays so until the next moment. */
  private areas(): SVGElement[] {
    const lower = this.total.map(() => 0);
    return [...this.kinds].reverse().map((kind) => {
      const upper = lower.map((bytes, moment) => bytes + bytesOf(kind, moment));
      const there = upper.map((bytes, moment) => `V${this.y(bytes)}H${this.begin(moment + 1)}`);
      const back = lower.map((bytes, moment) => `V${this.y(bytes)}H${this.begin(moment)}`).reverse();
      const first = `M${this.begin(0)},${this.y(lower[0] ?? 0)}`;
      lower.splice(0, lower.length, ...upper);
      return shape("path", { class: colour(kind), d: `${first}${there.join("")}${back.join("")}Z` });
    });
  }

  private axes(): SVGElement[] {
    const right = this.width - RIGHT;
    const up = ticks("bytes", this.total[this.peak] ?? 0, HEIGHT / UP).flatMap(([bytes, text]) => [
      shape("line", { class: "grid", x1: LEFT, x2: right, y1: this.y(bytes), y2: this.y(bytes) }),
      shape("text", { x: LEFT - 8, y: this.y(bytes) + 4, "text-anchor": "end" }, text),
    ]);
    const across = ticks("ns", this.end, (right - LEFT) / ACROSS).flatMap(([ns, text]) => [
      shape("line", { class: "tick", x1: this.x(ns), x2: this.x(ns), y1: BOTTOM, y2: BOTTOM + 4 }),
      shape("text", { x: this.x(ns), y: TICKS, "text-anchor": "middle" }, text),
    ]);
    return [...up, ...across];
  }

  /** The phases, one after the other. */
  private strip(): SVGElement[] {
    return this.stretches.map((each) =>
      shape("rect", { class: colour(each.phase), x: this.begin(each.first), y: STRIP, width: Math.max(this.size(each), 1), height: THICKNESS }),
    );
  }

  /** The names of the phases, in one line or two: below each stretch that is long enough, or else once, with a dot. */
  private names(): { lines: number; names: SVGElement[] } {
    const rows = [new Row(LEFT, this.width), new Row(LEFT, this.width)];
    const named = new Set<string>();
    const names: SVGElement[] = [];
    for (const each of [...this.stretches].sort((one, other) => this.size(other) - this.size(one))) {
      const length = each.phase.length * CHARACTER;
      const fits = length + CHARACTER <= this.size(each);
      if (!fits && named.has(each.phase)) continue;
      const middle = this.begin(each.first) + this.size(each) / 2;
      const row = rows.find((line) => line.take(middle, fits ? length : length + DOT));
      if (!row) continue;
      named.add(each.phase);
      const y = PHASES + LINE * rows.indexOf(row);
      if (fits) {
        names.push(shape("text", { x: row.last + length / 2, y, "text-anchor": "middle" }, each.phase));
      } else {
        names.push(shape("rect", { class: colour(each.phase), x: row.last, y: y - 9, width: 9, height: 9 }));
        names.push(shape("text", { x: row.last + DOT, y }, each.phase));
      }
    }
    return { lines: rows.filter((row) => row.last).length, names };
  }

  private size({ first, end }: Stretch): number {
    return this.begin(end) - this.begin(first);
  }

  /** The peak, and what ran then: as much of its name as there is room for. */
  private mark(): SVGElement[] {
    const x = this.begin(this.peak);
    const size = `Peak ${inUnit("bytes", this.total[this.peak] ?? 0)}`;
    const name = nameOf(this.table, this.peak);
    const short = name.replace(/(.)\([^()]*\)$/, "$1"); // without shapes
    const room = this.width - LEFT - RIGHT;
    const last = short.replace(/.*: /, ""); // without its module
    const texts = [name, short, last].map((each) => `${size}: ${each}`);
    const text = texts.find((each) => each.length * BOLD <= room) ?? size;
    const half = (text.length * BOLD) / 2;
    const isLeft = x - half < LEFT;
    const isRight = x + half > this.width - RIGHT;
    const [anchor, at] = isLeft ? ["start", LEFT] : isRight ? ["end", this.width - RIGHT] : ["middle", x];
    return [
      shape("line", { class: "peak", x1: x, x2: x, y1: TOP - 8, y2: BOTTOM }),
      shape("circle", { class: "peak", cx: x, cy: TOP, r: 4 }),
      shape("text", { class: "peak", x: at, y: TOP - 14, "text-anchor": anchor }, text),
    ];
  }

  /** The moment at a place. */
  private at(event: MouseEvent): number {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const later = rowsOf(this.table).findIndex((moment) => this.begin(moment) > x);
    return later < 0 ? this.since.length - 1 : Math.max(later - 1, 0);
  }

  private choose(moment: number): void {
    this.current = moment;
    this.show(moment);
  }

  /** All that is known of a moment. */
  private show(moment: number): void {
    const [x, total] = [this.begin(moment), this.total[moment] ?? 0];
    this.cursor.replaceChildren(
      shape("line", { x1: x, x2: x, y1: TOP, y2: BOTTOM }),
      shape("line", { x1: x, x2: x, y1: STRIP, y2: STRIP + THICKNESS }),
      shape("circle", { cx: x, cy: this.y(total), r: 4 }),
    );
    const when = `${inUnit("ns", this.since[moment] ?? 0)} after the step began`;
    const inUse = `${sizeOf(total)} in use${moment === this.peak ? ", the peak" : ""}`;
    const sizes = this.kinds.map((kind) => [kind, sizeOf(bytesOf(kind, moment))] as const);
    const spoken = [nameOf(this.table, moment), this.phases[moment], when, inUse, ...sizes.map(([kind, size]) => `${kind.title} ${size}`)];
    this.svg.setAttribute("aria-valuenow", String(moment));
    this.svg.setAttribute("aria-valuetext", spoken.join(", "));
    this.panel.replaceChildren(
      make("h3", { class: "name" }, nameOf(this.table, moment)),
      make("p", { class: "kind" }, `${this.phases[moment]}, ${when}: ${inUse}`),
      make("dl", {}, ...sizes.map(([kind, size]) => make("div", {}, make("dt", {}, dot(kind), kind.title), make("dd", {}, size)))),
    );
  }

  private onKey(event: KeyboardEvent): void {
    const last = this.since.length - 1;
    const goals: Record<string, number> = {
      ArrowLeft: this.current - 1,
      ArrowDown: this.current - 1,
      ArrowRight: this.current + 1,
      ArrowUp: this.current + 1,
      PageDown: this.current - PAGE,
      PageUp: this.current + PAGE,
      Home: 0,
      End: last,
      Escape: this.peak,
    };
    const goal = goals[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(goal, last)));
  }
}

/** A line of names. */
class Row {
  private readonly taken: [number, number][] = [];
  /** Where the last name begins; 0: there is none. */
  last = 0;

  constructor(
    private readonly left: number,
    private readonly right: number,
  ) {}

  /** Give a name its place, as near to a middle as there is room. Returns whether there is any. */
  take(middle: number, length: number): boolean {
    const wanted = middle - length / 2;
    const isFree = (at: number): boolean =>
      at >= this.left && at + length <= this.right && this.taken.every(([left, right]) => at + length <= left || at >= right);
    const ends = this.taken.flatMap(([left, right]) => [left - length, right]);
    const places = [wanted, this.left, this.right - length, ...ends].filter(isFree);
    places.sort((one, other) => Math.abs(one - wanted) - Math.abs(other - wanted));
    const [found] = places;
    if (found === undefined) return false;
    this.last = round(found);
    this.taken.push([found - 2 * CHARACTER, found + length + 2 * CHARACTER]);
    return true;
  }
}

function sizeOf(bytes: number): string {
  return bytes ? inUnit("bytes", bytes) : "0";
}

function bytesOf(kind: Column, moment: number): number {
  return Number(kind.values[moment] ?? 0);
}

function stretchesOf(phases: string[]): Stretch[] {
  const found: Stretch[] = [];
  phases.forEach((phase, moment) => {
    const last = found[found.length - 1];
    if (last?.phase === phase) last.end = moment + 1;
    else found.push({ phase, first: moment, end: moment + 1 });
  });
  return found;
}

/** The class with the colour of a kind, or of a phase. */
function colour(what: Column | string): string {
  const [prefix, title] = typeof what === "string" ? ["c", what] : ["k", what.title];
  return `${prefix}-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
}

function dot(kind: Column): HTMLElement {
  return make("span", { class: `dot ${colour(kind)}` });
}

function round(pixels: number): number {
  return Math.round(pixels * 10) / 10;
}
