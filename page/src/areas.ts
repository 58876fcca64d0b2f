// A table of moments, as areas above each other: what is in use of each kind, from moment to moment.
import { Chart, LEFT, RIGHT, round } from "./chart";
import { nameOf, type Column, type TableData } from "./data";
import { make, shape } from "./dom";
import { inUnit, ticks } from "./numbers";

/** In pixels: above the areas, their height, and what is below them. */
const [TOP, HEIGHT] = [30, 280];
const BOTTOM = TOP + HEIGHT;
const [TICKS, STRIP, PHASES] = [BOTTOM + 18, BOTTOM + 30, BOTTOM + 54];
const THICKNESS = 8;
/** Of a character, of a bold one, of a line, and from one mark of the axis to the next. */
const [CHARACTER, BOLD, LINE, ACROSS] = [7, 8, 17, 80];
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

export class Areas extends Chart {
  private readonly cursor = shape("g", { class: "cursor" });
  private readonly since = this.numbers("since_ns");
  private readonly phases: string[];
  /** Columns of bytes, the uppermost first. */
  private readonly kinds = this.table.columns.filter(({ unit }) => unit === "bytes");
  private readonly total = this.rows.map((row) => this.kinds.reduce((sum, kind) => sum + bytesOf(kind, row), 0));
  protected readonly most = Math.max(...this.total);
  /** The peak. */
  protected readonly home = this.total.indexOf(this.most);
  private readonly stretches: Stretch[];
  private readonly end: number;

  constructor(place: HTMLElement, table: TableData) {
    super(table, "areas", "bytes", TOP, HEIGHT);
    const phases = table.columns.find(({ name }) => name === "phase");
    this.phases = this.rows.map((row) => String(phases?.values[row] ?? ""));
    this.stretches = stretchesOf(this.phases);
    const last = this.since[this.since.length - 1] ?? 0;
    this.end = last + last / this.since.length || 1; // the last moment is seen, too
    const legend = this.kinds.map((kind) => make("li", {}, dot(kind), kind.title));
    this.start(place, make("ul", { class: "legend" }, ...legend));
  }

  protected shapes(): { height: number; drawn: SVGElement[] } {
    const { lines, names } = this.names();
    const drawn = [...this.areas(), ...this.grid(), ...this.marks(), ...this.strip(), ...names, ...this.peak(), this.cursor];
    return { height: PHASES + lines * LINE - 9, drawn };
  }

  /** Where a moment begins: the first one with the step. After the last one: where all ends. */
  protected begin(moment: number): number {
    return this.x((moment ? (this.since[moment] ?? this.end) : 0) / this.end);
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

  private marks(): SVGElement[] {
    return ticks("ns", this.end, (this.width - LEFT - RIGHT) / ACROSS).flatMap(([ns, text]) => {
      const x = this.x(ns / this.end);
      const line = shape("line", { class: "tick", x1: x, x2: x, y1: BOTTOM, y2: BOTTOM + 4 });
      return [line, shape("text", { x, y: TICKS, "text-anchor": "middle" }, text)];
    });
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
  private peak(): SVGElement[] {
    const x = this.begin(this.home);
    const size = `Peak ${inUnit("bytes", this.most)}`;
    const name = nameOf(this.table, this.home);
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

  protected point(moment: number): { told: Node[]; said: string } {
    const [x, total] = [this.begin(moment), this.total[moment] ?? 0];
    this.cursor.replaceChildren(
      shape("line", { x1: x, x2: x, y1: TOP, y2: BOTTOM }),
      shape("line", { x1: x, x2: x, y1: STRIP, y2: STRIP + THICKNESS }),
      shape("circle", { cx: x, cy: this.y(total), r: 4 }),
    );
    const when = `${inUnit("ns", this.since[moment] ?? 0)} after the step began`;
    const inUse = `${sizeOf(total)} in use${moment === this.home ? ", the peak" : ""}`;
    const sizes = this.kinds.map((kind) => [kind, sizeOf(bytesOf(kind, moment))] as const);
    const spoken = [nameOf(this.table, moment), this.phases[moment], when, inUse, ...sizes.map(([kind, size]) => `${kind.title} ${size}`)];
    const told = [
      make("p", { class: "kind" }, `${this.phases[moment]}, ${when}: ${inUse}`),
      make("dl", {}, ...sizes.map(([kind, size]) => make("div", {}, make("dt", {}, dot(kind), kind.title), make("dd", {}, size)))),
    ];
    return { told, said: spoken.join(", ") };
  }

  protected pages(moment: number): [number, number] {
    return [moment - PAGE, moment + PAGE];
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
