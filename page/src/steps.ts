// Steps over time: a bar for each stretch of steps, as high as their mean, and above it up to the longest of them.
import { nameOf, rowsOf, type TableData } from "./data";
import { make, shape } from "./dom";
import { inUnit, ticks } from "./numbers";

/** In pixels: the room around the bars, their height, and from one mark of an axis to the next. */
const [LEFT, RIGHT, TOP, HEIGHT] = [70, 24, 12, 180];
const BOTTOM = TOP + HEIGHT;
const [ACROSS, UP] = [90, 45];
/** Bars that are wider than this have a gap between them. */
const WIDE = 4;
/** Bars are at most so many times as high as the median one: longer ones are cut, or the others would not be seen. */
const HIGHEST = 10;

export class Steps {
  private readonly svg = shape("svg", { class: "steps", width: "100%", role: "slider", tabindex: 0 }) as SVGSVGElement;
  private readonly cursor = shape("rect", { class: "cursor", y: TOP, height: HEIGHT });
  private readonly panel = make("div", { class: "details" });
  private readonly rows: number[];
  private readonly first: number[];
  private readonly steps: number[];
  private readonly mean: number[];
  private readonly longest: number[];
  /** Of the axis. */
  private readonly most: number;
  /** The stretch that is told of where the pointer is elsewhere: at first, that of the slowest step. */
  private current: number;
  private width = 0;

