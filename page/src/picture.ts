// A tree with what one needs to look at it: what frames are as wide as, search, details.
import { nameOf, rowsOf, type Column, type TableData } from "./data";
import { choice, make, shape } from "./dom";
import { Icicle } from "./icicle";
import { written } from "./numbers";

/** Columns that frames can be as wide as: values of rows without those below them. */
const OWN = /(^|_)self_(ns|bytes|flops)$/;
/** What the names of layers of a kind differ in. */
const NUMBERS = /\.\d+(?=\.|$)/g;

export class Picture {
  private readonly svg: SVGSVGElement;
  private readonly panel = make("div", { class: "details", "aria-live": "polite", tabindex: "0" });
  private readonly result = make("output", { class: "result" });
  private readonly reset: HTMLButtonElement;
  private readonly search: HTMLInputElement;
  private readonly metrics: Column[];
  private icicle!: Icicle;
  private most = 0;

  constructor(
    place: HTMLElement,
    private readonly table: TableData,
    private readonly heat: number[],
  ) {
    this.svg = shape("svg", { class: "icicle", width: "100%", role: "tree", "aria-label": table.title }) as SVGSVGElement;
    this.reset = make("button", { type: "button", hidden: true, click: () => this.icicle.zoom(this.icicle.root) }, "Reset zoom");
    this.search = make("input", { type: "search", placeholder: "Search names", "aria-label": "Search the picture" });
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.icicle.best) this.icicle.zoom(this.icicle.best);
    });
    this.metrics = table.columns.filter((column) => OWN.test(column.name) && column.values.some((value) => Number(value) > 0));
    const options = this.metrics.map(({ name, title }) => ({ id: name, title: title.replace(/ ?self$/, "") || "time" }));
    const bar = make("div", { class: "controls" });
    if (options.length > 1) bar.append("Width:", choice("Width", options, options[0]?.id ?? "", (id) => this.draw(id)));
    bar.append(this.search, this.result, this.reset);
    place.append(bar, this.svg, this.panel);
    this.draw(options[0]?.id ?? "");
    new ResizeObserver(() => this.icicle.fit()).observe(this.svg);
  }

  /** Look at a row. */
  goTo(row: number): void {
    this.icicle.zoomToRow(row);
    this.svg.scrollIntoView({ block: "nearest" });
  }

  private draw(id: string): void {
    const metric = this.metrics.find(({ name }) => name === id);
    if (!metric) return;
    const tones = metric === this.metrics[0] ? this.table.tones : this.tonesBy(metric);
    const hottest = tones.reduce((most, tone) => (tone > most ? tone : most), "");
    const own = metric.values.map((value, row) => (tones[row] === hottest ? Number(value) : -1));
    this.most = own.indexOf(Math.max(...own));
    this.icicle = new Icicle(
      this.svg,
      this.table,
      metric,
      (row) => tones[row] || "heat0",
      (row) => this.show(row),
      (isWhole) => this.reset.toggleAttribute("hidden", isWhole),
    );
    this.reset.hidden = true;
    if (this.search.value) this.find();
  }

  /** Heat by another column: layers of a kind are as hot as all of them together. */
  private tonesBy(metric: Column): string[] {
    const layers = rowsOf(this.table).map((row) => nameOf(this.table, row).replace(NUMBERS, ".*"));
    const sums = new Map<string | undefined, number>();
    const own = (row: number): number => Math.max(Number(metric.values[row] ?? 0), 0);
    for (const row of rowsOf(this.table)) sums.set(layers[row], (sums.get(layers[row]) ?? 0) + own(row));
    const whole = [...sums.values()].reduce((sum, each) => sum + each, 0) || 1;
    const level = (row: number): number => this.heat.filter((least) => (sums.get(layers[row]) ?? 0) / whole >= least).length;
    return rowsOf(this.table).map((row) => `heat${level(row)}`);
  }

  private find(): void {
    const { count, share } = this.icicle.search(this.search.value);
    this.result.value = this.search.value.trim() ? `${count} found, ${share}` : "";
  }

  /** All that is known of a row; at first, of the hottest one. */
  private show(pointed: number): void {
    const row = pointed < 0 ? this.most : pointed;
    const hint = pointed < 0 ? [make("p", { class: "kind" }, "Point at a frame to see its numbers. A click zooms in.")] : [];
    const lines = this.table.columns
      .map((column) => [column.title, written(column, column.values[row])] as const)
      .filter(([, text]) => text !== "")
      .map(([title, text]) => make("div", {}, make("dt", {}, title), make("dd", {}, text)));
    this.panel.replaceChildren(make("h3", { class: "name" }, nameOf(this.table, row)), ...hint, make("dl", {}, ...lines));
    // It never shrinks, so that what is below it stays where it is.
    if (this.panel.offsetHeight > 0) this.panel.style.minHeight = `${this.panel.offsetHeight}px`;
  }
}
