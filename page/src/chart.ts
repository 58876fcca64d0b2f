// A chart of the rows of a table, one beside the other. One is chosen by pointer or keys, and told of below.
import { nameOf, rowsOf, type TableData } from "./data";
import { make, shape } from "./dom";
import { ticks } from "./numbers";

/** In pixels: the room beside the chart, and from one mark of the upward axis to the next. */
export const [LEFT, RIGHT] = [70, 24];
const UP = 50;

export abstract class Chart {
  protected readonly rows: number[];
  protected readonly bottom: number;
  protected width = 0;
  private readonly svg: SVGSVGElement;
  private readonly panel = make("div", { class: "details" });
  /** The row that is told of where the pointer is elsewhere. */
  private current = 0;

  /** The row that is chosen at first, and by Escape. */
  protected abstract readonly home: number;
  /** The most of the upward axis. */
  protected abstract readonly most: number;

  constructor(
    protected readonly table: TableData,
    name: string,
    private readonly unit: "ns" | "bytes",
    protected readonly top: number,
    protected readonly height: number,
  ) {
    this.rows = rowsOf(table);
    this.bottom = top + height;
    const range = { "aria-valuemin": 0, "aria-valuemax": this.rows.length - 1 };
    this.svg = shape("svg", { class: name, width: "100%", role: "slider", tabindex: 0, "aria-label": table.title, ...range }) as SVGSVGElement;
  }

  /** Where a row begins. */
  protected abstract begin(row: number): number;
  /** All that is drawn, and how high that is. */
  protected abstract shapes(): { height: number; drawn: SVGElement[] };
  /** Point a row out. Returns what is told of it below its name, and what is said of it. */
  protected abstract point(row: number): { told: Node[]; said: string };
  /** Where the keys for pages lead, down and up. */
  protected abstract pages(row: number): [number, number];

  /** Draw all of it, now and whenever the room changes. */
  protected start(place: HTMLElement, ...above: Node[]): void {
    this.current = this.home;
    place.append(...above, this.svg, this.panel);
    this.svg.onkeydown = (event) => this.onKey(event);
    this.svg.onpointermove = (event) => this.show(this.at(event));
    this.svg.onpointerleave = () => this.show(this.current);
    this.svg.onclick = (event) => this.choose(this.at(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.draw();
  }

  protected numbers(name: string): number[] {
    const column = this.table.columns.find((each) => each.name === name);
    return this.rows.map((row) => Number(column?.values[row] ?? 0));
  }

  /** The place of a part of the width. */
  protected x(part: number): number {
    return round(LEFT + (this.width - LEFT - RIGHT) * part);
  }

  protected y(value: number): number {
    return round(this.bottom - (this.height * Math.min(value, this.most)) / (this.most || 1));
  }

  /** The upward axis. */
  protected grid(): SVGElement[] {
    return ticks(this.unit, this.most, this.height / UP).flatMap(([value, text]) => [
      shape("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: this.y(value), y2: this.y(value) }),
      shape("text", { x: LEFT - 8, y: this.y(value) + 4, "text-anchor": "end" }, text),
    ]);
  }

  private draw(): void {
    const width = this.svg.clientWidth || 1000;
    if (width === this.width) return;
    this.width = width;
    const { height, drawn } = this.shapes();
    this.svg.setAttribute("height", String(height));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...drawn);
    this.choose(this.current);
  }

  /** The row at a place. */
  private at(event: MouseEvent): number {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const later = this.rows.findIndex((row) => this.begin(row) > x);
    return later < 0 ? this.rows.length - 1 : Math.max(later - 1, 0);
  }

  private choose(row: number): void {
    this.current = row;
    this.show(row);
  }

  private show(row: number): void {
    const { told, said } = this.point(row);
    this.svg.setAttribute("aria-valuenow", String(row));
    this.svg.setAttribute("aria-valuetext", said);
    this.panel.replaceChildren(make("h3", { class: "name" }, nameOf(this.table, row)), ...told);
  }

  private onKey(event: KeyboardEvent): void {
    const last = this.rows.length - 1;
    const [down, up] = this.pages(this.current);
    const goals: Record<string, number> = {
      ArrowLeft: this.current - 1,
      ArrowDown: this.current - 1,
      ArrowRight: this.current + 1,
      ArrowUp: this.current + 1,
      PageDown: down,
      PageUp: up,
      Home: 0,
      End: last,
      Escape: this.home,
    };
    const goal = goals[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(goal, last)));
  }
}

export function round(pixels: number): number {
  return Math.round(pixels * 10) / 10;
}