  constructor(
    place: HTMLElement,
    private readonly table: TableData,
  ) {
    this.rows = rowsOf(table);
    this.first = this.numbers("first_step");
    this.steps = this.numbers("steps");
    this.mean = this.numbers("mean_ns");
    this.longest = this.numbers("longest_ns");
    const median = [...this.mean].sort((one, other) => one - other)[this.mean.length >> 1] ?? 0;
    this.most = Math.min(Math.max(...this.longest), HIGHEST * median);
    this.current = this.slowest();
    const names = { "aria-label": table.title, "aria-valuemin": 0, "aria-valuemax": this.rows.length - 1 };
    for (const [name, value] of Object.entries(names)) this.svg.setAttribute(name, String(value));
    place.append(this.svg, this.panel);
    this.svg.onkeydown = (event) => this.onKey(event);
    this.svg.onpointermove = (event) => this.show(this.at(event));
    this.svg.onpointerleave = () => this.show(this.current);
    this.svg.onclick = (event) => this.choose(this.at(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.draw();
  }

  private numbers(name: string): number[] {
    const column = this.table.columns.find((each) => each.name === name);
    return this.rows.map((row) => Number(column?.values[row] ?? 0));
  }

  private draw(): void {
    const width = this.svg.clientWidth || 1000;
    if (width === this.width) return;
    this.width = width;
    this.svg.setAttribute("height", String(BOTTOM + 26));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${BOTTOM + 26}`);
    this.svg.replaceChildren(this.cursor, ...this.axes(), ...this.rows.flatMap((row) => this.bars(row)));
    this.choose(this.current);
  }

  private get end(): number {
    const last = this.rows.length - 1;
    return (this.first[last] ?? 0) + (this.steps[last] ?? 0);
  }

  /** Where a step begins. */
  private x(step: number): number {
    const from = this.first[0] ?? 0;
    return LEFT + ((this.width - LEFT - RIGHT) * (step - from)) / (this.end - from || 1);
  }

  private y(ns: number): number {
    return BOTTOM - (HEIGHT * Math.min(ns, this.most)) / (this.most || 1);
  }

  private slowest(): number {
    return this.longest.indexOf(Math.max(...this.longest));
  }

  /** The left of a stretch, and its width. */
  private across(row: number): [number, number] {
    const first = this.first[row] ?? 0;
    const [left, right] = [this.x(first), this.x(first + (this.steps[row] ?? 0))];
    return [left, right - left];
  }

  private bars(row: number): SVGElement[] {
    const [left, room] = this.across(row);
    const [x, width] = [left.toFixed(1), (room > WIDE ? room - 1 : room).toFixed(1)];
    const bar = (name: string, ns: number): SVGElement =>
      shape("rect", { class: `${name} ${this.table.tones[row] ?? ""}`, x, width, y: this.y(ns).toFixed(1), height: (BOTTOM - this.y(ns)).toFixed(1) });
    const [mean, longest] = [this.mean[row] ?? 0, this.longest[row] ?? 0];
    const bars = this.steps[row] === 1 ? [bar("longest", longest)] : [bar("longest", longest), bar("mean", mean)];
    const cut = shape("rect", { class: "cut", x, width, y: TOP + 7, height: 3 });
    return longest > this.most ? [...bars, cut] : bars;
  }

  private axes(): SVGElement[] {
    const right = this.width - RIGHT;
    const up = ticks("ns", this.most, HEIGHT / UP).flatMap(([ns, text]) => [
      shape("line", { class: "grid", x1: LEFT, x2: right, y1: this.y(ns), y2: this.y(ns) }),
      shape("text", { x: LEFT - 8, y: this.y(ns) + 4, "text-anchor": "end" }, text),
    ]);
    const count = Math.max(Math.floor((right - LEFT) / ACROSS), 1);
    const [from, all] = [this.first[0] ?? 0, this.end - (this.first[0] ?? 0)];
    const step = Math.max(round(all / count), 1);
    const across: SVGElement[] = [];
    for (let number = Math.ceil(from / step) * step; number < this.end; number += step) {
      const x = (this.x(number) + this.x(number + 1)) / 2;
      across.push(shape("text", { x, y: BOTTOM + 18, "text-anchor": "middle" }, String(number)));
    }
    return [...up, ...across];
  }

  /** The stretch at a place. */
  private at(event: MouseEvent): number {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const later = this.rows.findIndex((row) => (this.across(row)[0] ?? 0) > x);
    return later < 0 ? this.rows.length - 1 : Math.max(later - 1, 0);
  }

  private choose(row: number): void {
    this.current = row;
    this.show(row);
  }

  /** All that is known of a stretch. */
  private show(row: number): void {
    const [x, width] = this.across(row);
    this.cursor.setAttribute("x", String(x - 2));
    this.cursor.setAttribute("width", String(width + 4));
    const longest = inUnit("ns", this.longest[row] ?? 0);
    const took = this.steps[row] === 1 ? longest : `${inUnit("ns", this.mean[row] ?? 0)} on average, the longest ${longest}`;
    const is = this.table.tones[row] ? ", slow" : "";
    const slow = this.table.columns.find(({ name }) => name === "slow");
    const texts = String(slow?.values[row] ?? "").split("; ").filter(Boolean);
    this.svg.setAttribute("aria-valuenow", String(row));
    this.svg.setAttribute("aria-valuetext", [`${nameOf(this.table, row)}: ${took}${is}`, ...texts].join("; "));
    this.panel.replaceChildren(
      make("h3", { class: "name" }, nameOf(this.table, row)),
      make("p", { class: "kind" }, `${took}${is}`),
      ...texts.map((text) => make("p", {}, text)),
    );
  }

  private onKey(event: KeyboardEvent): void {
    const last = this.rows.length - 1;
    const slow = this.rows.filter((row) => this.table.tones[row]);
    const goals: Record<string, number> = {
      ArrowLeft: this.current - 1,
      ArrowDown: this.current - 1,
      ArrowRight: this.current + 1,
      ArrowUp: this.current + 1,
      PageDown: [...slow].reverse().find((row) => row < this.current) ?? this.current,
      PageUp: slow.find((row) => row > this.current) ?? this.current,
      Home: 0,
      End: last,
      Escape: this.slowest(),
    };
    const goal = goals[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(goal, last)));
  }
}

/** The next number with one digit that is 1, 2 or 5. */
function round(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least || 1));
  return power * ([1, 2, 5].find((each) => each * power >= least) ?? 10);
}
