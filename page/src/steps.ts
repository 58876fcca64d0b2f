// Steps over time: a bar for each stretch of steps, as high as their mean, and above it up to the longest of them.
import { Chart, LEFT, RIGHT } from "./chart";
import { nameOf, type TableData } from "./data";
import { make, shape } from "./dom";
import { inUnit, roundUp } from "./numbers";

/** In pixels: above the bars, their height, and from one mark of the axis to the next. */
const [TOP, HEIGHT, ACROSS] = [12, 180, 90];
/** Bars that are wider than this have a gap between them. */
const WIDE = 4;
/** Bars are at most so many times as high as the median one: longer ones are cut, or the others would not be seen. */
const HIGHEST = 10;

export class Steps extends Chart {
  private readonly cursor = shape("rect", { class: "cursor", y: TOP, height: HEIGHT });
  private readonly first = this.numbers("first_step");
  private readonly steps = this.numbers("steps");
  private readonly mean = this.numbers("mean_ns");
  private readonly longest = this.numbers("longest_ns");
  protected readonly home = this.longest.indexOf(Math.max(...this.longest));
  protected readonly most: number;

  constructor(place: HTMLElement, table: TableData) {
    super(table, "steps", "ns", TOP, HEIGHT);
    const median = [...this.mean].sort((one, other) => one - other)[this.mean.length >> 1] ?? 0;
    this.most = Math.min(Math.max(...this.longest), HIGHEST * median);
    this.start(place);
  }

  protected shapes(): { height: number; drawn: SVGElement[] } {
    const drawn = [this.cursor, ...this.grid(), ...this.marks(), ...this.rows.flatMap((row) => this.bars(row))];
    return { height: this.bottom + 26, drawn };
  }

  /** The first step, and how many there are. */
  private get all(): [number, number] {
    const [from, last] = [this.first[0] ?? 0, this.rows.length - 1];
    return [from, (this.first[last] ?? 0) + (this.steps[last] ?? 0) - from];
  }

  /** Where a step begins. */
  private place(step: number): number {
    const [from, count] = this.all;
    return this.x((step - from) / (count || 1));
  }

  protected begin(row: number): number {
    return this.place(this.first[row] ?? 0);
  }

  private widthOf(row: number): number {
    return this.place((this.first[row] ?? 0) + (this.steps[row] ?? 0)) - this.begin(row);
  }

  private bars(row: number): SVGElement[] {
    const [x, room] = [this.begin(row), this.widthOf(row)];
    const width = room > WIDE ? room - 1 : room;
    const bar = (name: string, ns: number): SVGElement =>
      shape("rect", { class: `${name} ${this.table.tones[row] ?? ""}`, x, width, y: this.y(ns), height: this.bottom - this.y(ns) });
    const [mean, longest] = [this.mean[row] ?? 0, this.longest[row] ?? 0];
    const bars = this.steps[row] === 1 ? [bar("longest", longest)] : [bar("longest", longest), bar("mean", mean)];
    const cut = shape("rect", { class: "cut", x, width, y: TOP + 7, height: 3 });
    return longest > this.most ? [...bars, cut] : bars;
  }

  /** The numbers of some steps. */
  private marks(): SVGElement[] {
    const [from, count] = this.all;
    const step = Math.max(roundUp(count / Math.max(Math.floor((this.width - LEFT - RIGHT) / ACROSS), 1)), 1);
    const found: SVGElement[] = [];
    for (let number = Math.ceil(from / step) * step; number < from + count; number += step) {
      const x = (this.place(number) + this.place(number + 1)) / 2;
      found.push(shape("text", { x, y: this.bottom + 18, "text-anchor": "middle" }, String(number)));
    }
    return found;
  }

  protected point(row: number): { told: Node[]; said: string } {
    this.cursor.setAttribute("x", String(this.begin(row) - 2));
    this.cursor.setAttribute("width", String(this.widthOf(row) + 4));
    const longest = inUnit("ns", this.longest[row] ?? 0);
    const duration = this.steps[row] === 1 ? longest : `${inUnit("ns", this.mean[row] ?? 0)} on average, the longest ${longest}`;
    const took = duration + (this.table.tones[row] ? ", slow" : "");
    const slow = this.table.columns.find(({ name }) => name === "slow");
    const texts = String(slow?.values[row] ?? "").split("; ").filter(Boolean);
    const told = [make("p", { class: "kind" }, took), ...texts.map((text) => make("p", {}, text))];
    return { told, said: [`${nameOf(this.table, row)}: ${took}`, ...texts].join("; ") };
  }

  /** From slow step to slow step. */
  protected pages(row: number): [number, number] {
    const slow = this.rows.filter((each) => this.table.tones[each]);
    return [slow.filter((each) => each < row).pop() ?? row, slow.find((each) => each > row) ?? row];
  }
}
